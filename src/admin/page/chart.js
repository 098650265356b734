// Small charts as SVG: stacked areas, and lines. Each has a sentence for screen readers.

import { h } from "./dom.js";

const HEIGHT = 34;
/** The least number of columns, a minute: the history of a new process fills the chart all the same. */
const LEAST = 12;

/** Stacked columns of several series, the first one at the bottom. `classes` name their colours. */
export function stacked(classes, width = 180, height = HEIGHT) {
  const paths = classes.map((name) => h("path", { class: name }));
  const svg = h("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "nothing to draw yet" }, ...paths);
  return {
    svg,
    /** `top` is the value at the upper edge: by default the highest column. */
    draw(series, sentence, top) {
      const length = series[0].length;
      const sums = series[0].map((_, i) => series.reduce((sum, own) => sum + own[i], 0));
      const most = top ?? Math.max(1, ...sums);
      const base = new Array(length).fill(0);
      const step = width / Math.max(length, LEAST);
      const start = width - length * step;
      series.forEach((own, number) => {
        let d = "";
        for (let i = 0; i < length; i++) {
          if (!own[i]) continue;
          const from = height - (base[i] / most) * height;
          base[i] += own[i];
          const to = height - (base[i] / most) * height;
          const x = (start + i * step).toFixed(1);
          d += `M${x} ${from.toFixed(1)}V${Math.min(to, from - 0.6).toFixed(1)}h${(step * 0.92).toFixed(2)}V${from.toFixed(1)}z`;
        }
        paths[number].setAttribute("d", d);
      });
      svg.setAttribute("aria-label", sentence);
    },
  };
}

/** A line over an area, and a second line below it where `draw` gets one. Values that are null count as 0; it has room for `least`. */
export function line(width = 180, least = LEAST) {
  const area = h("path", { class: "area" });
  const stroke = h("path", { class: "line" });
  const second = h("path", { class: "line low" });
  const svg = h("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "nothing to draw yet" }, area, stroke, second);
  return {
    svg,
    draw(values, sentence, low = []) {
      const most = Math.max(1e-9, ...values.map((value) => value ?? 0));
      const step = width / (Math.max(least, values.length) - 1);
      const start = width - (values.length - 1) * step;
      const place = (value, i) => `${(start + i * step).toFixed(1)} ${(HEIGHT - 1.5 - ((value ?? 0) / most) * (HEIGHT - 3)).toFixed(1)}`;
      const points = values.map(place);
      stroke.setAttribute("d", points.length ? `M${points.join("L")}` : "");
      second.setAttribute("d", low.length ? `M${low.map(place).join("L")}` : "");
      area.setAttribute("d", points.length ? `M${start.toFixed(1)} ${HEIGHT}L${points.join("L")}V${HEIGHT}z` : "");
      svg.setAttribute("aria-label", sentence);
    },
  };
}
