//! Where clients come in: from the moment that one is accepted until it is known who it is and what it speaks.

use super::{
    LINGER, Phase,
    connection::Served,
    edge::{Stream, serialized},
    proxy_protocol::{self, Source},
    seats::{Seat, Seats},
    transport::Transport,
};
use crate::{
    answer::Failure,
    config::ClientLimits,
    key,
    metrics::{Protocol, Refusal},
    plan::Plan,
    proxy::{Client, Proxy},
};
use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

/// How a client that speaks HTTP/2 in clear text begins (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What is read to tell one protocol from the other: a whole request, most of the time.
const FIRST_READ: usize = 4 << 10;
/// Where clients come in: what the connections of one worker share.
pub(super) struct Door {
    pub(super) proxy: Proxy,
    pub(super) plan: Arc<Plan>,
    /// `None`: clear text.
    pub(super) tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// Our port.
    pub(super) port: u16,
    /// Those of all workers.
    pub(super) seats: Arc<Seats>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) phases: watch::Receiver<Phase>,
}

/// A client that has said who it is and what it speaks.
struct Opened {
    transport: Transport,
    early: Vec<u8>,
    protocol: Protocol,
    source: Source,
    /// A proxy does not tell for whom it speaks: what is claimed behind it is nobody's word.
    is_anonymous: bool,
}

// === impl Door ===

impl Door {
    /// Serves a client until it leaves, or keeps us waiting for too long, or the gateway stops.
    pub(super) async fn serve(self: Arc<Self>, tcp: TcpStream, address: SocketAddr, seat: Seat) {
        let mut phases = self.phases.clone();
        let opened = tokio::select! {
            biased;
            opened = timeout(self.client().header_timeout, self.open(tcp, address)) => opened,
            _ = phases.wait_for(|phase| *phase >= Phase::ClosingIdle) => return,
        };
        let opened = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(Some(reason))) => return self.seats.refuse(reason),
            // It left.
            Ok(Err(None)) => return,
            Err(_) => return self.seats.refuse(Refusal::HeaderTimeout),
        };
        let Opened { transport, early, protocol, source, is_anonymous } = opened;
        let config = &self.plan.config;
        let is_tls = matches!(transport, Transport::Tls(_));
        let stream = Arc::new(Stream::new(transport, early, protocol, seat, config.limits));
        let trusted = if is_anonymous { &[][..] } else { &config.trusted_proxies };
        let client = Client::new(source.ip, source.port, is_tls, trusted, stream.clone());
        let served = Served::new(self, Arc::new(client), stream);
        match protocol {
            Protocol::Http2 => Box::pin(served.http2()).await,
            Protocol::Http1 | Protocol::Tunnel => served.http1().await,
        }
    }

    /// Learns who the client is and what it speaks.
    async fn open(
        &self,
        mut tcp: TcpStream,
        address: SocketAddr,
    ) -> Result<Opened, Option<Refusal>> {
        let config = &self.plan.config;
        let mut source = Source { ip: address.ip(), port: self.port };
        let mut is_anonymous = false;
        let ip = source.ip.to_canonical();
        if config.proxy_protocol && key::is_trusted(ip, &config.trusted_proxies) {
            let read = proxy_protocol::read(&mut tcp).await;
            let told = read.map_err(|_| Some(Refusal::ProxyProtocol))?;
            is_anonymous = told.is_none();
            source = told.unwrap_or(source);
        }
        let Some(tls) = &self.tls else {
            let (protocol, early) = listen(&mut tcp).await.map_err(|_| None)?;
            return Ok(Opened {
                transport: Transport::Plain(tcp),
                early,
                protocol,
                source,
                is_anonymous,
            });
        };
        let acceptor = TlsAcceptor::from(tls.borrow().clone());
        let accepted = Box::pin(acceptor.accept(tcp)).await;
        let tls = Box::new(accepted.map_err(|_| Some(Refusal::Tls))?);
        let protocol = match tls.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        let (transport, early) = (Transport::Tls(tls), Vec::new());
        Ok(Opened { transport, early, protocol, source, is_anonymous })
    }

    /// What clients may take their time for.
    pub(super) fn client(&self) -> ClientLimits {
        self.plan.config.client
    }
}

/// What a client speaks in clear text, and what it has said so far. Reads instead of peeking, so that a client that
/// stops in the middle is waited for, and one that does not costs no call more.
async fn listen(tcp: &mut TcpStream) -> io::Result<(Protocol, Vec<u8>)> {
    let mut early = Vec::with_capacity(FIRST_READ);
    loop {
        let is_end = tcp.read_buf(&mut early).await? == 0;
        let length = early.len().min(PREFACE.len());
        if is_end && length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if is_end || early[..length] != PREFACE[..length] {
            // It may be all of a request that waits for long.
            early.shrink_to_fit();
            return Ok((Protocol::Http1, early));
        }
        if length == PREFACE.len() {
            return Ok((Protocol::Http2, early));
        }
    }
}

/// Tells a client for which there is no seat so.
pub(super) async fn turn_away(mut tcp: TcpStream) {
    let problem = serialized(&Failure::TooManyConnections.response(), None);
    let said = async {
        tcp.write_all(&problem).await?;
        tcp.shutdown().await?;
        // Until it has heard.
        let mut sink = [0; 1024];
        while tcp.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, said).await;
}
