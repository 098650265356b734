// The tenants with the most waiting requests. The panel is there once a limiter takes turns.

import { byId, field, h, hide, list, part, show } from "./dom.js";
import { count } from "./format.js";

const rows = list(
  byId("tenant-rows"),
  (row) => `${row.limiter} ${row.key ?? ""} ${row.tenant} ${row.priority}`,
  (row) => h("tr", { "data-tenant": row.tenant }, h("th", { scope: "row" }, row.limiter), h("td", { class: "mono wrap" }, row.key ?? ""), h("td", { class: "mono wrap" }, row.tenant), part("td", "weight", { class: "n" }), h("td", {}, row.priority), part("td", "waiting", { class: "n" }), part("td", "granted", { class: "n" })),
  (node, row) => {
    show(field(node, "weight"), count(row.weight), row.weight);
    show(field(node, "waiting"), count(row.waiting), row.waiting);
    show(field(node, "granted"), count(row.granted), row.granted);
  },
);

export function draw(picture) {
  rows(picture.tenants);
  hide(byId("tenants"), !picture.limiters.some((limiter) => limiter.turns));
  hide(document.querySelector("#tenants .table"), picture.tenants.length === 0);
  hide(document.querySelector("#tenants .empty"), picture.tenants.length > 0);
}
