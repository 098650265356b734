//! One binary for everything that starts the real thing: the gateway's own binary, a real redis-server,
//! real sockets.

mod support;

mod contract;
mod house;
mod laws;
mod leaving;
mod twins;
mod twins_fixed_window;
mod twins_timeline;

mod cli;
mod decisions;
mod failures;
mod headers;
mod leases;
mod lifecycle;
mod limiters;
mod limits;
mod logs;
mod messages;
mod proxy;
mod smuggling;
