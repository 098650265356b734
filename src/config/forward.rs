//! The settings of the forward proxy: its address, its authority, and the other hosts to which it opens
//! tunnels.

use super::keys::Choice;
use crate::{tls::KeyPair, upstream::UrlOrigin};
use std::net::SocketAddr;

/// The settings of `forward`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardConfig {
    /// The address on which it listens.
    pub listen: SocketAddr,
    /// The authority that signs certificates for the hosts of upstreams.
    pub ca: KeyPair,
    /// The other hosts that clients may open tunnels to; empty if there are none.
    pub allow: Vec<HostPattern>,
}

/// The answer to a client that asks for a host of no upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OtherHosts {
    /// It gets 403.
    Refuse,
    /// It gets a tunnel, if the list of allowed hosts has the host.
    Tunnel,
}

/// An entry of `allow`: `HOST` or `HOST:PORT`. A host is a name or an address, `*.NAME` for all names below it, or `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    host: PatternHost,
    /// `None` for any port.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternHost {
    Any,
    /// With the dot before the name.
    Below(String),
    Exact(String),
}

// === impl OtherHosts ===

impl Choice for OtherHosts {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("refuse", Self::Refuse), ("tunnel", Self::Tunnel)];
}

// === impl HostPattern ===

impl HostPattern {
    /// The pattern that takes every host and port.
    pub const ALL: Self = Self { host: PatternHost::Any, port: None };

    /// Reads an entry. Without a port one host is meant with all of its ports, and several with that of https.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        const SHAPE: &str = "is no host such as `api.example`, `*.example`, `10.0.0.7:8443` or `*`";
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port),
            _ => (text, if text.contains('*') { "443" } else { "*" }),
        };
        let port = match port {
            "*" => None,
            port => Some(port.parse().ok().filter(|port| *port > 0).ok_or(SHAPE)?),
        };
        let name = |host: &str| {
            let origin = UrlOrigin::of(true, host).filter(|_| !host.contains(['*', '/']));
            origin.map(|origin| String::from(origin.host)).ok_or(SHAPE)
        };
        let host = match host {
            "*" => PatternHost::Any,
            host => match host.strip_prefix("*.") {
                Some(below) => PatternHost::Below(format!(".{}", name(below)?)),
                None => PatternHost::Exact(name(host)?),
            },
        };
        Ok(Self { host, port })
    }

    /// Whether it takes the host and port of an origin.
    pub fn takes(&self, origin: &UrlOrigin) -> bool {
        let is_host = match &self.host {
            PatternHost::Any => true,
            PatternHost::Below(below) => origin.host.ends_with(below.as_str()),
            PatternHost::Exact(host) => *origin.host == **host,
        };
        is_host && self.port.is_none_or(|port| port == origin.port)
    }

    /// Whether it names one host, which may then be this machine.
    pub fn is_exact(&self) -> bool {
        matches!(self.host, PatternHost::Exact(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::a_name("api.example", "api.example:443", true)]
    #[case::small_letters("API.example", "api.example:443", true)]
    #[case::all_ports("api.example", "api.example:22", true)]
    #[case::a_port("api.example:22", "api.example:22", true)]
    #[case::another_port("api.example:443", "api.example:22", false)]
    #[case::another_port_of_several("*.example", "api.example:22", false)]
    #[case::any_port("api.example:*", "api.example:1234", true)]
    #[case::below("*.example", "a.b.example:443", true)]
    #[case::not_the_name_itself("*.example", "example:443", false)]
    #[case::no_suffix_of_a_label("*.example", "badexample:443", false)]
    #[case::all("*", "192.0.2.1:443", true)]
    #[case::all_on_one_port("*", "192.0.2.1:80", false)]
    #[case::ip6("[2001:db8::1]:8443", "[2001:db8:0::1]:8443", true)]
    fn a_pattern_takes_hosts(#[case] pattern: &str, #[case] authority: &str, #[case] takes: bool) {
        let origin = UrlOrigin::of(true, authority).unwrap();
        assert_eq!(HostPattern::parse(pattern).unwrap().takes(&origin), takes);
    }

    #[rstest]
    #[case("")]
    #[case("*example")]
    #[case("a.*.example")]
    #[case("https://api.example")]
    #[case("api.example/")]
    #[case("api.example:0")]
    #[case("api.example:https")]
    fn a_mistake_is_found(#[case] pattern: &str) {
        HostPattern::parse(pattern).unwrap_err();
    }
}
