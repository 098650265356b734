//! Connections to Redis servers. redis-rs encodes commands, decodes replies and pairs them; ours are the way to a
//! server, the bound on its replies, and what happens after an error. Knows neither limiters nor slots.

mod access;
mod bounded;
mod commands;
mod connection;
mod destination;
mod dial;
mod frames;
mod functions;
#[cfg(fuzzing)]
pub mod fuzzing;
mod messages;
mod session;
mod stream;
mod subscription;

pub(super) use access::{Access, ask};
pub(super) use connection::{Met, RECONNECT, RedisConnection};
pub(super) use destination::Destination;
pub(super) use dial::dial;
pub(super) use functions::Sent;
pub(super) use messages::{command, words};
pub(super) use session::UNRESPONSIVE;
pub(super) use stream::RedisStream;
pub(super) use subscription::{Unsubscribed, subscribe};
