// The store with its breaker, and the gateways that share it.

import { byId, field, h, hide, list, part, show, toggle } from "./dom.js";
import { clock, count, many, span } from "./format.js";
import { facts } from "./facts.js";

const draw_facts = facts(byId("store-facts"));
const gateways = list(
  byId("gateways"),
  (gateway) => gateway.id,
  (gateway) => h("li", { "data-gateway": gateway.id }, h("strong", {}, gateway.host || gateway.id), part("span", "waiting"), part("span", "about", { class: "muted mono" }), part("span", "state", { class: "tag" })),
  (node, gateway) => {
    show(field(node, "waiting"), many(gateway.waiting, "waiting request"), gateway.waiting);
    show(field(node, "about"), `${gateway.version}, ${gateway.config}`, gateway.config);
    show(field(node, "state"), gateway.is_this ? "this one" : gateway.differs ? "another configuration" : `described itself ${span(gateway.age_ms)} ago`, gateway.age_ms);
    toggle(field(node, "state"), "held", gateway.differs);
  },
);

export function draw({ store, gateways: fleet = [], config, limits_from: rows, started, workers }) {
  const groups = (store.no_decisions ?? []).map((one) => `${one.group || "all"}: ${one.why}`).join("; ");
  draw_facts([
    ["Store", store.kind === "redis" ? `Redis, ${store.up ? "up" : `away for ${store.away_s} s: ${store.why}`}` : "memory of this process", store.kind === "redis" ? store.up : "memory"],
    ["Breaker", store.breaker],
    ["Decisions by", store.decided_by],
    ["Without decisions", groups],
    ["Round trip", store.round_trip_ms == null ? "" : `${span(store.round_trip_ms)}, time-out ${span(store.timeout_ms)}`, store.round_trip_ms],
    ["Gateways", store.gateways == null ? "" : count(store.gateways), store.gateways],
    ["limits_from", rows && `${rows.up ? "up" : `away: ${rows.error}`}, ${count(rows.rows)} rows${rows.invalid ? `, ${rows.invalid} invalid` : ""}`],
    ["This gateway", `since ${clock(started)}, ${workers} ${workers === 1 ? "worker" : "workers"}`],
  ]);
  gateways(fleet.map((gateway) => ({ ...gateway, differs: gateway.config !== config.hash })));
  hide(byId("gateways"), fleet.length === 0);
}
