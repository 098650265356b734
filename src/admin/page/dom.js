// Elements, and lists of them that change in place. Text is always text: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties and children: `h("p", { class: "small" }, "text", node)`. */
export function h(tag, props = {}, ...children) {
  const node = tag === "svg" || tag === "path" ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** The part of `node` that shows this field. */
export const field = (node, name) => node.querySelector(`[data-field="${name}"]`);

/** Shows `text`, and keeps the exact `value` beside it. */
export function show(node, text, ...given) {
  if (node.textContent !== text) node.textContent = text;
  const value = given.length ? given[0] : text;
  const exact = value == null ? "" : String(value);
  if (node.dataset.value !== exact) node.dataset.value = exact;
}

export function toggle(node, name, is) {
  if (node.classList.contains(name) !== is) node.classList.toggle(name, is);
}

export function hide(node, is) {
  // A picture of SVG has no property for it.
  if (node.hasAttribute("hidden") !== is) node.toggleAttribute("hidden", is);
}

/** A cell or another part that shows a field. */
export const part = (tag, name, props = {}) => h(tag, { "data-field": name, ...props });

/** Gives the cells of a row the names of their columns, which narrow screens show beside them. */
export function label(row, body) {
  const heads = body.closest("table").tHead.rows[0].cells;
  [...row.cells].forEach((cell, i) => (cell.dataset.label = heads[i].textContent.split(",")[0]));
}

/** Moves a node that has its place already without taking the focus from it, where the browser can. */
function move(parent, node, place) {
  if (node.parentNode === parent && parent.moveBefore) parent.moveBefore(node, place);
  else parent.insertBefore(node, place);
}

/**
 * A list that follows its items: nodes stay with their keys, so that focus and selection stay where they are. `make` returns
 * a node, `update` brings its figures up to date.
 */
export function list(parent, key, make, update) {
  const nodes = new Map();
  return (items) => {
    const left = new Map(nodes);
    let place = parent.firstChild;
    for (const item of items) {
      const name = key(item);
      let node = nodes.get(name);
      if (!node) {
        nodes.set(name, (node = make(item)));
        if (node.tagName === "TR") label(node, parent);
      }
      left.delete(name);
      if (node === place) place = place.nextSibling;
      else move(parent, node, place);
      update(node, item);
    }
    for (const [name, node] of left) {
      nodes.delete(name);
      node.remove();
    }
  };
}
