//! The sender of a request: the address that made the connection, or one that a trusted proxy wrote into
//! X-Forwarded-For.
#![no_main]

use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use libfuzzer_sys::fuzz_target;
use paceway::key::{client_ip, is_trusted};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

fuzz_target!(|data: &[u8]| {
    let Some((choices, fields)) = data.split_at_checked(2) else { return };
    let peer = match choices[0] % 4 {
        0 => IpAddr::V4(Ipv4Addr::new(10, 0, 0, choices[1])),
        1 => IpAddr::V4(Ipv4Addr::new(203, 0, 113, choices[1])),
        2 => IpAddr::V6(Ipv4Addr::new(10, 0, 0, choices[1]).to_ipv6_mapped()),
        _ => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, choices[1].into())),
    };
    let all = ["10.0.0.0/8", "fd00::/8", "203.0.113.0/24", "0.0.0.0/0", "::1/128"];
    let chosen = all.iter().enumerate().filter(|(i, _)| choices[0] >> (i + 2) & 1 == 1);
    let trusted: Vec<IpNet> = chosen.filter_map(|(_, net)| net.parse().ok()).collect();
    let mut headers = HeaderMap::new();
    for field in fields.split(|byte| *byte == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(field) else { return };
        headers.append("x-forwarded-for", value);
    }
    let found = client_ip(peer, &headers, &trusted);
    let peer = peer.to_canonical();
    let written = written(fields);
    assert!(found == peer || written.contains(&found), "{found} is nowhere");
    if !is_trusted(peer, &trusted) {
        assert_eq!(found, peer, "the address comes from a proxy that is not trusted");
    }
    // Addresses before the first one that is not trusted change nothing.
    if found != peer && !is_trusted(found, &trusted) {
        let mut longer = HeaderMap::new();
        longer.append("x-forwarded-for", HeaderValue::from_static("6.6.6.6, x, 10.0.0.1,"));
        longer.extend(
            headers
                .get_all("x-forwarded-for")
                .iter()
                .map(|value| (http::HeaderName::from_static("x-forwarded-for"), value.clone())),
        );
        assert_eq!(client_ip(peer, &longer, &trusted), found);
    }
});

/// Finds every address in a text, with or without port.
fn written(fields: &[u8]) -> Vec<IpAddr> {
    let words = fields.split(|byte| matches!(byte, b',' | b'\n'));
    let words = words.filter_map(|word| std::str::from_utf8(word).ok()).map(str::trim);
    let addresses = words.filter_map(|word| {
        let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
        bare.parse().ok().or_else(|| Some(word.parse::<SocketAddr>().ok()?.ip()))
    });
    addresses.map(|ip| ip.to_canonical()).collect()
}
