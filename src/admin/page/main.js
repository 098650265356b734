// The page: follows the gateway, and gives each picture to the panels.

import { call, follow, token } from "./client.js";
import { byId, field, hide, show, toggle } from "./dom.js";
import { clock, count } from "./format.js";
import * as actions from "./actions.js";
import * as config from "./config.js";
import * as keys from "./keys.js";
import * as limiters from "./limiters.js";
import * as requests from "./requests.js";
import * as routes from "./routes.js";
import * as store from "./store.js";
import * as summary from "./summary.js";
import * as tenants from "./tenants.js";
import * as timeline from "./timeline.js";
import * as upstreams from "./upstreams.js";

const panels = [limiters, routes, timeline, upstreams, keys, tenants, store, requests, config];
let following = new AbortController();
let latest = null;
let last = 0;

function draw(picture) {
  latest = picture;
  last = Date.now();
  connection("live", picture.draining ? "stopping" : "live");
  show(field(document, "version"), picture.version);
  summary.draw(picture);
  for (const panel of panels) panel.draw(picture);
  actions.drawLimiting(picture);
  const away = picture.store.up === false;
  const told = [
    away && `The store is away: ${picture.store.why ?? "it does not answer"}. Limiters decide by their on_failure.`,
    picture.config.error && "The last reload failed, and the configuration before it stays in use. The mistakes are listed below.",
    !picture.limiting && off(picture.limiting_override),
  ];
  notice(told.filter(Boolean).join(" "), away);
  // The instant of the picture that the page shows.
  document.documentElement.dataset.at = picture.at;
}

const off = (override) => `Limiting is off, and no limiter holds or refuses anything${override ? `, until ${clock(override.until)}; why: ${override.reason}` : "; why: the file says so"}.`;

function connection(state, text) {
  const node = document.querySelector(".state");
  toggle(node, "live", state === "live");
  toggle(node, "lost", state === "lost");
  show(field(node, "stream"), text);
}

function notice(text, isBad = true) {
  const node = byId("notice");
  if (node.textContent !== text) node.textContent = text;
  toggle(node, "bad", isBad);
  hide(node, text === "");
}

async function access() {
  try {
    actions.setAccess(await call("GET", "/access"));
  } catch (error) {
    // With `read: token`, this page needs the token as well.
    actions.setAccess({ needs_token: error.status === 401, has_token: false, may_change: false });
  }
  if (latest) for (const panel of panels) panel.draw(latest);
}

function start() {
  following.abort();
  following = new AbortController();
  connection("", "connecting");
  access();
  follow(
    {
      status: draw,
      lost(error) {
        connection("lost", error.status === 401 ? "the token is needed" : "not connected");
        notice(error.status ? `${error.message}.` : "The gateway does not answer. The figures are those of the last picture.");
        if (error.status === 401) actions.askToken(start);
      },
    },
    following.signal,
  );
}

const THEMES = ["auto", "light", "dark"];
function theme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").value = name;
  localStorage.setItem("paceway-theme", name);
}
theme(THEMES.find((name) => name === localStorage.getItem("paceway-theme")) ?? "auto");
byId("theme").addEventListener("input", () => theme(byId("theme").value));
byId("access").addEventListener("click", () => {
  if (!token.get()) return actions.askToken(start);
  token.set("");
  start();
});
for (const id of ["filter", "filter-state"]) byId(id).addEventListener("input", () => latest && limiters.draw(latest));
byId("show-all").addEventListener("click", () => {
  for (const id of ["filter", "filter-state"]) byId(id).value = "";
  byId("filter").focus();
  limiters.draw(latest);
});
byId("limiting").addEventListener("click", () => latest && actions.limiting(latest));
byId("reload").addEventListener("click", actions.reload);

// A stream that stalls says nothing.
setInterval(() => {
  if (latest && Date.now() - last > 5000) connection("lost", `no news for ${count(Math.round((Date.now() - last) / 1000))} s`);
}, 1000);

start();
