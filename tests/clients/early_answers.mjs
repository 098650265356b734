// Posts bodies on the kept connections of node's own agent to a gateway that answers before it has read them, and prints
// the statuses and the errors of the requests as JSON.
//
//     node early_answers.mjs URL BYTES [chunked]
import http from 'node:http';

const [url, bytes, framing] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
const body = Buffer.alloc(Number(bytes), 'a');
const headers = framing ? { 'transfer-encoding': 'chunked' } : { 'content-length': body.length };
const [statuses, errors] = [[], []];

const post = () => new Promise((resolve) => {
  const request = http.request(url, { agent, method: 'POST', headers }, (answer) => {
    answer.resume();
    answer.on('end', () => { statuses.push(answer.statusCode); resolve(); });
  });
  request.on('error', (error) => { errors.push(error.code); resolve(); });
  request.end(body);
});
for (let i = 0; i < 10; i++) await Promise.all(Array.from({ length: 4 }, post));
agent.destroy();
console.log(JSON.stringify({ statuses, errors }));
