// The requests that were held or refused last: they can be filtered, grouped, and held still.

import { byId, field, h, hide, list, part, show } from "./dom.js";
import { clock, count, many, span } from "./format.js";

const KINDS = { held: "held", refused: "bad", throttled: "bad", paused: "bad", queue_full: "bad", store_unavailable: "bad", draining: "bad" };
const rows = list(byId("request-rows"), (item) => item.name, (item) => (item.group == null ? make(item) : make_group(item)), (node, item) => item.group != null && update_group(node, item));
const open = new Set();
let newest = [];
/** The requests that the frozen list shows, and when it was frozen. */
let frozen = null;

const words = (decision) => decision.replaceAll("_", " ");
const time = (request) => request.wait_ms ?? request.retry_after_ms;

function make(request) {
  return h(
    "tr",
    { "data-request": request.id },
    h("td", {}, clock(request.at)),
    h("td", {}, h("span", { class: `tag ${KINDS[request.decision] ?? ""}` }, words(request.decision))),
    h("th", { scope: "row" }, request.route),
    h("td", { class: "wrap" }, request.limiter ?? "–"),
    h("td", { class: "mono wrap" }, request.key ?? "–"),
    h("td", { class: "n" }, span(time(request))),
    h("td", { class: "wrap" }, request.why),
    h("td", { class: "mono wrap" }, request.id),
  );
}

// === groups

function make_group({ group }) {
  const toggle = () => (open.delete(group) || open.add(group), redraw());
  const button = h("button", { type: "button", class: "quiet", on: { click: toggle } }, h("strong", {}, group), part("span", "sum", { class: "muted" }));
  return h("tr", { class: "group", "data-group": group }, h("th", { scope: "rowgroup", colspan: "8" }, button));
}

function update_group(node, { group, all }) {
  node.querySelector("button").setAttribute("aria-expanded", String(open.has(group)));
  const held = all.filter((request) => request.decision === "held").length;
  const longest = Math.max(0, ...all.map((request) => time(request) ?? 0));
  show(field(node, "sum"), `${many(all.length, "request")}, ${held} held, ${all.length - held} refused, longest ${span(longest)}, last at ${clock(all[0].at)}`, all.length);
}

/** A line for each value of `by`, those with the most requests first, with its requests below it if it is open. */
function grouped(requests, by) {
  const groups = new Map();
  for (const request of requests) {
    const group = by === "decision" ? words(request.decision) : (request[by] ?? `no ${by}`);
    groups.set(group, [...(groups.get(group) ?? []), request]);
  }
  const all = [...groups].sort(([, a], [, b]) => b.length - a.length);
  return all.flatMap(([group, own]) => [{ name: `group ${group}`, group, all: own }, ...(open.has(group) ? own : [])]);
}

// === the list

function redraw() {
  const all = frozen?.requests ?? newest;
  const [wanted, decision, by] = ["request-filter", "request-decision", "request-group"].map((id) => byId(id).value.trim());
  const parts = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const is_shown = (request) => {
    const text = [request.id, request.route, request.limiter, request.key, request.why, words(request.decision)].join(" ").toLowerCase();
    return (!decision || (request.decision === "held") === (decision === "held")) && parts.every((part) => text.includes(part));
  };
  const shown = all.filter(is_shown);
  rows(by ? grouped(shown, by) : shown);
  const missed = frozen && newest.filter((request) => request.at > (frozen.requests[0]?.at ?? "")).length;
  const note = frozen ? `frozen at ${clock(frozen.at)}, ${missed >= 50 ? "50 or more" : count(missed)} newer` : "the last 50 of this gateway";
  show(document.querySelector('[data-field="requests-note"]'), shown.length < all.length ? `${shown.length} shown of ${note}` : note, shown.length);
  show(byId("freeze"), frozen ? "Follow again" : "Freeze the list", frozen != null);
  hide(document.querySelector("#requests .filters"), all.length === 0);
  hide(document.querySelector("#requests .table"), shown.length === 0);
  hide(byId("no-request"), all.length > 0);
  hide(byId("no-such-request"), shown.length > 0 || all.length === 0);
}

export function draw({ at, requests }) {
  // A request never changes; the same one may be held twice.
  newest = [...new Map(requests.map((request) => [`${request.at} ${request.id} ${request.decision}`, request]))].map(([name, request]) => ({ ...request, name }));
  now = at;
  redraw();
}

let now = null;
byId("freeze").addEventListener("click", () => {
  frozen = frozen ? null : { requests: newest, at: now };
  redraw();
});
for (const id of ["request-filter", "request-decision", "request-group"]) byId(id).addEventListener("input", redraw);
