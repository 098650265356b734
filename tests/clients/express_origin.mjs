// An origin of Express with its defaults: it answers `limited` for /search and /v2/search, `other` for the rest.
//
//     node express_origin.mjs PORT
import { createRequire } from 'node:module';
const express = createRequire(process.env.CLIENTS + '/')('express');

const app = express();
app.get(['/search', '/v2/search'], (_, response) => response.send('limited'));
app.use((_, response) => response.send('other'));
app.listen(Number(process.argv[2]), '127.0.0.1');
