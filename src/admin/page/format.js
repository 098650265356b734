// Figures as people read them.

/** A span in ms: `0 ms`, `812 ms`, `2.3 s`, `4 min`, `3.2 h`. */
export function span(ms) {
  if (ms == null) return "–";
  if (ms < 10) return `${Math.round(ms * 10) / 10} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 100_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 5_400_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  return `${Math.round(ms / 86_400_000)} days`;
}

/** A rate per second: `0`, `0.4`, `12.5`, `1,240`. */
export function rate(value) {
  if (value === 0) return "0";
  return value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

export const count = (value) => (value == null ? "–" : value.toLocaleString("en"));

/** The time of day of an instant, or its date if that is another day. */
export function clock(instant) {
  const at = new Date(instant);
  const today = at.toDateString() === new Date().toDateString();
  return today ? at.toLocaleTimeString("en-GB") : at.toISOString().slice(0, 19).replace("T", " ");
}

/** The time that the history covers: 15 minutes, or the time since the start. */
export function covered({ at, started }) {
  const seconds = Math.max(1, Math.round((Date.parse(at) - Date.parse(started)) / 1000));
  return seconds < 90 ? `${seconds} s` : `${Math.min(15, Math.round(seconds / 60))} min`;
}

/** One word or several: `1 request`, `3 requests`. */
export const many = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
