// The calls of the admin side, and its stream of events. The token is kept for this tab alone.

const TOKEN = "paceway-token";

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (text) => (text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN)),
};

function headers() {
  const own = token.get();
  return own ? { Authorization: `Bearer ${own}` } : {};
}

/** An answer that is an error, with the sentence that says what to do. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function refusal(response) {
  const problem = await response.json().catch(() => ({}));
  return new Refused(response.status, problem.detail ?? `the gateway answered ${response.status}`);
}

/** Makes a call, and returns its JSON. */
export async function call(method, path, body) {
  const response = await fetch(path, {
    method,
    headers: { ...headers(), ...(body ? { "Content-Type": "application/json" } : {}) },
    body: body ? JSON.stringify(body) : undefined,
    cache: "no-store",
  });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** The path of a limiter, or of a page below it. */
export const limiterPath = (name, page = "") => `/limiters/${encodeURIComponent(name)}${page}`;

/**
 * Follows the gateway until `signal` ends it: `EventSource` cannot send a token. `on.status` gets each picture, `on.lost` each
 * end of the stream with the reason.
 */
export async function follow(on, signal) {
  for (let failures = 0; !signal.aborted; ) {
    try {
      const response = await fetch("/events", { headers: headers(), signal, cache: "no-store" });
      if (!response.ok) throw await refusal(response);
      for await (const data of events(response.body)) {
        failures = 0;
        on.status(JSON.parse(data));
      }
      throw new Error("the stream has ended");
    } catch (error) {
      if (signal.aborted) return;
      on.lost(error);
      failures += 1;
    }
    await new Promise((resolve) => setTimeout(resolve, Math.min(500 * 2 ** failures, 10_000)));
  }
}

/** The data of each event of a stream. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data: "));
      if (data.length) yield data.map((line) => line.slice(6)).join("\n");
    }
  }
}
