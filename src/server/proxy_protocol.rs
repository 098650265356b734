//! The PROXY protocol, versions 1 and 2, in which a load balancer reports the address of its client. Never reads a byte
//! beyond the header, since the next byte belongs to TLS or HTTP.

#[cfg(fuzzing)]
pub mod fuzzing;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use tokio::{io::AsyncReadExt, net::TcpStream};

/// The 12 bytes with which a header of version 2 begins.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The length of the longest header of version 1, which is one line, with its line end.
const LINE: usize = 107;
/// How many bytes of addresses and extensions (TLV) may follow the fixed part of version 2. The extensions are skipped.
const REST: usize = 4 << 10;

/// The client that a proxy connects for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClientAddress {
    /// The client's address.
    pub(super) ip: IpAddr,
    /// The port that the client connected to.
    pub(super) port: u16,
}

/// Reads the header. Returns `None` when it names no address: a health check of the proxy itself (LOCAL), or a client over
/// a UNIX socket (UNKNOWN).
///
/// # Errors
///
/// `InvalidData` for a header that differs from the specification in one byte; the error of the socket otherwise.
pub(super) async fn read(stream: &mut TcpStream) -> io::Result<Option<ClientAddress>> {
    let mut start = [0; 1];
    stream.peek(&mut start).await?;
    if start[0] == SIGNATURE[0] { version_2(stream).await } else { version_1(stream).await }
}

async fn version_1(stream: &mut TcpStream) -> io::Result<Option<ClientAddress>> {
    let (mut line, mut length) = ([0; LINE], 0);
    loop {
        let seen = stream.peek(&mut line[length..]).await?;
        let end = line[length..length + seen].iter().position(|byte| *byte == b'\n');
        // Bytes up to the end of the line belong to the header. They are taken, so that the next peek waits for new ones.
        let taken = end.map_or(seen, |end| end + 1);
        stream.read_exact(&mut line[length..length + taken]).await?;
        length += taken;
        if end.is_some() {
            return line_1(&line[..length]).ok_or_else(malformed);
        }
        if seen == 0 || length == LINE || !line.starts_with(&b"PROXY "[..length.min(6)]) {
            return Err(malformed());
        }
    }
}

/// Parses `PROXY TCP4 SOURCE DESTINATION PORT PORT`, with one space between the parts and CR LF at the end. The inner
/// `None` is `PROXY UNKNOWN`; the outer one is a malformed line.
fn line_1(line: &[u8]) -> Option<Option<ClientAddress>> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix("\r\n")?.strip_prefix("PROXY ")?;
    let mut parts = line.split(' ');
    let family = parts.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let [source, destination, from, to] =
        [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let addresses: [IpAddr; 2] = [source.parse().ok()?, destination.parse().ok()?];
    let fits = match family {
        "TCP4" => addresses.iter().all(IpAddr::is_ipv4),
        "TCP6" => addresses.iter().all(IpAddr::is_ipv6),
        _ => false,
    };
    let (_, port) = (port(from)?, port(to)?);
    (fits && parts.next().is_none()).then_some(Some(ClientAddress { ip: addresses[0], port }))
}

/// Parses a port: digits alone, without a leading zero or a sign.
fn port(text: &str) -> Option<u16> {
    let plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

async fn version_2(stream: &mut TcpStream) -> io::Result<Option<ClientAddress>> {
    let mut head = [0; 16];
    stream.read_exact(&mut head).await?;
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if head[..12] != SIGNATURE[..] || length > REST {
        return Err(malformed());
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    block_2(head[12], head[13], &rest).ok_or_else(malformed)
}

fn block_2(version_and_command: u8, family: u8, rest: &[u8]) -> Option<Option<ClientAddress>> {
    let is_local = match version_and_command {
        0x20 => true,
        0x21 => false,
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
    let source = match family >> 4 {
        // LOCAL, and the families UNSPEC and UNIX, which have no IP address.
        _ if is_local => None,
        0x0 | 0x3 => None,
        0x1 => {
            let ip: [u8; 4] = rest.get(..4)?.try_into().ok()?;
            Some(ClientAddress { ip: Ipv4Addr::from(ip).into(), port: port(10)? })
        }
        0x2 => {
            let ip: [u8; 16] = rest.get(..16)?.try_into().ok()?;
            Some(ClientAddress { ip: Ipv6Addr::from(ip).into(), port: port(34)? })
        }
        _ => return None,
    };
    // A client of this gateway connects over TCP, so that a header for a datagram (0x2) is malformed.
    let is_stream = matches!(family & 0x0f, 0x0 | 0x1);
    (is_stream || is_local).then_some(source)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is no PROXY protocol header")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn source(ip: &str, port: u16) -> Option<Option<ClientAddress>> {
        Some(Some(ClientAddress { ip: ip.parse().unwrap(), port }))
    }

    #[rstest]
    #[case::v4("PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\r\n", source("192.0.2.1", 443))]
    #[case::v6("PROXY TCP6 2001:db8::1 2001:db8::2 5000 443\r\n", source("2001:db8::1", 443))]
    #[case::unknown("PROXY UNKNOWN\r\n", Some(None))]
    #[case::unknown_with_more("PROXY UNKNOWN ffff::1 ::1 1 2\r\n", Some(None))]
    #[case::other_family("PROXY TCP4 2001:db8::1 2001:db8::2 5000 443\r\n", None)]
    #[case::no_return("PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\n", None)]
    #[case::leading_zero("PROXY TCP4 192.0.2.1 198.51.100.1 05000 443\r\n", None)]
    #[case::sign("PROXY TCP4 192.0.2.1 198.51.100.1 +500 443\r\n", None)]
    #[case::port_too_large("PROXY TCP4 192.0.2.1 198.51.100.1 5000 65536\r\n", None)]
    #[case::two_spaces("PROXY TCP4  192.0.2.1 198.51.100.1 5000 443\r\n", None)]
    #[case::something_more("PROXY TCP4 192.0.2.1 198.51.100.1 5000 443 x\r\n", None)]
    #[case::too_few("PROXY TCP4 192.0.2.1 198.51.100.1 5000\r\n", None)]
    #[case::lower_case("proxy TCP4 192.0.2.1 198.51.100.1 5000 443\r\n", None)]
    #[case::a_request("GET / HTTP/1.1\r\n", None)]
    fn reads_headers_of_version_1(#[case] line: &str, #[case] says: Option<Option<ClientAddress>>) {
        assert_eq!(line_1(line.as_bytes()), says);
    }

    #[rstest]
    #[case::v4(
        0x21,
        0x11,
        b"\xc0\0\x02\x01\xc6\x33\x64\x01\x13\x88\x01\xbb",
        source("192.0.2.1", 443)
    )]
    #[case::with_more(
        0x21,
        0x11,
        b"\xc0\0\x02\x01\xc6\x33\x64\x01\x13\x88\x01\xbb\x04\0\0",
        source("192.0.2.1", 443)
    )]
    #[case::local(0x20, 0x00, b"", Some(None))]
    #[case::local_with_more(0x20, 0x11, b"xxx", Some(None))]
    #[case::unspecified(0x21, 0x00, b"", Some(None))]
    #[case::unix(0x21, 0x31, &[0; 216], Some(None))]
    #[case::cut_short(0x21, 0x11, b"\xc0\0\x02\x01\xc6\x33\x64\x01\x13\x88\x01", None)]
    #[case::datagrams(0x21, 0x12, b"\xc0\0\x02\x01\xc6\x33\x64\x01\x13\x88\x01\xbb", None)]
    #[case::other_version(0x11, 0x11, b"\xc0\0\x02\x01\xc6\x33\x64\x01\x13\x88\x01\xbb", None)]
    #[case::other_command(0x22, 0x11, b"\xc0\0\x02\x01\xc6\x33\x64\x01\x13\x88\x01\xbb", None)]
    #[case::other_family(0x21, 0x41, b"\xc0\0\x02\x01\xc6\x33\x64\x01\x13\x88\x01\xbb", None)]
    fn reads_headers_of_version_2(
        #[case] command: u8,
        #[case] family: u8,
        #[case] rest: &[u8],
        #[case] says: Option<Option<ClientAddress>>,
    ) {
        assert_eq!(block_2(command, family, rest), says);
    }
}
