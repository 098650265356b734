// The requests of all routes over the last 15 minutes, or since the start: one wide chart with axes, and a tip for each column.

import { stacked } from "./chart.js";
import { byId, field, h, hide, show } from "./dom.js";
import { clock, count, covered, rate } from "./format.js";
import { history } from "./routes.js";

const [WIDTH, HEIGHT] = [1200, 150];
const KINDS = ["passed", "held", "refused"];
const NAMES = ["passed", "waited", "refused"];

const chart = stacked(KINDS, WIDTH, HEIGHT);
const plot = byId("plot");
chart.svg.removeAttribute("role");
chart.svg.setAttribute("aria-hidden", "true");
plot.prepend(chart.svg);

/** What is drawn: the columns of each kind, how many fit, the seconds of each, and the instant at which the last one ends. */
let drawn = { series: [[], [], []], columns: 1, tick_s: 5, end: 0, tick: null };
/** The column that the tip is about; null without a tip. */
let chosen = null;

/** The least of 1, 2 and 5 times a power of ten that is not below `value`. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= value * 0.999);
}

export function draw(picture) {
  for (const node of document.querySelectorAll(".covers")) show(node, covered(picture));
  const { routes, routes_total: total } = picture;
  const all = [...history.points.values()];
  const drawing = `${picture.tick} ${all.length}`;
  if (drawn.tick === drawing || !all.length) return;
  const length = Math.max(...all.map((points) => points.requests.length));
  const sum = (of) => Array.from({ length }, (_, i) => all.reduce((sum, points) => sum + of(points, i - length + points.requests.length), 0));
  const series = [sum((own, i) => Math.max(0, own.requests[i] - own.waited[i] - own.refused[i]) || 0), sum((own, i) => own.waited[i] || 0), sum((own, i) => own.refused[i] || 0)];
  // A minute at least, so that the first column of a new process is not as wide as the page.
  drawn = { series, columns: Math.max(length, 12), tick_s: picture.tick_s, end: Date.parse(picture.at), tick: drawing };
  const most = Math.max(...series[0].map((_, i) => series.reduce((sum, own) => sum + own[i], 0))) / drawn.tick_s;
  const top = nice(Math.max(most, 1));
  const [passed, waited, refused] = series.map((own) => count(own.reduce((sum, one) => sum + one, 0)));
  const sentence = `In ${covered(picture)}, ${passed} requests passed at once, ${waited} waited and ${refused} were refused; at most ${rate(most)} a second.`;
  chart.draw(series, sentence, top * drawn.tick_s);
  show(byId("timeline-summary"), sentence);
  show(document.querySelector('[data-field="timeline-note"]'), `${covered(picture) === "15 min" ? "the last 15 minutes" : `since the start ${covered(picture)} ago`}${routes.length < total ? `, the ${routes.length} busiest of ${total} routes` : ""}`);
  byId("plot-y").replaceChildren(...[top, top / 2, 0].map((value) => h("span", {}, value < 100 ? String(value) : count(value))));
  draw_times();
  tell(chosen);
}

new ResizeObserver(() => drawn.end && draw_times()).observe(plot);

/** The times of day below the chart, each at a round instant. */
function draw_times() {
  const span = drawn.columns * drawn.tick_s;
  const step = span <= 90 ? 15 : span <= 240 ? 60 : span <= 600 ? 120 : 300;
  const first = drawn.end / 1000 - span;
  const text = (at) => clock(at * 1000).slice(0, step < 60 ? 8 : 5);
  const times = [h("span", { class: "first" }, text(first)), h("span", { class: "last" }, "now")];
  // Labels that would touch those of the ends are left out.
  const room = ((step < 60 ? 85 : 60) / Math.max(170, plot.clientWidth)) * span;
  for (let at = Math.ceil((first + room) / step) * step; at < first + span - room; at += step) {
    const node = h("span", {}, text(at));
    node.style.left = `${((at - first) / span) * 100}%`;
    times.push(node);
  }
  byId("plot-x").replaceChildren(...times);
}

/** Shows the tip of a column, counted from the newest one; null hides it. */
function tell(back) {
  const length = drawn.series[0].length;
  chosen = back === null ? null : Math.max(0, Math.min(length - 1, back));
  hide(byId("tip"), chosen === null);
  hide(byId("cursor"), chosen === null);
  plot.setAttribute("aria-valuemin", String(1 - Math.max(1, length)));
  plot.setAttribute("aria-valuenow", String(-(chosen ?? 0)));
  if (chosen === null) return plot.setAttribute("aria-valuetext", byId("timeline-summary").textContent);
  const to = drawn.end - chosen * drawn.tick_s * 1000;
  const said = drawn.series.map((own, i) => [KINDS[i], `${rate(own[length - 1 - chosen] / drawn.tick_s)} ${NAMES[i]}`]);
  const time = `${clock(to - drawn.tick_s * 1000)} to ${clock(to)}`;
  byId("tip").replaceChildren(h("strong", {}, time), ...said.map(([kind, text]) => h("span", { class: kind }, text)), h("span", { class: "unit" }, "a second"));
  plot.setAttribute("aria-valuetext", `${time}: ${said.map(([, text]) => text).join(", ")} a second`);
  const place = 1 - (chosen + 0.5) / drawn.columns;
  byId("cursor").style.left = `${place * 100}%`;
  byId("tip").style.left = `${place * 100}%`;
  // To the side with more room.
  byId("tip").classList.toggle("left", place > 0.5);
}

function follow(event) {
  const { left, width } = plot.getBoundingClientRect();
  tell(Math.floor((1 - (event.clientX - left) / width) * drawn.columns));
}
plot.addEventListener("pointermove", follow);
plot.addEventListener("pointerdown", follow);
plot.addEventListener("pointerleave", () => tell(null));
plot.addEventListener("blur", () => tell(null));
plot.addEventListener("keydown", (event) => {
  const now = chosen ?? -1;
  const next = { ArrowLeft: now + 1, ArrowRight: now - 1, PageUp: now + 12, PageDown: now - 12, Home: Infinity, End: 0, Escape: null }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  tell(next);
});
