// A list of names and values.

import { h, list, part, show } from "./dom.js";

/** Shows facts as `[name, text, value]`; those without text are left out. */
export function facts(parent) {
  const groups = new Map();
  const draw = list(
    parent,
    ([name]) => name,
    ([name]) => part("dd", name),
    (node, [, text, value]) => show(node, text, value ?? text),
  );
  return (all) => {
    const shown = all.filter(([, text]) => text != null && text !== "");
    draw(shown);
    for (const [name, term] of groups) if (!shown.some(([own]) => own === name)) (term.remove(), groups.delete(name));
    for (const node of parent.querySelectorAll("dd")) {
      const name = node.dataset.field;
      let term = groups.get(name);
      if (!term) groups.set(name, (term = h("dt", {}, name)));
      if (node.previousSibling !== term) node.before(term);
    }
  };
}
