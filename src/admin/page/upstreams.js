// A row for each upstream: its answers of the last 15 minutes, and its addresses. A row for each account.

import { stacked } from "./chart.js";
import { byId, field, h, hide, list, part, show } from "./dom.js";
import { count, many, rate, span } from "./format.js";
import { series } from "./series.js";

const history = series("/upstreams", "upstreams");
const rows = list(byId("upstream-rows"), (upstream) => upstream.name, make, update);
const charts = new WeakMap();

function make(upstream) {
  const answers = stacked(["passed", "held", "refused"]);
  const row = h(
    "tr",
    { "data-upstream": upstream.name },
    h("th", { scope: "row" }, upstream.name),
    h("td", {}, answers.svg),
    part("td", "rate", { class: "n" }),
    part("td", "p50", { class: "n" }),
    part("td", "p99", { class: "n" }),
    part("td", "status_429", { class: "n" }),
    part("td", "status_5xx", { class: "n" }),
    part("td", "ejections", { class: "n" }),
    h("td", { class: "wrap" }, h("div", { class: "tags", "data-field": "addresses" })),
  );
  charts.set(row, { answers, drawn: null });
  return row;
}

function update(row, upstream) {
  const set = (name, text, value) => show(field(row, name), text, value);
  set("rate", rate(upstream.per_second.answers), upstream.per_second.answers);
  set("p50", span(upstream.p50_ms), upstream.p50_ms);
  set("p99", span(upstream.p99_ms), upstream.p99_ms);
  set("status_429", count(upstream.last_15_min.status_429), upstream.last_15_min.status_429);
  set("status_5xx", count(upstream.last_15_min.status_5xx), upstream.last_15_min.status_5xx);
  set("ejections", count(upstream.ejections_total), upstream.ejections_total);
  addresses(field(row, "addresses"), upstream.addresses);
  const own = charts.get(row);
  const points = history.points.get(upstream.name);
  if (!points || own.drawn === row.closest("table").dataset.tick) return;
  own.drawn = row.closest("table").dataset.tick;
  const good = points.answers.map((all, i) => Math.max(0, all - points.status_429[i] - points.status_5xx[i]));
  const { answers, status_429, status_5xx } = upstream.last_15_min;
  own.answers.draw([good, points.status_429, points.status_5xx], `${many(answers, "answer")}, ${count(status_429)} with status 429, ${count(status_5xx)} with 5xx`);
}

const KINDS = { up: "good", ejected: "bad", down: "bad" };

function addresses(place, all) {
  // An ejected address counts down, every other one changes rarely.
  const text = all.map((one) => `${one.address} ${one.state}${one.ejected_ms == null ? "" : `, tried again in ${span(one.ejected_ms)}`}`);
  const value = JSON.stringify(text);
  if (place.dataset.value === value) return;
  place.dataset.value = value;
  if (!all.length) return place.replaceChildren(h("span", { class: "tag held" }, "no address is known"));
  place.replaceChildren(...all.slice(0, 12).map((one, i) => h("span", { class: `tag ${KINDS[one.state]}` }, text[i])), all.length > 12 ? h("span", { class: "tag" }, `and ${all.length - 12} more`) : "");
}

const MOST_ACCOUNTS = 100;
const STATES = { open: "good", paused: "held", tried: "held", parked: "bad" };

const accounts = list(
  byId("account-rows"),
  (row) => `${row.upstream} ${row.name}`,
  (row) => h("tr", { "data-account": row.name }, h("th", { scope: "row" }, row.upstream), h("td", { class: "wrap" }, row.name), part("td", "requests", { class: "n" }), h("td", { class: "wrap" }, part("span", "state"))),
  (node, row) => {
    show(field(node, "requests"), count(row.requests), row.requests);
    const state = field(node, "state");
    show(state, told(row), row.state);
    state.className = `tag ${STATES[row.state]}`;
  },
);

function told(account) {
  if (account.state === "parked") return `parked, ${span(account.parked_s * 1e3)} left: ${account.parked_reason}`;
  if (account.state === "tried") return "was parked, the next call tries it";
  return account.state === "paused" ? `paused, ${span(account.paused_s * 1e3)} left` : "open";
}

/** Those that are not open come first. */
function drawAccounts(upstreams) {
  const all = upstreams.flatMap((upstream) => (upstream.accounts ?? []).map((account) => ({ upstream: upstream.name, ...account })));
  accounts(all.sort((one, other) => (one.state === "open") - (other.state === "open")).slice(0, MOST_ACCOUNTS));
  hide(byId("accounts"), all.length === 0);
}

export function draw(picture) {
  history.follow(picture);
  byId("upstream-rows").closest("table").dataset.tick = `${picture.tick} ${history.points.size}`;
  rows(picture.upstreams);
  drawAccounts(picture.upstreams);
}
