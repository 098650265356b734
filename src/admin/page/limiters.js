// A card for each limiter: its level, the slots promised ahead, waiting requests, pauses, overrides and actions.

import * as actions from "./actions.js";
import { line } from "./chart.js";
import { byId, field, h, hide, list, part, show, toggle } from "./dom.js";
import { clock, count, many, span } from "./format.js";

/** How many pictures the small chart of a card covers: two minutes. */
const KEPT = 120;

const cards = list(byId("limiter-cards"), (limiter) => limiter.name, make, update);
const own = new WeakMap();

function make(limiter) {
  const figure = (name, label) => h("div", {}, h("dt", {}, label), part("dd", name));
  const chart = line(280, KEPT);
  const bar = h("span");
  const meter = h("div", { class: "bar", role: "meter", "aria-label": `free permits of ${limiter.name}`, "aria-valuemin": "0" }, bar);
  const button = (name, label, action) => h("button", { type: "button", "data-action": name, "aria-label": `${label} ${limiter.name}`, on: { click: () => action(own.get(card).limiter) } }, `${label}…`);
  const end = h("button", { type: "button", "data-action": "end", on: { click: () => actions.endOverride(own.get(card).limiter) } }, "End it…");
  const resume = h("button", { type: "button", "data-action": "resume", "aria-label": `Resume ${limiter.name}`, on: { click: () => actions.resume(own.get(card).limiter) } }, "Resume…");
  const card = h(
    "article",
    { class: "card", "data-limiter": limiter.name, "aria-label": limiter.name },
    h("header", {}, h("h3", {}, limiter.name), part("span", "rate", { class: "rate" })),
    h("div", { class: "tags", "data-field": "tags" }),
    h("div", { class: "level" }, meter, h("p", {}, part("span", "level"), part("span", "next", { class: "muted" }))),
    h("dl", { class: "figures" }, figure("promised", "Slots ahead"), figure("last_slot", "Last slot in"), figure("waiting", "Waiting")),
    chart.svg,
    h("p", { class: "banner", "data-field": "pause" }, part("span", "pause-text"), resume),
    part("p", "working", { class: "banner" }),
    h("p", { class: "banner info", "data-field": "override" }, part("span", "override-text"), end),
    part("p", "error", { class: "banner bad" }),
    h("div", { class: "actions" },
      button("pause", "Pause", actions.pause),
      button("observe", "Observe", actions.observe),
      button("rate", "Rate", actions.rate),
      button("reset", "Reset", actions.reset),
      limiter.key ? button("keys", "Keys", actions.keys) : null),
  );
  own.set(card, { limiter, chart, bar, meter, history: [] });
  return card;
}

function tags(limiter) {
  const kind = limiter.mode === "enforce" ? "" : limiter.mode === "observe" ? "info" : "held";
  const all = [[limiter.algorithm.replaceAll("_", " "), ""]];
  if (limiter.mode !== "enforce") all.push([limiter.mode, kind]);
  if (limiter.key) all.push([`for each ${limiter.key}`, ""]);
  if (limiter.scope !== "cluster") all.push([limiter.scope, ""]);
  if (limiter.auto) all.push(["learns", "info"]);
  if (limiter.share) all.push([`share of ${limiter.share.gateways}`, "held"]);
  return all;
}

function update(card, limiter) {
  const state = own.get(card);
  state.limiter = limiter;
  const set = (name, text, value) => show(field(card, name), text, value);
  const rate = [limiter.rate ?? `${limiter.limit} at a time`].flat().join(", ");
  set("rate", rate);
  const named = tags(limiter);
  const place = field(card, "tags");
  const text = JSON.stringify(named);
  if (place.dataset.value !== text) {
    place.dataset.value = text;
    place.replaceChildren(...named.map(([name, kind]) => h("span", { class: `tag ${kind}` }, name)));
  }
  const { level, limit } = limiter;
  hide(card.querySelector(".level"), level == null);
  if (level != null) {
    const part = limit > 0 ? Math.max(0, Math.min(1, level / limit)) : 0;
    state.bar.style.width = `${part * 100}%`;
    state.meter.setAttribute("aria-valuemax", limit);
    state.meter.setAttribute("aria-valuenow", Math.max(0, Math.min(limit, level)));
    toggle(state.meter, "low", part < 0.2);
    set("level", `${count(level)} of ${count(limit)} free`, level);
    // The time until a concurrency permit is free is not known.
    set("next", limiter.next_slot_ms > 0 && !limiter.lease_ms ? `next in ${span(limiter.next_slot_ms)}` : "", limiter.next_slot_ms);
  }
  set("promised", count(limiter.promised), limiter.promised);
  set("last_slot", span(limiter.last_slot_ms), limiter.last_slot_ms);
  set("waiting", count(limiter.waiting), limiter.waiting);
  pauseAndOverride(card, limiter, set);
  const works = limiter.working_rate != null;
  hide(field(card, "working"), !works);
  if (works) set("working", `Works at ${limiter.working_rate} from ${clock(limiter.working_since)}: ${limiter.working_reason}`, limiter.working_rate_per_second);
  set("error", limiter.error ?? (limiter.closed_ms == null ? "" : `closed for ${span(limiter.closed_ms)}: ${limiter.closed_reason}`));
  hide(field(card, "error"), field(card, "error").textContent === "");
  toggle(card, "failed", limiter.error != null);
  state.history.push(limiter.waiting);
  if (state.history.length > KEPT) state.history.shift();
  const most = Math.max(...state.history);
  hide(state.chart.svg, most === 0);
  if (most) state.chart.draw(state.history, `waiting requests in the last two minutes: at most ${most}, now ${limiter.waiting}`);
  for (const button of card.querySelectorAll("[data-action]")) {
    const isFree = button.dataset.action === "keys" || actions.mayChange();
    button.disabled = !isFree;
    button.title = isFree ? "" : actions.whyNot();
  }
  hide(card.querySelector('[data-action="reset"]'), limiter.key != null);
  hide(card.querySelector('[data-action="rate"]'), limiter.rate == null);
}

function pauseAndOverride(card, limiter, set) {
  const isPaused = limiter.paused_ms != null;
  toggle(card, "paused", isPaused);
  hide(field(card, "pause"), !isPaused);
  if (isPaused) set("pause-text", `Paused for ${span(limiter.paused_ms)}, until ${clock(limiter.paused_until)}: ${limiter.pause_reason}`, limiter.pause_reason);
  hide(card.querySelector('[data-action="resume"]'), !isPaused || (limiter.key != null && !limiter.override?.pause));
  const { override } = limiter;
  // A pause by an operator has its own banner.
  const shown = override && (override.rate || override.mode);
  hide(field(card, "override"), !shown);
  if (shown) {
    const what = [override.rate && `rate ${[override.rate].flat().join(", ")}`, override.mode && `mode ${override.mode}`].filter(Boolean).join(", ");
    set("override-text", `${what}, ${span(override.left_ms)} left, by ${override.by}: ${override.reason}`, override.reason);
  }
}

export function draw(picture) {
  const wanted = byId("filter").value.trim().toLowerCase();
  const all = picture.limiters.filter((limiter) => limiter.name.toLowerCase().includes(wanted));
  cards(all);
  const rest = picture.limiters_total - picture.limiters.length;
  const note = rest > 0 ? `${picture.limiters.length} of ${picture.limiters_total}, those that hold requests first` : many(picture.limiters_total, "limiter");
  show(document.querySelector('[data-field="limiters-note"]'), note, picture.limiters_total);
  hide(document.querySelector(".filter"), picture.limiters.length < 9 && !wanted);
  hide(document.querySelector("#limiters .empty"), picture.limiters_total > 0);
}
