#!/usr/bin/env python3
"""Fails on links that lead nowhere. `make docs` runs it: first on the repository, then on the built site.

    deploy/tools/links.py               links of all Markdown pages, links to this repository in all other
                                files, and pages that docs/SUMMARY.md lacks
    deploy/tools/links.py --site DIR    links, pictures, styles and scripts of the HTML pages in DIR

A link must lead to an existing file or folder, and its section must exist there: on GitHub for the first command,
as an `id` for the second. Links to other sites are not followed. The site may load nothing from elsewhere.
"""
import html.parser
import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A link to this repository, wherever it is written: `runbook_url` of an alert, a unit of systemd, a page.
OURS = re.compile(r"https://github\.com/paceway/paceway/(?:blob|tree|raw|edit)/main/([^\s\"'<>()`#]*)(#[\w-]+)?")
FENCE = re.compile(r"^([ \t]*)(`{3,})[^`\n]*\n.*?^\1\2[ \t]*$", re.S | re.M)
TARGET = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)|(?:href|src|srcset)=\"([^\"]+)\"", re.M)


def sections(text):
    """The names by which GitHub reaches the headings of a Markdown page."""
    names, counts = set(), {}
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)?$", FENCE.sub("", text), re.M):
        heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        count = counts[name] = counts.get(name, -1) + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def targets(text):
    """The targets of the links on a Markdown page, without those in code."""
    text = re.sub(r"(`+)[^\n]*?\1", "x", FENCE.sub("", text))
    return [next(filter(None, match.groups())) for match in TARGET.finditer(text)]


def mistake(file, section):
    """The reason why nothing is at this section of this file, or `None`."""
    if not file.exists():
        return "no such file"
    if section and file.is_dir():
        file = file / "README.md"
    if section and file.suffix == ".md" and section not in sections(file.read_text()):
        return f"{file.relative_to(ROOT)} has no such section"
    return None


def repository():
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        file = ROOT / name
        try:
            text = file.read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        if name == "deploy/tools/links.py":
            continue
        for match in OURS.finditer(text):
            path = urllib.parse.unquote(match[1]).rstrip(".,;:")
            if "{" not in path:
                yield name, match[0], mistake(ROOT / path, (match[2] or "")[1:])
        for target in targets(text) if name.endswith(".md") else ():
            path, _, section = target.partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            at = (file.parent / urllib.parse.unquote(path)) if path else file
            yield name, target, mistake(at, section)


def summary():
    listed = {(ROOT / "docs" / target) for target in targets((ROOT / "docs/SUMMARY.md").read_text())}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.name != "SUMMARY.md":
            yield str(page.relative_to(ROOT)), "docs/SUMMARY.md", None if page in listed else "does not list this page"


class Page(html.parser.HTMLParser):
    """The `id`s of an HTML page, and everything that it links to or loads."""

    def __init__(self, file):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key == "id":
                self.ids.add(value)
            elif key == "href" and tag == "a":
                self.links.append(value)
            elif key in ("src", "srcset", "data") or (key == "href" and tag in ("link", "use", "image")):
                self.loads.append(value)


def site(folder):
    pages = {file: Page(file) for file in sorted(folder.rglob("*.html")) if file.name != "404.html"}
    for file, page in pages.items():
        name = str(file.relative_to(folder))
        for target in page.links + page.loads:
            parts = urllib.parse.urlsplit(target)
            loaded = target in page.loads
            if parts.scheme or parts.netloc:
                yield name, target, "loaded from elsewhere" if loaded and parts.scheme != "data" else None
                continue
            at = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file
            at = at / "index.html" if at.is_dir() else at
            if not at.is_file():
                yield name, target, "no such file"
            else:
                section = urllib.parse.unquote(parts.fragment)
                wrong = section and at in pages and section not in pages[at].ids
                yield name, target, "no such section" if wrong else None
    for file in folder.rglob("*.css"):
        for target in re.findall(r"url\(\s*['\"]?([^'\")]+)", file.read_text()):
            inside = target.startswith("data:") or (file.parent / target.split("#")[0].split("?")[0]).is_file()
            yield str(file.relative_to(folder)), target, None if inside else "no such file here"


def test():
    """A checker that finds nothing looks like pages without mistakes, so this runs each time."""
    page = "# A `b`: c\n## Twice\n```\n# No\n[x](no.md)\n```\n[`a`](x.md#y) `[z](no)` ![p](q.svg)\n## Twice\n"
    assert sections(page) == {"a-b-c", "twice", "twice-1"}, sections(page)
    assert targets(page) == ["x.md#y", "q.svg"], targets(page)
    assert mistake(ROOT / "README.md", "no-such-section") and mistake(ROOT / "no-such-file", "")


if __name__ == "__main__":
    test()
    if sys.argv[1:2] == ["--site"]:
        links = list(site(pathlib.Path(sys.argv[2]).resolve()))
    else:
        links = [*repository(), *summary()]
    wrong = [f"{name}: {target}: {why}" for name, target, why in links if why]
    print("\n".join(sorted(set(wrong))), file=sys.stderr) if wrong else print(f"{len(links)} links lead somewhere")
    sys.exit(1 if wrong or len(links) < 100 else 0)
