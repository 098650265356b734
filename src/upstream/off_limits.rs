//! The addresses to which the forward proxy leads no client, whatever a name resolves to: metadata of clouds, and the
//! gateway itself.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
};

/// The metadata services of clouds, which give credentials to each program of their machines. All link-local addresses are off
/// limits; those that are here are the ones that programs ask for.
pub const METADATA: [IpAddr; 14] = [
    // Most clouds.
    four([169, 254, 169, 254]),
    // Amazon's containers, and pods of its Kubernetes.
    four([169, 254, 170, 2]),
    four([169, 254, 170, 23]),
    // Scaleway, Alibaba Cloud, Volcano Engine, Azure, and Oracle's Cloud at Customer.
    four([169, 254, 42, 42]),
    four([100, 100, 100, 200]),
    four([100, 96, 0, 96]),
    four([168, 63, 129, 16]),
    four([192, 0, 0, 192]),
    // Amazon and its pods, Google, Oracle, Linode, and Scaleway.
    six([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]),
    six([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23]),
    six([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]),
    six([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe]),
    six([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1]),
    six([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]),
];
/// A port for sockets that send nothing.
const ANY_PORT: u16 = 9;
/// The prefix of IPv4 addresses that a translator reaches (NAT64, RFC 6052 section 2.1).
const TRANSLATED: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// The addresses to which the forward proxy leads no client. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct OffLimits {
    /// The gateway's own listeners.
    own: Arc<[SocketAddr]>,
}

/// The error of a name or an address that only leads to such addresses.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0} is link-local, a cloud's metadata, no host's, or the gateway's own, to which the forward proxy leads no client"
)]
pub struct OffLimitsError(pub SocketAddr);

// === impl OffLimits ===

impl OffLimits {
    /// Keeps all clients off the gateway's `own` listeners, and off addresses that are never an API's.
    pub fn new(own: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self { own: own.into_iter().collect() }
    }

    /// Whether an address is one of them.
    pub fn has(&self, address: SocketAddr) -> bool {
        let ip = plain(address.ip());
        let is_special = match ip {
            IpAddr::V4(ip) => {
                // 0.0.0.0 is this host for connect(2).
                ip.is_link_local() || ip.octets()[0] == 0 || ip.is_multicast() || ip.is_broadcast()
            }
            IpAddr::V6(ip) => {
                ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast()
            }
        };
        let is_own = |own: &SocketAddr| {
            // A listener on all addresses, or on one that another spelling reaches.
            own.port() == address.port() && (plain(own.ip()) == ip || is_of_this_host(ip))
        };
        is_special || METADATA.contains(&ip) || self.own.iter().any(is_own)
    }
}

const fn four([a, b, c, d]: [u8; 4]) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn six([a, b, c, d, e, f, g, h]: [u16; 8]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h))
}

/// An IPv4 address as itself, also where it is written as one of IPv6.
fn plain(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(six) if six.segments()[..6] == TRANSLATED => {
            let [.., a, b, c, d] = six.octets();
            IpAddr::from([a, b, c, d])
        }
        ip => ip,
    }
}

/// Whether the address is one of this host. No packet is sent.
pub(super) fn is_of_this_host(ip: IpAddr) -> bool {
    let ip = plain(ip);
    ip.is_loopback() || is_own_source(ip).unwrap_or(false)
}

/// Whether the kernel sends from the address. With `ip_nonlocal_bind` it lets sockets have addresses of other hosts, so that
/// binding alone says nothing.
fn is_own_source(ip: IpAddr) -> io::Result<bool> {
    if ip.is_ipv4() {
        // A second address of an interface is not the one that is chosen for itself. A foreign source has no route.
        UdpSocket::bind((ip, 0))?.connect((ip, ANY_PORT))?;
        return Ok(true);
    }
    // The kernel prefers the destination itself as the source (RFC 6724 section 5, rule 1).
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    socket.connect((ip, ANY_PORT))?;
    Ok(socket.local_addr()?.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// `192.0.2.1` is the address of no host (RFC 5737 section 3).
    #[test]
    fn an_address_is_of_this_host_if_packets_are_sent_from_it() {
        for (foreign, any) in [("192.0.2.1", "0.0.0.0"), ("2001:db8::1", "::")] {
            let foreign: IpAddr = foreign.parse().unwrap();
            assert!(!is_of_this_host(foreign));
            // A machine without a network has no source for it.
            let own = UdpSocket::bind((any, 0)).and_then(|socket| {
                socket.connect((foreign, ANY_PORT))?;
                socket.local_addr()
            });
            assert!(own.is_err() || own.is_ok_and(|own| is_of_this_host(own.ip())));
        }
        for own in ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"] {
            assert!(is_of_this_host(own.parse().unwrap()), "{own}");
        }
    }

    #[rstest]
    #[case::metadata("169.254.169.254:80", true)]
    #[case::metadata_of_amazon("[fd00:ec2::254]:80", true)]
    #[case::metadata_of_google("[fd20:ce::254]:80", true)]
    #[case::metadata_of_oracle_over_ipv6("[fd00:c1::a9fe:a9fe]:80", true)]
    #[case::metadata_of_linode("[fd00:a9fe:a9fe::1]:80", true)]
    #[case::metadata_of_alibaba("100.100.100.200:80", true)]
    #[case::metadata_of_alibaba_translated("[64:ff9b::6464:64c8]:80", true)]
    #[case::its_neighbour("100.100.100.201:80", false)]
    #[case::wire_server_of_azure("168.63.129.16:80", true)]
    #[case::metadata_of_oracle("192.0.0.192:80", true)]
    #[case::metadata_of_volcano_engine("100.96.0.96:80", true)]
    #[case::link_local("[fe80::1]:443", true)]
    #[case::mapped("[::ffff:169.254.169.254]:80", true)]
    #[case::translated("[64:ff9b::a9fe:a9fe]:80", true)]
    #[case::unspecified("0.0.0.0:443", true)]
    #[case::unspecified_six("[::]:443", true)]
    #[case::multicast("224.0.0.1:443", true)]
    #[case::own("127.0.0.1:9090", true)]
    #[case::own_on_another_loopback_address("127.3.2.1:9090", true)]
    #[case::own_over_ipv6("[::1]:9090", true)]
    #[case::own_mapped("[::ffff:127.0.0.1]:9090", true)]
    #[case::another_port("127.0.0.1:9091", false)]
    #[case::private("10.0.0.1:443", false)]
    #[case::public("192.0.2.1:9090", false)]
    fn metadata_and_the_gateway_are_off_limits(#[case] address: &str, #[case] expected: bool) {
        let off_limits = OffLimits::new([SocketAddr::from(([127, 0, 0, 1], 9090))]);
        assert_eq!(off_limits.has(address.parse().unwrap()), expected);
    }
}
