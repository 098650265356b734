// The changes that operators make. Each has a reason and an undo: an override is removed or set back, and a reset or a reload
// waits some seconds in which it can be cancelled.

import { call, limiterPath, token } from "./client.js";
import { byId, h, hide, label, show } from "./dom.js";
import { span } from "./format.js";

/** How long a change waits that cannot be taken back. */
const GRACE = 5000;
/** How long a message stays. */
const STAYS = 12_000;

let access = { needs_token: false, has_token: false, may_change: false };

export const mayChange = () => access.may_change;
export const whyNot = () => (access.needs_token ? "Enter the token first" : "Without admin.token, only a browser on the gateway's own host may change anything");

export function setAccess(said) {
  access = said;
  const button = byId("access");
  const wrong = said.needs_token && token.get() && !said.has_token;
  button.textContent = said.has_token ? "Forget the token" : wrong ? "Wrong token: enter it again…" : "Enter the token…";
  hide(button, !said.needs_token);
  const note = byId("access-note");
  hide(note, said.may_change || said.needs_token);
  note.title = whyNot();
  if (wrong) token.set("");
}

// === messages

function toast(text, { kind = "", undo, stays = STAYS } = {}) {
  const close = () => (clearTimeout(timer), node.remove());
  const button = undo && h("button", { type: "button", "data-action": "undo", on: { click: () => (close(), undo()) } }, "Undo");
  const node = h("div", { class: `toast ${kind}` }, h("span", {}, text), button);
  const timer = setTimeout(close, stays);
  byId("toasts").append(node);
  return close;
}

const fails = (error) => toast(error.message, { kind: "bad" });

// === the dialog

const dialog = byId("change");
const form = dialog.querySelector("form");
let submit = null;

/** Asks for the fields of a change. `send` makes it; an error stays in the dialog. */
function ask({ title, text, fields, ok, values = {}, send }) {
  show(byId("change-title"), title);
  show(byId("change-text"), text);
  show(byId("change-ok"), ok);
  show(byId("change-error"), "");
  for (const name of ["rate", "for", "reason", "token"]) {
    hide(byId(`change-${name}`), !fields.includes(name));
    form.elements[name].required = fields.includes(name);
    form.elements[name].value = values[name] ?? "";
  }
  submit = send;
  if (!dialog.open) dialog.showModal();
  form.elements[fields[0]].focus();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const ok = byId("change-ok");
  ok.disabled = true;
  try {
    await submit(Object.fromEntries(new FormData(form)));
    dialog.close();
  } catch (error) {
    show(byId("change-error"), error.message);
  }
  ok.disabled = false;
});
byId("change-cancel").addEventListener("click", () => dialog.close());

export function askToken(done) {
  ask({
    title: "The token of the admin side",
    text: "`admin.token` of the configuration. It is kept in this tab alone, until the tab is closed.",
    fields: ["token"],
    ok: "Use it",
    async send({ token: text }) {
      token.set(text.trim());
      const said = await call("GET", "/access").catch((error) => (error.status === 401 ? { has_token: false } : Promise.reject(error)));
      if (!said.has_token) {
        token.set("");
        throw new Error("this is not the token");
      }
      done();
    },
  });
}

// === overrides

/** The body that sets an override again for the rest of its time. */
function again(override) {
  const { rate, mode, pause, limiting, reason, left_ms } = override;
  return { ...(rate && { rate }), ...(mode && { mode }), ...(pause && { pause }), ...(limiting && { limiting }), for: `${Math.max(1, Math.round(left_ms))}ms`, reason };
}

const because = (reason) => `?reason=${encodeURIComponent(reason)}`;

/** Changes what `path` overrides to `body`, or removes it, and offers the state before. */
async function change(path, body, before, reason, said) {
  await put(path, body, before, reason);
  const undo = () => put(path, before && again(before), body, `undo: ${reason}`).then(() => toast("It is as it was before."), fails);
  toast(said, { undo });
}

/** Puts `body` in the place of the override `before`; null for none. */
async function put(path, body, before, reason) {
  // A limiter that only observes cannot be paused, so that its mode ends first.
  if (!body || (body.pause && before?.mode)) await call("DELETE", path + because(reason));
  if (body) await call("PUT", path, body);
}

function override(limiter, { title, text, fields = ["for", "reason"], ok, values = {}, body, said }) {
  const replaced = limiter.override ? ` It replaces the override that the limiter has (${limiter.override.reason}).` : "";
  ask({
    title,
    text: text + replaced,
    fields,
    ok,
    values: { for: "10m", ...values },
    send: (given) => change(limiterPath(limiter.name, "/override"), { ...body(given), for: given.for, reason: given.reason }, limiter.override, given.reason, said(given)),
  });
}

export const pause = (limiter) =>
  override(limiter, {
    title: `Pause ${limiter.name}`,
    text: "It grants nothing on all gateways. Requests that may wait do so, the others are answered 429 with a true Retry-After.",
    ok: "Pause it",
    body: () => ({ pause: true }),
    said: (given) => `${limiter.name} is paused for ${given.for}.`,
  });

export const observe = (limiter) =>
  override(limiter, {
    title: `Only observe ${limiter.name}`,
    text: "It counts and holds nothing on all gateways, so that requests can exceed the vendor's quota.",
    ok: "Observe",
    body: () => ({ mode: "observe" }),
    said: (given) => `${limiter.name} only observes for ${given.for}.`,
  });

export const rate = (limiter) =>
  override(limiter, {
    title: `Another rate for ${limiter.name}`,
    text: `Its rate is ${[limiter.rate].flat().join(", ")}. The new one holds on all gateways.`,
    fields: ["rate", "for", "reason"],
    ok: "Set the rate",
    values: { rate: [limiter.rate].flat().join(", ") },
    body: (given) => {
      const rates = given.rate.split(",").map((one) => one.trim()).filter(Boolean);
      return { rate: rates.length === 1 ? rates[0] : rates };
    },
    said: (given) => `${limiter.name} has the rate ${given.rate} for ${given.for}.`,
  });

export const endOverride = (limiter) =>
  ask({
    title: `End the override of ${limiter.name}`,
    text: `It was set by ${limiter.override.by} (${limiter.override.reason}) and has ${span(limiter.override.left_ms)} left.`,
    fields: ["reason"],
    ok: "End it",
    send: (given) => change(limiterPath(limiter.name, "/override"), null, limiter.override, given.reason, `The override of ${limiter.name} has ended.`),
  });

/** Ends the pause of an operator, or the one that the upstream's refusals caused. */
export function resume(limiter) {
  if (limiter.override?.pause) {
    return ask({
      title: `Resume ${limiter.name}`,
      text: `It was paused by ${limiter.override.by} (${limiter.override.reason}).`,
      fields: ["reason"],
      ok: "Resume it",
      send: (given) => change(limiterPath(limiter.name, "/override"), null, limiter.override, given.reason, `${limiter.name} grants again.`),
    });
  }
  later(limiter, `Resume ${limiter.name}`, `It is paused because ${limiter.pause_reason}. Resuming resets the limiter, so that its whole burst can be taken at once.`, "Resume it");
}

export const reset = (limiter) =>
  later(limiter, `Reset ${limiter.name}`, "It forgets the permits that were taken, and a pause, so that its whole burst can be taken at once. What it knew cannot be restored.", "Reset it");

function later(limiter, title, text, ok) {
  ask({ title, text, fields: ["reason"], ok, send: async (given) => grace(`${limiter.name} is reset in 5 s.`, () => call("DELETE", limiterPath(limiter.name) + because(given.reason)), `${limiter.name} is reset.`) });
}

/** Makes a change after some seconds, unless the operator takes it back. */
function grace(announced, make, done) {
  const timer = setTimeout(() => make().then((said) => toast(typeof done === "function" ? done(said) : done), fails), GRACE);
  toast(announced, { undo: () => (clearTimeout(timer), toast("Nothing was changed.")), stays: GRACE });
}

export const reload = () =>
  ask({
    title: "Reload the configuration",
    text: "The gateway reads its file again. An invalid file changes nothing.",
    fields: ["reason"],
    ok: "Reload",
    send: async (given) =>
      grace("The configuration is read again in 5 s.", () => call("POST", `/reload${because(given.reason)}`), (said) => (said.changed ? `The configuration has changed: ${said.hash}.` : "The file was read again; nothing has changed.")),
  });

// === limiting as a whole

export function drawLimiting({ limiting: isOn, limiting_override: override }) {
  const button = byId("limiting");
  hide(button, false);
  // To end an override is to switch it back.
  const text = `Switch limiting ${isOn ? "off" : "on"}${override ? " again" : ""}…`;
  show(button, text, isOn);
  button.disabled = !mayChange();
  button.title = mayChange() ? "" : whyNot();
}

export function limiting({ limiting: isOn, limiting_override: before }) {
  if (before) {
    return ask({
      title: "End the override of limiting",
      text: `It was set by ${before.by} (${before.reason}).`,
      fields: ["reason"],
      ok: "End it",
      send: (given) => change("/limiting", null, before, given.reason, "Limiting is as the file says."),
    });
  }
  const wanted = isOn ? "off" : "on";
  ask({
    title: `Switch limiting ${wanted}`,
    text: isOn ? "No limiter holds or refuses anything, on all gateways." : "All limiters of the file decide again.",
    fields: ["for", "reason"],
    ok: `Switch it ${wanted}`,
    values: { for: "10m" },
    send: (given) => change("/limiting", { limiting: wanted, for: given.for, reason: given.reason }, null, given.reason, `Limiting is ${wanted} for ${given.for}.`),
  });
}

// === keys of a limiter

const sheet = h("dialog", { "aria-labelledby": "sheet-title" });
document.body.append(sheet);

/** Lists the keys of a limiter that are in use, each with a reset. */
export async function keys(limiter) {
  const body = h("tbody");
  const note = h("p", { class: "muted", role: "status" }, "looking…");
  const table = h("table", {}, h("thead", {}, h("tr", {}, ...["Key", "Level", "Waiting", ""].map((name) => h("th", { scope: "col" }, name || h("span", { class: "hidden" }, "Reset"))))), body);
  const close = h("button", { type: "button", class: "main", on: { click: () => sheet.close() } }, "Close");
  sheet.replaceChildren(h("h2", { id: "sheet-title" }, `Keys of ${limiter.name}`), note, h("div", { class: "table tall", tabindex: "0", role: "region", "aria-label": "Table of keys in use" }, table), h("p", { class: "buttons" }, close));
  sheet.showModal();
  close.focus();
  try {
    const said = await call("GET", limiterPath(limiter.name, "/keys?limit=100"));
    note.textContent = `${said.keys.length} of ${said.examined} keys that were looked at${said.complete ? "" : "; there are more"}, those with the most waiting requests first`;
    body.append(...said.keys.map((key) => keyRow(limiter, key)));
    for (const row of body.rows) label(row, body);
  } catch (error) {
    note.textContent = error.message;
  }
}

function keyRow(limiter, key) {
  // A hashed key comes as it is written in a URL.
  const path = limiterPath(limiter.name, `/keys/${key.key.replace(/[^\w.~%!$&'()*+,;=:@-]/gu, encodeURIComponent)}`);
  const button = h("button", { type: "button", "aria-label": `Reset ${key.key}`, disabled: !mayChange(), title: mayChange() ? "" : whyNot() }, "Reset…");
  button.addEventListener("click", () => {
    sheet.close();
    ask({ title: `Reset the key ${key.key}`, text: `It forgets the permits that were taken at ${limiter.name}.`, fields: ["reason"], ok: "Reset it", send: async (given) => grace(`The key ${key.key} is reset in 5 s.`, () => call("DELETE", path + because(given.reason)), `The key ${key.key} is reset.`) });
  });
  return h("tr", {}, h("th", { scope: "row", class: "mono wrap" }, key.key), h("td", {}, String(key.level ?? "–")), h("td", {}, String(key.waiting)), h("td", {}, button));
}
