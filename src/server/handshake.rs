//! The start of a connection, from accept until the gateway knows the client's address and its protocol: PROXY header,
//! TLS, and the first bytes. Reads no request.

use super::{
    connection_limit::ConnectionPermit,
    context::ConnectionContext,
    forward::{AskedTunnel, BlindTunnel, GrantedTunnel},
    proxy_protocol::{self, ClientAddress},
    transport::Transport,
};
use crate::{
    key,
    metrics::{Protocol, Refusal},
    proxy::ForwardConnection,
};
use ipnet::IpNet;
use std::{io, net::SocketAddr};
use tokio::{io::AsyncReadExt, net::TcpStream};
use tokio_rustls::TlsAcceptor;

/// The first bytes of a client that speaks HTTP/2 in clear text (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The size of the first read, which tells HTTP/1 from HTTP/2. 4 KiB hold a whole request most of the time.
const FIRST_READ: usize = 4 << 10;

/// A client whose address and protocol are known.
pub(super) struct Handshake {
    pub(super) transport: Transport,
    /// Bytes that were read to find out the protocol. The HTTP parser reads them first.
    pub(super) early: Vec<u8>,
    pub(super) protocol: Protocol,
    pub(super) address: ClientAddress,
    /// The PROXY header was LOCAL or UNKNOWN: the client's address is unknown, so `X-Forwarded-For` on this connection is
    /// not trusted.
    pub(super) is_anonymous: bool,
    /// The connection is one to the forward proxy.
    pub(super) forward: Option<ForwardConnection>,
}

/// A connection, as its client has begun it.
pub(super) enum Opened {
    /// It sends requests.
    Http(Box<Handshake>),
    /// It asks the forward proxy for a tunnel.
    Asked(Box<AskedTunnel>),
    /// It has a tunnel to a host as which the gateway answers.
    Granted(Box<GrantedTunnel>),
    /// It has a tunnel to a host of no upstream.
    Tunnel(Box<BlindTunnel>),
}

/// A connection whose client is known.
pub(super) struct ArrivedClient {
    pub(super) tcp: TcpStream,
    pub(super) address: ClientAddress,
    /// As [`Handshake::is_anonymous`].
    pub(super) is_anonymous: bool,
}

// === impl Handshake ===

impl Handshake {
    /// Reads the PROXY header if `remote` is a trusted proxy and sends one, makes the TLS connection, and finds out the
    /// protocol. Sets no time-out. The `permit` counts for the client that the header names.
    ///
    /// # Errors
    ///
    /// Returns the reason to count: a malformed PROXY header or a failed TLS handshake. Returns `None` for a client that
    /// disconnected without having sent anything, or whose refusal is counted already.
    pub(super) async fn perform(
        context: &ConnectionContext,
        tcp: TcpStream,
        remote: SocketAddr,
        permit: &mut ConnectionPermit,
    ) -> Result<Opened, Option<Refusal>> {
        let client = ArrivedClient::of(context, tcp, remote, permit).await?;
        if let Some(door) = &context.forward {
            return Box::pin(door.accept(context, client)).await;
        }
        let ArrivedClient { mut tcp, address, is_anonymous } = client;
        let tls = context.tls.borrow().clone();
        let Some(tls) = tls else {
            let (protocol, early) = detect(&mut tcp).await.map_err(|_| None)?;
            let transport = Transport::Plain(tcp);
            let forward = None;
            return Ok(Self { transport, early, protocol, address, is_anonymous, forward }.into());
        };
        let acceptor = TlsAcceptor::from(tls);
        let accepted = Box::pin(acceptor.accept(tcp)).await;
        let tls = Box::new(accepted.map_err(|_| Some(Refusal::Tls))?);
        let protocol = match tls.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        let (transport, early) = (Transport::Tls(tls), Vec::new());
        Ok(Self { transport, early, protocol, address, is_anonymous, forward: None }.into())
    }

    /// Returns the proxies whose `X-Forwarded-For` is trusted on this connection: `configured`, or none if the PROXY header
    /// named no client.
    pub(super) fn trusted<'a>(&self, configured: &'a [IpNet]) -> &'a [IpNet] {
        if self.is_anonymous { &[] } else { configured }
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self.transport, Transport::Tls(_))
    }
}

// === impl ArrivedClient ===

impl ArrivedClient {
    /// Reads the PROXY header if `remote` is a trusted proxy.
    async fn of(
        context: &ConnectionContext,
        mut tcp: TcpStream,
        remote: SocketAddr,
        permit: &mut ConnectionPermit,
    ) -> Result<Self, Option<Refusal>> {
        let plan = context.plan();
        let config = &plan.config;
        let ip = remote.ip().to_canonical();
        let own = ClientAddress { ip: remote.ip(), port: context.port };
        // A program that calls a service speaks for itself.
        let is_data = context.service.is_none();
        if !is_data || !config.proxy_protocol || !key::is_trusted(ip, &config.trusted_proxies) {
            return Ok(Self { tcp, address: own, is_anonymous: false });
        }
        let read = proxy_protocol::read(&mut tcp).await;
        let proxied = read.map_err(|_| Some(Refusal::ProxyProtocol))?;
        let address = proxied.unwrap_or(own);
        if address.ip.to_canonical() != ip {
            let most = config.client.max_connections_per_address;
            permit.count_for(address.ip, most).map_err(|_| None)?;
        }
        Ok(Self { tcp, address, is_anonymous: proxied.is_none() })
    }
}

impl From<Handshake> for Opened {
    fn from(handshake: Handshake) -> Self {
        Self::Http(Box::new(handshake))
    }
}

/// Finds out whether a client in clear text speaks HTTP/1 or HTTP/2, and returns the bytes that it has sent so far. Reads
/// instead of peeking: a client that stops within the preface is waited for, and any other client costs no further system
/// call.
pub(super) async fn detect(tcp: &mut TcpStream) -> io::Result<(Protocol, Vec<u8>)> {
    let mut early = Vec::with_capacity(FIRST_READ);
    loop {
        let is_end = tcp.read_buf(&mut early).await? == 0;
        let length = early.len().min(PREFACE.len());
        if is_end && length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if is_end || early[..length] != PREFACE[..length] {
            // The buffer stays with the request, which may wait for minutes.
            early.shrink_to_fit();
            return Ok((Protocol::Http1, early));
        }
        if length == PREFACE.len() {
            return Ok((Protocol::Http2, early));
        }
    }
}
