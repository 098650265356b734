// Lets `fetch` and `https` of Node use the proxy of `paceway exec`. From 24.5 on Node does that itself, by NODE_USE_ENV_PROXY.
'use strict';
const [major, minor] = process.versions.node.split('.').map(Number);
const url = process.env.HTTPS_PROXY;
if (url && (major < 24 || (major === 24 && minor < 5))) {
  const [http, https, net, tls] = ['http', 'https', 'net', 'tls'].map((name) => require(`node:${name}`));
  const proxy = new URL(url);
  const direct = (process.env.NO_PROXY || '').split(',').filter(Boolean);
  const isDirect = (host) => direct.some((name) => name === '*' || host === name || host.endsWith(`.${name.replace(/^\*?\./, '')}`));

  // Connects to a host, and calls `done` with an error or the socket, once.
  const connect = ({ hostname, port, isTls, servername }, done) => {
    const bare = hostname.replace(/^\[|\]$/g, '');
    const secure = (options) => {
      const name = servername || (net.isIP(bare) ? undefined : bare);
      const socket = tls.connect({ ...options, host: bare, servername: name, ALPNProtocols: ['http/1.1'] });
      socket.once('error', done).once('secureConnect', () => {
        socket.off('error', done);
        done(null, socket);
      });
    };
    if (isDirect(bare)) {
      if (isTls) return secure({ port });
      const socket = net.connect({ host: bare, port });
      return socket.once('error', done).once('connect', () => {
        socket.off('error', done);
        done(null, socket);
      });
    }
    const path = `${net.isIPv6(bare) ? `[${bare}]` : bare}:${port}`;
    const { hostname: host, port: own } = proxy;
    const asked = http.request({ host, port: own, method: 'CONNECT', path, headers: { host: path }, agent: false });
    asked.once('error', done).once('connect', (answer, socket) => {
      if (answer.statusCode !== 200) {
        socket.destroy();
        return done(new Error(`the proxy of paceway answered ${answer.statusCode} to CONNECT ${path}`));
      }
      return isTls ? secure({ socket }) : done(null, socket);
    });
    return asked.end();
  };

  if (typeof fetch === 'function') {
    // The library of `fetch` sets its dispatcher when it is first used.
    const key = Symbol.for('undici.globalDispatcher.1');
    void Response;
    const Agent = globalThis[key]?.constructor;
    if (Agent) {
      const connector = ({ hostname, port, protocol, servername }, done) => {
        const isTls = protocol === 'https:';
        connect({ hostname, port: port || (isTls ? 443 : 80), isTls, servername }, done);
      };
      globalThis[key] = new Agent({ connect: connector });
    }
  }
  const agent = new https.Agent({ keepAlive: true });
  agent.createConnection = ({ host, port, servername }, done) =>
    void connect({ hostname: host, port: port || 443, isTls: true, servername }, done);
  https.globalAgent = agent;
}
