// Small charts as SVG: stacked areas, and lines. Each has a sentence for screen readers.

import { h } from "./dom.js";

const HEIGHT = 34;

/** Stacked columns of several series, the first one at the bottom. `classes` name their colours. */
export function stacked(classes, width = 180) {
  const paths = classes.map((name) => h("path", { class: name }));
  const svg = h("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "nothing to draw yet" }, ...paths);
  return {
    svg,
    draw(series, sentence) {
      const length = series[0].length;
      let most = 1;
      for (let i = 0; i < length; i++) most = Math.max(most, series.reduce((sum, own) => sum + own[i], 0));
      const base = new Array(length).fill(0);
      const step = width / Math.max(length, 180);
      const start = width - length * step;
      series.forEach((own, number) => {
        let d = "";
        for (let i = 0; i < length; i++) {
          if (!own[i]) continue;
          const from = HEIGHT - (base[i] / most) * HEIGHT;
          base[i] += own[i];
          const to = HEIGHT - (base[i] / most) * HEIGHT;
          const x = (start + i * step).toFixed(1);
          d += `M${x} ${from.toFixed(1)}V${Math.min(to, from - 0.6).toFixed(1)}h${(step * 0.92).toFixed(2)}V${from.toFixed(1)}z`;
        }
        paths[number].setAttribute("d", d);
      });
      svg.setAttribute("aria-label", sentence);
    },
  };
}

/** A line over an area, and a second line below it where `draw` gets one. Values that are null count as 0. */
export function line(width = 180, length = 180) {
  const area = h("path", { class: "area" });
  const stroke = h("path", { class: "line" });
  const second = h("path", { class: "line low" });
  const svg = h("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "nothing to draw yet" }, area, stroke, second);
  return {
    svg,
    draw(values, sentence, low = []) {
      const most = Math.max(1e-9, ...values.map((value) => value ?? 0));
      const step = width / Math.max(1, length - 1);
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
