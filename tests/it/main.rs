//! One binary for everything that starts the real thing: the gateway's own binary, a real redis-server,
//! real sockets.

mod support;

mod contract;
mod house;
mod laws;
mod leaving;
mod twins;
mod twins_fixed_window;
mod twins_plain;
mod twins_timeline;

mod addresses;
mod away;
mod bodies;
mod cli;
mod clients;
mod connections;
mod decisions;
mod failures;
mod grpc;
mod headers;
mod http2;
mod leases;
mod leavers;
mod lifecycle;
mod limiters;
mod limits;
mod logs;
mod memory;
mod messages;
mod proxy;
mod smuggling;
mod store_hostile;
mod tls;
mod upgrades;
mod upstream_h2;
mod upstream_tls;
mod upstreams;
