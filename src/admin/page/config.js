// The configuration that is in use, and its reloads.

import * as actions from "./actions.js";
import { byId, field, h, hide, list, part, show } from "./dom.js";
import { clock } from "./format.js";
import { facts } from "./facts.js";

const draw_facts = facts(byId("config-facts"));
const rows = list(
  byId("reload-rows"),
  (reload) => reload.at,
  (reload) => h("tr", {}, h("th", { scope: "row" }, clock(reload.at)), h("td", {}, h("span", { class: `tag ${reload.ok ? "good" : "bad"}` }, reload.ok ? (reload.changed ? "changed" : "nothing has changed") : "failed")), part("td", "said", { class: "mono wrap" })),
  (row, reload) => show(field(row, "said"), reload.hash ?? reload.error),
);

export function draw({ config, limiting }) {
  draw_facts([
    ["Hash", config.hash],
    ["Loaded", clock(config.loaded), config.loaded],
    ["Limiting", limiting ? "on" : "off"],
    ["Needs a restart", (config.needs_restart ?? []).join(", ")],
    ["Mistakes of the file", config.error],
  ]);
  field(byId("config-facts"), "Hash").classList.add("mono");
  rows(config.reloads);
  hide(byId("reloads"), config.reloads.length === 0);
  const button = byId("reload");
  button.disabled = !actions.mayChange();
  button.title = actions.mayChange() ? "" : actions.whyNot();
}
