// The points of the last 15 minutes: fetched once, then continued by the pictures.

import { call } from "./client.js";

const POINTS = 180;

/** The points of the things that `page` lists, such as `/routes`, under `name`. */
export function series(page, name) {
  let tick = null;
  let fetching = false;
  const points = new Map();

  async function fetchAll() {
    if (fetching) return;
    fetching = true;
    try {
      const said = await call("GET", page);
      points.clear();
      for (const one of said[name]) points.set(one.name, one.points);
      tick = said.tick;
    } catch {
      // The next picture tries again.
    }
    fetching = false;
  }

  /** Adds the last tick of a picture. True if there is something new to draw. */
  return {
    points,
    follow(picture) {
      if (picture.tick === tick) return false;
      if (tick === null || picture.tick !== tick + 1 || picture[name].some((one) => !points.has(one.name))) {
        fetchAll();
        return false;
      }
      tick = picture.tick;
      for (const one of picture[name]) {
        const own = points.get(one.name);
        const add = (column, value) => {
          own[column].push(value);
          if (own[column].length > POINTS) own[column].shift();
        };
        for (const [column, value] of Object.entries(one.last_tick)) add(column, value);
        add("p50_ms", one.p50_ms);
        add("p99_ms", one.p99_ms);
      }
      return true;
    },
  };
}
