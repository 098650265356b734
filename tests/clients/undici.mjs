// Calls of undici, node's own HTTP client, through a gateway before an origin that tells what it got as JSON.
//
//     node undici.mjs URL [CA_FILE]    over https with HTTP/2 as well
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { Readable } from 'node:stream';
const { Agent, Client, fetch, request } = createRequire(process.env.CLIENTS + '/')('undici');

const [url, ca] = process.argv.slice(2);
const tls = ca ? { ca: readFileSync(ca) } : {};
const seen = (what) => console.log('seen:', what);

async function calls(dispatcher, name) {
  const answers = await Promise.all(
    Array.from({ length: 100 }, (_, i) => fetch(`${url}/n?i=${i}`, { dispatcher }).then((a) => a.json())),
  );
  answers.forEach((got, i) => assert.equal(got.target, `/n?i=${i}`));
  seen(`${name}: 100 calls of fetch at once, each with its own answer`);

  const stream = Readable.from((function* () { for (let i = 0; i < 1000; i++) yield Buffer.from(`piece ${i};`); })());
  const upload = await request(`${url}/stream`, { dispatcher, method: 'POST', body: stream });
  const body = (await upload.body.json()).body;
  assert.equal(body, Array.from({ length: 1000 }, (_, i) => `piece ${i};`).join(''));
  seen(`${name}: a streamed upload`);

  const abort = new AbortController();
  const left = request(`${url}/never`, { dispatcher, signal: abort.signal });
  setTimeout(() => abort.abort(), 100);
  await assert.rejects(left, { name: 'AbortError' });
  const after = await request(`${url}/after`, { dispatcher });
  assert.equal((await after.body.json()).target, '/after');
  seen(`${name}: an aborted call and one after it`);
}

const agent = new Agent({ connect: tls, connections: 8 });
await calls(agent, 'HTTP/1.1');
await agent.close();

const client = new Client(url, { pipelining: 10, connect: tls });
const pipelined = await Promise.all(
  Array.from({ length: 50 }, (_, i) => client.request({ path: `/p?i=${i}`, method: 'GET' }).then((a) => a.body.json())),
);
pipelined.forEach((got, i) => assert.equal(got.target, `/p?i=${i}`));
await client.close();
seen('HTTP/1.1: 50 pipelined calls in their order');

if (ca) {
  const h2 = new Agent({ connect: tls, allowH2: true });
  await calls(h2, 'HTTP/2');
  await h2.close();
}
