// A button that opens a menu of actions. The browser closes it on Escape and on a click elsewhere.

import { h, part } from "./dom.js";

let number = 0;

/** The button, and the menu with `buttons` below it. */
export function menu(name, buttons) {
  const id = `menu-${++number}`;
  const open = h("button", { type: "button", class: "open", popovertarget: id, "aria-label": `Actions for ${name}` }, "Actions");
  const body = h("div", { id, class: "menu", popover: "auto", role: "group", "aria-label": `Actions for ${name}` }, ...buttons, part("p", "why-not", { class: "muted small" }));
  body.addEventListener("beforetoggle", (event) => event.newState === "open" && place(body, open));
  body.addEventListener("toggle", (event) => event.newState === "open" && body.querySelector("button:enabled")?.focus({ preventScroll: true }));
  // The dialog of an action gives the focus back to the button, not to the menu.
  body.addEventListener("click", (event) => event.target.closest("button") && body.hidePopover(), { capture: true });
  body.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...body.querySelectorAll("button:enabled:not([hidden])")];
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length]?.focus();
  });
  return h("div", { class: "actions" }, open, body);
}

/** Below its button, or above it where the window ends. */
function place(body, button) {
  const { top, bottom, right } = button.getBoundingClientRect();
  const isAbove = bottom > innerHeight - 240;
  body.style.right = `${Math.max(8, document.documentElement.clientWidth - right)}px`;
  body.style.top = isAbove ? "auto" : `${bottom + 4}px`;
  body.style.bottom = isAbove ? `${innerHeight - top + 4}px` : "auto";
}

addEventListener("scroll", () => document.querySelector(".menu:popover-open")?.hidePopover(), { passive: true });
