//! Who calls: the peer, or whom the proxies that are trusted say they speak for. Never believes anybody else.

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the caller: the peer, or behind `trusted` proxies the last address of X-Forwarded-For that is
/// not one of theirs, read from its end.
///
/// What is no address ends the reading at the proxy that wrote it, so that nobody chooses a bucket with
/// garbage. When all addresses are trusted, the first of them is the caller.
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

/// Whether it is one of the proxies that are believed.
pub fn is_trusted(ip: IpAddr, trusted: &[IpNet]) -> bool {
    trusted.iter().any(|net| net.contains(&ip))
}

/// `IP`, `IP:PORT`, `[IPv6]` or `[IPv6]:PORT`.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let plain = text.parse::<IpAddr>().ok();
    let with_port = || Some(text.parse::<SocketAddr>().ok()?.ip());
    let ip = plain.or_else(|| bracketed().map(IpAddr::V6)).or_else(with_port)?;
    Some(ip.to_canonical())
}
