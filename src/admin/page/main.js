// The page: follows the gateway, and gives each picture to the panels.

import { call, follow, token } from "./client.js";
import { byId, field, hide, show, toggle } from "./dom.js";
import { count } from "./format.js";
import * as actions from "./actions.js";
import * as config from "./config.js";
import * as keys from "./keys.js";
import * as limiters from "./limiters.js";
import * as requests from "./requests.js";
import * as routes from "./routes.js";
import * as store from "./store.js";
import * as summary from "./summary.js";
import * as tenants from "./tenants.js";
import * as upstreams from "./upstreams.js";

const panels = [limiters, routes, upstreams, keys, tenants, store, requests, config];
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
  const error = picture.config.error;
  notice(
    away ? `The store is away: ${picture.store.why ?? "it does not answer"}. Limiters decide by their on_failure.`
      : error ? "The last reload failed, and the configuration before it stays in use. The mistakes are listed below." : "",
    away,
  );
  // The instant of the picture that the page shows.
  document.documentElement.dataset.at = picture.at;
}

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
  const button = byId("theme");
  button.textContent = name[0].toUpperCase() + name.slice(1);
  button.title = `Colours: ${name === "auto" ? "as the system" : name}`;
  localStorage.setItem("paceway-theme", name);
}
theme(THEMES.find((name) => name === localStorage.getItem("paceway-theme")) ?? "auto");
byId("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
byId("access").addEventListener("click", () => {
  if (!token.get()) return actions.askToken(start);
  token.set("");
  start();
});
byId("filter").addEventListener("input", () => latest && limiters.draw(latest));
byId("limiting").addEventListener("click", () => latest && actions.limiting(latest));
byId("reload").addEventListener("click", actions.reload);

// A stream that stalls says nothing.
setInterval(() => {
  if (latest && Date.now() - last > 5000) connection("lost", `no news for ${count(Math.round((Date.now() - last) / 1000))} s`);
}, 1000);

start();
