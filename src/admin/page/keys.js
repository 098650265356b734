// The keys with the most waiting requests.

import { byId, field, h, hide, list, part, show } from "./dom.js";
import { count, span } from "./format.js";

const rows = list(
  byId("key-rows"),
  (key) => `${key.limiter} ${key.key}`,
  (key) => h("tr", { "data-key": key.key }, h("th", { scope: "row" }, key.limiter), h("td", { class: "mono wrap" }, key.key), part("td", "waiting", { class: "n" }), part("td", "last_slot", { class: "n" })),
  (row, key) => {
    show(field(row, "waiting"), count(key.waiting), key.waiting);
    show(field(row, "last_slot"), span(key.last_slot_ms), key.last_slot_ms);
  },
);

export function draw(picture) {
  rows(picture.keys);
  hide(document.querySelector("#keys .table"), picture.keys.length === 0);
  hide(document.querySelector("#keys .empty"), picture.keys.length > 0);
}
