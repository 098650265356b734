// The tiles at the top: the gateway in six figures.

import { byId, h, hide, part, show, toggle } from "./dom.js";
import { count, covered, rate, span } from "./format.js";

const tiles = {};

function tile(name, label) {
  if (tiles[name]) return tiles[name];
  const [figure, more] = [part("span", name, { class: "figure" }), h("span", { class: "more" })];
  const node = h("div", { class: "tile" }, h("span", { class: "label" }, label), figure, more);
  byId("summary").append(node);
  return (tiles[name] = { node, figure, more });
}

function set(name, label, text, value, more, state = "") {
  const own = tile(name, label);
  show(own.figure, text, value);
  show(own.more, more);
  hide(own.more, more === "");
  toggle(own.node, "warn", state === "warn");
  toggle(own.node, "bad", state === "bad");
}

const sum = (all, of) => all.reduce((total, one) => total + of(one), 0);

export function draw(picture) {
  const { routes, limiters, store } = picture;
  const requests = sum(routes, (route) => route.per_second.requests);
  const refused = sum(routes, (route) => route.per_second.refused);
  const held = sum(routes, (route) => route.per_second.waited);
  const slowest = Math.max(0, ...limiters.map((limiter) => limiter.last_slot_ms ?? 0));
  set("waiting", "Waiting now", count(picture.waiting), picture.waiting, slowest ? `last slot in ${span(slowest)}` : "no slot is promised", picture.waiting ? "warn" : "");
  set("requests-rate", "Requests a second", rate(requests), requests, `${count(sum(routes, (route) => route.last_15_min.requests))} in ${covered(picture)}`);
  set("held-rate", "Held a second", rate(held), held, `${count(sum(routes, (route) => route.last_15_min.waited))} in ${covered(picture)}`);
  set("refused-rate", "Refused a second", rate(refused), refused, `${count(sum(routes, (route) => route.last_15_min.refused))} in ${covered(picture)}`, refused ? "bad" : "");
  const paused = limiters.filter((limiter) => limiter.paused_ms != null);
  const lowered = limiters.filter((limiter) => limiter.working_rate != null).length;
  set("paused", "Paused limiters", count(paused.length), paused.length, [paused.map((limiter) => limiter.name).slice(0, 2).join(", ") || `of ${picture.limiters_total}`, lowered && `${lowered} lowered`].filter(Boolean).join("; "), paused.length || lowered ? "warn" : "");
  if (store.kind === "redis") {
    const alone = store.up === false;
    set("gateways-count", "Gateways", count(store.gateways), store.gateways, `store ${alone ? "away" : store.breaker === "closed" ? "up" : `breaker ${store.breaker}`}`, alone ? "bad" : "");
  } else {
    set("gateways-count", "Store", "memory", "memory", "one gateway, by itself");
  }
}
