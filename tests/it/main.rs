//! One binary for everything that starts the real thing: the gateway's own binary, a real redis-server,
//! real sockets.

mod support;

mod contract;
mod epochs;
mod laws;
mod leaving;
mod losses;
mod twins;
mod twins_fixed_window;
mod twins_plain;
mod twins_timeline;

mod addresses;
mod admin;
mod attempts;
mod auto;
mod away;
mod bodies;
mod cli;
mod clients;
mod connections;
mod decisions;
mod deploy;
mod edge_attacks;
mod failures;
mod faults;
mod grpc;
mod headers;
mod http2;
mod leases;
mod leavers;
mod library;
mod lifecycle;
mod limiters;
mod limits;
mod lost_state;
mod logs;
mod measures;
mod memory;
mod messages;
mod mount;
mod origins;
mod pauses;
mod places;
mod proxy;
mod smuggling;
mod store_hostile;
mod store_pauses;
mod store_start;
mod tls;
mod topologies;
mod upgrades;
mod upstream_h2;
mod upstream_tls;
mod upstreams;
