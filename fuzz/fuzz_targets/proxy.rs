//! Headers of the PROXY protocol, versions 1 and 2: read as a plain reader reads them, and only when they are written in
//! the one way that there is for what they say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceway::server::proxy_fuzzing::{Says, version_1, version_2};
use std::net::{IpAddr, Ipv6Addr};

fuzz_target!(|data: &[u8]| {
    if let Some([command, family, rest @ ..]) = data.strip_prefix(b"\r\n") {
        assert_eq!(version_2(*command, *family, rest), block(*command, *family, rest));
        return;
    }
    match version_1(data) {
        Some(None) => assert!(data.starts_with(b"PROXY UNKNOWN") && data.ends_with(b"\r\n")),
        Some(Some(source)) => as_written(data, source),
        None => assert!(!is_plain(data), "refused"),
    }
});

/// Checks that the line says this, and is the only way to say it, except for how an IPv6 address is shortened.
fn as_written(line: &[u8], (ip, port): (IpAddr, u16)) {
    let text = std::str::from_utf8(line).expect("text");
    let parts: Vec<&str> = text.strip_suffix("\r\n").expect("an end").split(' ').collect();
    let [_, family, source, destination, from, to] = parts[..] else { panic!("six parts") };
    let other: IpAddr = destination.parse().expect("an address");
    assert_eq!(source.parse(), Ok(ip));
    assert_eq!(family, if ip.is_ipv4() { "TCP4" } else { "TCP6" });
    assert_eq!(ip.is_ipv4(), other.is_ipv4());
    assert_eq!(to, port.to_string());
    assert_eq!(from, from.parse::<u16>().expect("a port").to_string());
}

/// Returns whether a line is one as proxies write it for IPv4.
fn is_plain(line: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(line) else { return false };
    let Some(rest) = text.strip_suffix("\r\n").and_then(|line| line.strip_prefix("PROXY TCP4 "))
    else {
        return false;
    };
    let parts: Vec<&str> = rest.split(' ').collect();
    let is_port = |text: &&str| text.parse::<u16>().is_ok_and(|port| port.to_string() == **text);
    parts.len() == 4
        && parts[..2].iter().all(|text| text.parse::<std::net::Ipv4Addr>().is_ok())
        && parts[2..].iter().all(is_port)
}

/// Reads section 2.2 of the protocol's description, line by line.
fn block(command: u8, family: u8, rest: &[u8]) -> Option<Says> {
    if command == 0x20 {
        return Some(None);
    }
    if command != 0x21 || family & 0x0f > 1 {
        return None;
    }
    let port = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    match family >> 4 {
        0 | 3 => Some(None),
        1 if rest.len() >= 12 => {
            let ip = IpAddr::from([rest[0], rest[1], rest[2], rest[3]]);
            Some(Some((ip, port(10))))
        }
        2 if rest.len() >= 36 => {
            let words: Vec<u16> = (0..8).map(|i| port(2 * i)).collect();
            let words: [u16; 8] = words.try_into().expect("eight");
            Some(Some((Ipv6Addr::from(words).into(), port(34))))
        }
        _ => None,
    }
}
