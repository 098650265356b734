//! Finds the address of the caller: that of the peer, or the one that a trusted proxy reports in X-Forwarded-For. Never
//! believes this header from any other peer.

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns the address of the caller. If the peer is one of the `trusted` proxies, that is the last address in
/// X-Forwarded-For that is not a trusted proxy.
///
/// An element that is no address ends the search at the proxy that added it, so that a caller cannot choose a bucket with
/// garbage. If all addresses are trusted, the first of them is the caller.
pub fn client_ip(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |ip: IpAddr| is_trusted(ip, trusted);
    let mut client = peer.to_canonical();
    if !is_trusted(client) {
        return client;
    }
    let fields = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let hops = fields.flat_map(|field| field.as_bytes().rsplit(|byte| *byte == b','));
    // Empty elements of a list mean nothing (RFC 9110 section 5.6.1).
    for hop in hops.map(<[u8]>::trim_ascii).filter(|hop| !hop.is_empty()) {
        let Some(hop) = address(hop) else { return client };
        client = hop;
        if !is_trusted(client) {
            return client;
        }
    }
    client
}

/// Whether an address is that of a proxy whose X-Forwarded-For is believed (`trusted_proxies`).
pub fn is_trusted(ip: IpAddr, trusted: &[IpNet]) -> bool {
    trusted.iter().any(|net| net.contains(&ip))
}

/// Reads an address as proxies write it: `IP`, `IP:PORT`, `[IPv6]` or `[IPv6]:PORT`.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let plain = text.parse::<IpAddr>().ok();
    let with_port = || Some(text.parse::<SocketAddr>().ok()?.ip());
    let ip = plain.or_else(|| bracketed().map(IpAddr::V6)).or_else(with_port)?;
    Some(ip.to_canonical())
}
