// Calls a vendor from a program that paces itself: each call asks Paceway first (docs/services/decisions.md).
//
//     node examples/decisions/acquire.mjs http://127.0.0.1:8084 search 8
//
// asks for 8 permits of the limiter `search` at once, and makes a pretend call for each when its slot has come. Node 18 or
// later is needed, and no package. PACEWAY_TOKEN has the token, if the service has one.

const [url, limiter, count] = process.argv.slice(2);
const headers = { "Content-Type": "application/json" };
if (process.env.PACEWAY_TOKEN) headers["Paceway-Token"] = process.env.PACEWAY_TOKEN;

async function ask(name, body, signal) {
  const answer = await fetch(`${url}/v1/${name}`, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!answer.ok) throw new Error(`${answer.status}: ${(await answer.json()).detail}`);
  return answer.json();
}

// Waits for permits of all limiters. An aborted `signal` closes the connection, which gives everything back.
const acquire = (limiters, maxWaitMs, signal) => ask("acquire", { limiters, wait: true, max_wait_ms: maxWaitMs }, signal);
const refund = (reservation) => ask("refund", { reservation });

async function callVendor(number) {
  return `answer ${number}`;
}

async function paced(number) {
  const decision = await acquire([{ limiter }], 2000);
  if (decision.limited) return `refused; come back in ${Math.round(decision.retry_after_ms)} ms`;
  try {
    return `${await callVendor(number)}, after ${Math.round(decision.waited_ms)} ms`;
  } catch (error) {
    // Nothing was sent, so that another call may have the permit.
    await refund(decision.reservation);
    throw error;
  }
}

for (const line of await Promise.all(Array.from({ length: Number(count) }, (_, number) => paced(number)))) console.log(line);
