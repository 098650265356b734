//! One binary for everything that starts the real thing: the gateway's own binary, a real redis-server,
//! real sockets.

