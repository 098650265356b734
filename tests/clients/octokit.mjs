// Calls a gateway with GitHub's own SDK, and prints how each call ended as a line of JSON.
//
//     node octokit.mjs URL RETRIES...    a call for each RETRIES: whether the SDK may wait and send it once more (1) or not (0)
import { pathToFileURL } from 'node:url';
const { Octokit } = await import(pathToFileURL(`${process.env.CLIENTS}/node_modules/octokit/dist-bundle/index.js`));

const [baseUrl, ...retries] = process.argv.slice(2);
const waits = [];
for (const most of retries) {
  const wait = (kind) => (seconds, options, octokit, count) => {
    waits.push({ kind, seconds });
    return count < Number(most);
  };
  const octokit = new Octokit({
    baseUrl,
    log: { debug() {}, info() {}, warn() {}, error() {} },
    throttle: { onRateLimit: wait('primary'), onSecondaryRateLimit: wait('secondary') },
    // The plugin that retries every failure after 1, 4 and 9 seconds, whatever the answer says.
    retry: { enabled: false },
  });
  const started = Date.now();
  let ended = { error: null };
  try {
    await octokit.rest.repos.get({ owner: 'a', repo: 'b' });
  } catch (error) {
    ended = { error: error.name, status: error.status, message: error.message, data: error.response?.data };
  }
  console.log(JSON.stringify({ ...ended, waits: waits.splice(0), seconds: (Date.now() - started) / 1000 }));
}
