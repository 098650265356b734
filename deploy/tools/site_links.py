#!/usr/bin/env python3
"""Rewrites the links of the pages in docs/ for the documentation site. mdBook calls it as a preprocessor.

The pages are written for GitHub, where a link can lead to any file of the repository and `README.md` is the page of a
folder. The site has only the pages of docs/SUMMARY.md, and the page of a folder is `index.html` there. So a link to
another file becomes a link to GitHub, and `limiters/README.md` becomes `limiters/index.md`.
"""
import json
import posixpath
import re
import sys

GITHUB = "https://github.com/paceway/paceway"
# A fenced block, inline code, or the target of a link, such as `](../README.md#operate-it)`.
PIECE = re.compile(r"^ *```.*?^ *```|`[^`\n]+`(?!\])|\]\(([^)\s]+)\)", re.S | re.M)


def on_the_site(target, page, pages):
    """The link of `page` (`vendors/stripe.md`) to `target`, as the site needs it."""
    path, _, section = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return target
    file = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), path))
    section = section and f"#{section}"
    if file in pages or re.search(r"\.(svg|png)$", file):
        return re.sub(r"(^|/)README\.md$", r"\1index.md", path) + section
    kind = "tree" if path.endswith("/") or "." not in posixpath.basename(file) else "blob"
    return f"{GITHUB}/{kind}/main/{file}{section}"


def rewritten(text, page, pages):
    def link(match):
        return f"]({on_the_site(match[1], page, pages)})" if match[1] else match[0]

    return PIECE.sub(link, text)


def chapters(items):
    for item in items:
        if "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    _, book = json.load(sys.stdin)
    found = list(chapters(book["items"]))
    pages = {posixpath.normpath("docs/" + chapter["source_path"]) for chapter in found}
    for chapter in found:
        chapter["content"] = rewritten(chapter["content"], chapter["source_path"], pages)
    json.dump(book, sys.stdout)
