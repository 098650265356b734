//! Lists the names of fields that the gateway treats in a special way. Changes no message.

use super::flags::HeaderFlags;
use http::{
    HeaderName,
    header::{
        CONTENT_LENGTH, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
        TRANSFER_ENCODING, UPGRADE, VIA,
    },
};

pub(in crate::upstream) const X_FORWARDED_FOR: HeaderName =
    HeaderName::from_static("x-forwarded-for");
pub(in crate::upstream) const X_FORWARDED_HOST: HeaderName =
    HeaderName::from_static("x-forwarded-host");
pub(in crate::upstream) const X_FORWARDED_PORT: HeaderName =
    HeaderName::from_static("x-forwarded-port");
pub(in crate::upstream) const X_FORWARDED_PROTO: HeaderName =
    HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Fields that are meant for one connection only (RFC 9110 section 7.6.1), and `Proxy-Connection`, which clients send by
/// mistake, each with the flag of messages that have it. None of them is forwarded.
pub(super) static HOP_BY_HOP: [(HeaderFlags, HeaderName); 7] = [
    (HeaderFlags::OTHER_HOP_BY_HOP, KEEP_ALIVE),
    (HeaderFlags::OTHER_HOP_BY_HOP, PROXY_CONNECTION),
    (HeaderFlags::OTHER_HOP_BY_HOP, PROXY_AUTHENTICATE),
    (HeaderFlags::OTHER_HOP_BY_HOP, PROXY_AUTHORIZATION),
    (HeaderFlags::TE, TE),
    (HeaderFlags::TRANSFER_ENCODING, TRANSFER_ENCODING),
    (HeaderFlags::UPGRADE, UPGRADE),
];

/// Fields that stay although `Connection` nominates them: they delimit a message, route it, or tell which proxies it
/// passed, so no sender may have them removed.
pub(super) static KEPT: [HeaderName; 8] = [
    HOST,
    CONTENT_LENGTH,
    VIA,
    FORWARDED,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PORT,
    X_FORWARDED_PROTO,
];

/// Whether a field is one in which proxies name the client, `X-Real-IP` for example. Any other client can write it, too.
pub fn names_client(name: &HeaderName) -> bool {
    [FORWARDED, X_FORWARDED_FOR].contains(name) || CLIENT_ADDRESSES.contains(name)
}

/// Fields in which some proxies tell an upstream the address of the client, `X-Real-IP` for example. From a client that is
/// no trusted proxy each of them is a lie that an upstream may believe, so none is forwarded.
pub(super) static CLIENT_ADDRESSES: [HeaderName; 16] = [
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("client-ip"),
    HeaderName::from_static("x-client-ip"),
    HeaderName::from_static("x-cluster-client-ip"),
    HeaderName::from_static("cf-connecting-ip"),
    HeaderName::from_static("cf-connecting-ipv6"),
    HeaderName::from_static("fastly-client-ip"),
    HeaderName::from_static("fly-client-ip"),
    HeaderName::from_static("forwarded-for"),
    HeaderName::from_static("x-forwarded"),
    HeaderName::from_static("x-original-forwarded-for"),
    HeaderName::from_static("x-originating-ip"),
    HeaderName::from_static("x-remote-ip"),
    HeaderName::from_static("x-remote-addr"),
    HeaderName::from_static("x-envoy-external-address"),
];
