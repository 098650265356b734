// A row for each route: its requests, waits and refusals of the last 15 minutes.

import { line, stacked } from "./chart.js";
import { byId, field, h, list, part, show } from "./dom.js";
import { count, many, rate, span } from "./format.js";
import { series } from "./series.js";

export const history = series("/routes", "routes");
const rows = list(byId("route-rows"), (route) => route.name, make, update);
const charts = new WeakMap();

function make(route) {
  const [requests, waits] = [stacked(["passed", "held", "refused"]), line()];
  const row = h(
    "tr",
    { "data-route": route.name },
    h("th", { scope: "row" }, route.name),
    h("td", {}, requests.svg),
    part("td", "rate", { class: "n" }),
    part("td", "waiting", { class: "n" }),
    h("td", {}, waits.svg),
    part("td", "p50", { class: "n" }),
    part("td", "p99", { class: "n" }),
    part("td", "refused", { class: "n" }),
  );
  charts.set(row, { requests, waits, drawn: null });
  return row;
}

function update(row, route) {
  const set = (name, text, value) => show(field(row, name), text, value);
  set("rate", rate(route.per_second.requests), route.per_second.requests);
  set("waiting", count(route.waiting), route.waiting);
  set("p50", span(route.p50_ms), route.p50_ms);
  set("p99", span(route.p99_ms), route.p99_ms);
  set("refused", count(route.last_15_min.refused), route.last_15_min.refused);
  const own = charts.get(row);
  const points = history.points.get(route.name);
  // A chart changes when its points do.
  if (!points || own.drawn === row.closest("table").dataset.tick) return;
  own.drawn = row.closest("table").dataset.tick;
  const passed = points.requests.map((all, i) => Math.max(0, all - points.waited[i] - points.refused[i]));
  const { requests, waited, refused } = route.last_15_min;
  own.requests.draw([passed, points.waited, points.refused], `${many(requests, "request")}, ${count(waited)} of them waited, ${count(refused)} were refused`);
  const most = (values) => span(Math.max(0, ...values));
  own.waits.draw(points.p99_ms, `waits: the 99th percentile at most ${most(points.p99_ms)}, the median at most ${most(points.p50_ms)}`, points.p50_ms);
}

export function draw(picture) {
  history.follow(picture);
  byId("route-rows").closest("table").dataset.tick = `${picture.tick} ${history.points.size}`;
  rows(picture.routes);
  const { routes, routes_total: total } = picture;
  show(document.querySelector('[data-field="routes-note"]'), routes.length < total ? `the ${routes.length} busiest of ${total}` : many(total, "route"), total);
}
