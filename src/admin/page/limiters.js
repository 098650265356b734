// A row for each limiter: its rates with a bar each, its waiting requests, why and until when it is paused or lowered, and a
// menu of actions. Those that are paused or lowered come first.

import * as actions from "./actions.js";
import { line } from "./chart.js";
import { byId, field, h, hide, list, part, show, toggle } from "./dom.js";
import { clock, count, many, span } from "./format.js";
import { menu } from "./menu.js";

/** How many pictures the small chart of a row covers: two minutes. */
const KEPT = 120;
/** How many it has room for at first. */
const LEAST = 30;
/** How long a row stays among the first ones after its pause, in ms: pauses of a second shall not make rows jump. */
const STAYS = 10_000;

const rows = list(byId("limiter-rows"), (limiter) => limiter.name, make, update);
const own = new WeakMap();
let places = new Map();

const word = (text) => h("b", { class: "word" }, text);
const until = (span_left, instant) => `${clock(instant)}, in ${span(span_left)}`;

function make(limiter) {
  const call = (action) => () => action(own.get(row).limiter);
  const figure = (name, label) => h("div", { class: name }, h("dt", {}, label), part("dd", name));
  const button = (name, text, action) => h("button", { type: "button", "data-action": name, "aria-label": `${text} (${limiter.name})`, on: { click: call(action) } }, `${text}…`);
  const note = (name, title, kind, ...more) => h("p", { class: `note ${kind}`, "data-field": name }, h("strong", {}, title), part("span", `${name}-what`), h("span", {}, word("until"), " ", part("span", `${name}-until`)), h("span", { class: "why" }, word("why"), " ", part("span", `${name}-why`)), ...more);
  const rates = h("ul", { class: "rates", "data-field": "level" });
  const chart = line(110, LEAST);
  const row = h(
    "li",
    { class: "row", "data-limiter": limiter.name },
    h("div", { class: "who" }, h("h3", {}, limiter.name), h("div", { class: "tags", "data-field": "tags" })),
    rates,
    h("dl", { class: "figures" }, figure("waiting", "Waiting"), figure("promised", "Slots ahead"), figure("last_slot", "Last slot in")),
    h("div", { class: "spark" }, chart.svg),
    menu(limiter.name, [
      button("pause", "Pause", actions.pause),
      button("observe", "Only observe", actions.observe),
      button("rate", "Set another rate", actions.rate),
      button("reset", "Reset", actions.reset),
      limiter.key ? button("keys", "List the keys", actions.keys) : null,
    ]),
    h("div", { class: "notes" },
      note("pause", "Paused", "held", button("resume", "Resume", actions.resume)),
      note("working", "Lowered", "held"),
      note("override", "Override", "info", button("end", "End it", actions.endOverride)),
      note("closed", "Closed", "bad"),
      part("p", "error", { class: "note bad" })),
  );
  const draw_rates = list(rates, (rate) => rate.number, (rate) => make_rate(limiter, rate), update_rate);
  own.set(row, { limiter, chart, draw_rates, history: [] });
  return row;
}

// === its rates

/** The rates of a limiter, each with its level if there is one for all. */
function rates_of(limiter) {
  const all = limiter.levels ?? [limiter.rate ?? `${limiter.limit} at a time`].flat().map((rate) => ({ ...limiter, rate }));
  return all.map((rate, number) => ({ ...rate, number, key: limiter.key, is_lease: limiter.lease_ms != null, closed: Math.max(limiter.paused_ms ?? 0, limiter.closed_ms ?? 0) }));
}

function make_rate(limiter, rate) {
  const meter = h("div", { class: "bar", role: "meter", "aria-label": `free permits of ${limiter.name}, ${rate.rate}`, "aria-valuemin": "0" }, h("span"));
  return h("li", {}, h("span", { class: "written" }, part("span", "rate"), part("span", "works", { class: "works" })), meter, h("span", { class: "free" }, part("span", "free"), h("span", { class: "label" }, " free")), h("span", { class: "next" }, h("span", { class: "label" }, "next slot "), part("span", "next")));
}

function update_rate(node, { rate, working_rate: works, level, limit, next_slot_ms, key, is_lease, closed }) {
  show(field(node, "rate"), rate);
  show(field(node, "works"), works == null ? "" : `works at ${works}`, works);
  const meter = node.querySelector(".bar");
  toggle(meter, "none", level == null);
  const part = level != null && limit > 0 ? Math.max(0, Math.min(1, level / limit)) : 0;
  meter.firstChild.style.width = `${part * 100}%`;
  meter.setAttribute("aria-valuemax", limit ?? 0);
  meter.setAttribute("aria-valuenow", Math.max(0, Math.min(limit ?? 0, level ?? 0)));
  toggle(meter, "low", part < 0.2);
  const free = level == null ? (key ? "for each key" : "not known") : `${count(level)} of ${count(limit)}`;
  show(field(node, "free"), free, level);
  hide(node.querySelector(".free .label"), level == null);
  // A pause by an operator is not in the level.
  const next = closed ? Math.max(closed, next_slot_ms ?? 0) : next_slot_ms;
  // The time until a concurrency permit is free is not known.
  const known = level != null && next != null && !(is_lease && level <= 0 && !closed);
  show(field(node, "next"), !known ? "–" : next > 0 && (closed || !is_lease) ? `in ${span(next)}` : "now", next);
}

// === the row

function tags(limiter) {
  const all = [[limiter.algorithm.replaceAll("_", " "), ""]];
  if (limiter.mode !== "enforce") all.push([limiter.mode === "observe" ? "only observes" : limiter.mode, limiter.mode === "observe" ? "info" : "held"]);
  if (limiter.key) all.push([`for each ${limiter.key}`, ""]);
  if (limiter.scope !== "cluster") all.push([limiter.scope, ""]);
  if (limiter.next_reset) all.push([`resets ${limiter.next_reset}`, ""]);
  if (limiter.used_up_at) all.push([`used up ${clock(limiter.used_up_at)}`, "held"]);
  if (limiter.spread) all.push(["flows evenly", ""]);
  if (limiter.auto) all.push(["learns", "info"]);
  if (limiter.share) all.push([`share of ${limiter.share.gateways}`, "held"]);
  return all;
}

function update(row, limiter) {
  const state = own.get(row);
  draw_waiting(row, state, limiter.waiting);
  // Most of 200 limiters are idle.
  const known = JSON.stringify([limiter, actions.mayChange()]);
  if (state.known === known) return;
  Object.assign(state, { limiter, known });
  const set = (name, text, ...value) => show(field(row, name), text, ...value);
  const named = tags(limiter);
  const place = field(row, "tags");
  const text = JSON.stringify(named);
  if (place.dataset.value !== text) {
    place.dataset.value = text;
    place.replaceChildren(...named.map(([name, kind]) => h("span", { class: `tag ${kind}` }, name)));
  }
  const rates = rates_of(limiter);
  field(row, "level").dataset.value = limiter.level ?? "";
  state.draw_rates(rates);
  set("promised", count(limiter.promised), limiter.promised);
  set("last_slot", span(limiter.last_slot_ms), limiter.last_slot_ms);
  set("waiting", count(limiter.waiting), limiter.waiting);
  update_notes(row, limiter, rates, set);
  for (const button of row.querySelectorAll("[data-action]")) {
    const isFree = button.dataset.action === "keys" || actions.mayChange();
    button.disabled = !isFree;
    button.title = isFree ? "" : actions.whyNot();
  }
  set("why-not", actions.mayChange() ? "" : `${actions.whyNot()}.`);
  hide(row.querySelector('[data-action="reset"]'), limiter.key != null);
  hide(row.querySelector('[data-action="rate"]'), limiter.rate == null);
}

function draw_waiting(row, { history, chart }, waiting) {
  history.push(waiting);
  if (history.length > KEPT) history.shift();
  const most = Math.max(...history);
  toggle(row, "idle", most === 0);
  if (most) chart.draw(history, `waiting requests in the last two minutes: at most ${most}, now ${waiting}`);
}

function update_notes(row, limiter, rates, set) {
  const { override } = limiter;
  const note = (name, is, what, until, why) => {
    hide(field(row, name), !is);
    if (is) [["what", what()], ["until", until()], ["why", why()]].forEach(([own, text]) => set(`${name}-${own}`, text));
  };
  const isPaused = limiter.paused_ms != null;
  note("pause", isPaused, () => (limiter.key && !override?.pause ? "for a key" : ""), () => until(limiter.paused_ms, limiter.paused_until), () => limiter.pause_reason);
  hide(row.querySelector('[data-action="resume"]'), limiter.key != null && !override?.pause);
  const lowered = rates.filter((rate) => rate.working_rate != null);
  const first = lowered[0]?.working_since ? lowered[0] : limiter;
  note("working", lowered.length > 0, () => `to ${lowered.map((rate) => `${rate.working_rate} instead of ${rate.rate}`).join(" and ")}, from ${clock(first.working_since)}`, () => `it has climbed back to ${lowered.map((rate) => rate.rate).join(" and ")} by itself`, () => first.working_reason);
  // A pause by an operator has its own note.
  const changed = override && (override.rate || override.mode);
  note("override", Boolean(changed), () => [override.rate && `rate ${[override.rate].flat().join(", ")}`, override.mode && `mode ${override.mode}`, override.applied === false && `not in force: ${override.why}`].filter(Boolean).join(", "), () => until(override.left_ms, override.until), () => `${override.reason}, by ${override.by}`);
  note("closed", limiter.closed_ms != null, () => "", () => until(limiter.closed_ms, limiter.closed_until), () => limiter.closed_reason);
  set("error", limiter.error ?? "");
  hide(field(row, "error"), !limiter.error);
  toggle(row, "paused", isPaused);
  toggle(row, "lowered", lowered.length > 0);
  toggle(row, "failed", limiter.error != null || limiter.closed_ms != null);
}

// === their order, and which are shown

/** 0 for what grants nothing, 1 for what grants less or other than the file says, 2 for the rest. */
function urgency(limiter) {
  if (limiter.paused_ms != null || limiter.closed_ms != null || limiter.error) return 0;
  return limiter.working_rate != null || limiter.override ? 1 : 2;
}

function sort(limiters) {
  const before = places;
  const now = Date.now();
  // A row that moves would close the menu that is open on it.
  const isStill = document.querySelector(".menu:popover-open") != null;
  places = new Map(limiters.map((limiter) => {
    const [kept, rank] = [before.get(limiter.name), urgency(limiter)];
    return [limiter.name, kept && (isStill || (rank > kept.rank && now - kept.at < STAYS)) ? kept : { rank, at: now }];
  }));
  return limiters.toSorted((a, b) => places.get(a.name).rank - places.get(b.name).rank);
}

const SHOWN = {
  "": () => true,
  lowered: (limiter) => urgency(limiter) < 2,
  waiting: (limiter) => limiter.waiting > 0 || limiter.promised > 0,
  used: (limiter) => limiter.level != null && limiter.level <= 0,
  override: (limiter) => limiter.override != null,
};

export function draw(picture) {
  const { limiters, limiters_total: total } = picture;
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (limiter) => [limiter.name, limiter.algorithm, limiter.key, limiter.mode, limiter.rate].flat().join(" ").toLowerCase();
  const is_shown = SHOWN[byId("filter-state").value];
  const all = sort(limiters).filter((limiter) => is_shown(limiter) && words.every((word) => text(limiter).includes(word)));
  rows(all);
  const isFiltered = all.length < limiters.length;
  const known = total > limiters.length ? `${limiters.length} of ${total}, those that hold requests first` : many(total, "limiter");
  show(document.querySelector('[data-field="limiters-note"]'), isFiltered ? `${all.length} shown of ${known}` : known, total);
  hide(document.querySelector("#limiters .filters"), limiters.length < 9 && !isFiltered);
  hide(document.querySelector("#limiters .rows"), all.length === 0);
  hide(byId("no-limiter"), total > 0);
  hide(byId("no-match"), all.length > 0 || total === 0);
}
