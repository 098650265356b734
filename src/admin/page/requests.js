// The requests that were held or refused last.

import { byId, h, hide } from "./dom.js";
import { clock, span } from "./format.js";

const KINDS = { held: "held", refused: "bad", throttled: "bad", paused: "bad", queue_full: "bad", store_unavailable: "bad", draining: "bad" };
const nodes = new Map();

function row(request) {
  return h(
    "tr",
    { "data-request": request.id },
    h("td", {}, clock(request.at)),
    h("td", {}, h("span", { class: `tag ${KINDS[request.decision] ?? ""}` }, request.decision.replaceAll("_", " "))),
    h("th", { scope: "row" }, request.route),
    h("td", {}, request.limiter ?? "–"),
    h("td", { class: "mono" }, request.key ?? "–"),
    h("td", { class: "n" }, span(request.wait_ms ?? request.retry_after_ms)),
    h("td", { class: "wrap" }, request.why),
    h("td", { class: "mono" }, request.id),
  );
}

export function draw({ requests }) {
  const body = byId("request-rows");
  // A request never changes; the same one may be held twice.
  const names = requests.map((request) => `${request.at} ${request.id} ${request.decision}`);
  const left = new Set(nodes.keys());
  const all = requests.map((request, i) => {
    left.delete(names[i]);
    if (!nodes.has(names[i])) nodes.set(names[i], row(request));
    return nodes.get(names[i]);
  });
  for (const name of left) nodes.delete(name);
  const isSame = body.children.length === all.length && all.every((node, i) => body.children[i] === node);
  if (!isSame) body.replaceChildren(...new Set(all));
  hide(document.querySelector("#requests .table"), requests.length === 0);
  hide(document.querySelector("#requests .empty"), requests.length > 0);
}
