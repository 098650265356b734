//! A connection of a client, from the moment that it is accepted to its end. Knows nothing of routes and limits.

use super::{
    LINGER, Phase,
    clock::Clock,
    edge::{Edge, Stream, Wait, serialized},
    http2::{self, Pieces, Streams},
    proxy_protocol::{self, Source},
    seats::{Seat, Seats},
    transport::Transport,
};
use crate::{
    answer::Failure,
    config::{Client, Limits},
    gateway::{Body, Gateway, Peer, Plan},
    key,
    metrics::{Protocol, Refusal},
};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::CONNECTION};
use http_body::{Frame, SizeHint};
use hyper::{
    body::Incoming,
    server::conn::{
        http1::{self, UpgradeableConnection},
        http2::Connection,
    },
    service::service_fn,
};
use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
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
/// Of a request that was refused, still under way: so much is taken while the client hears of it.
const LAST_WORDS: usize = 4 << 20;

/// Where clients come in: what the connections of one worker share.
pub(super) struct Door {
    pub(super) gateway: Gateway,
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

/// A connection that speaks HTTP.
struct Served {
    door: Arc<Door>,
    peer: Arc<Peer>,
    stream: Arc<Stream>,
    /// A request was refused, and the connection with it.
    refused: AtomicBool,
}

/// A client that has said who it is and what it speaks.
struct Opened {
    transport: Transport,
    early: Vec<u8>,
    protocol: Protocol,
    source: Source,
}

/// How a connection came to its end.
enum End {
    /// The parser has no more to do.
    Over(hyper::Result<()>),
    /// The client kept us waiting.
    Late(Wait),
    /// The gateway stops.
    Aborted,
}

/// The body of a response; tells the connection when it has ended.
struct Watched {
    body: Body,
    served: Arc<Served>,
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
        let Opened { transport, early, protocol, source } = opened;
        let config = &self.plan.config;
        let is_tls = matches!(transport, Transport::Tls(_));
        let stream = Arc::new(Stream::new(transport, early, protocol, seat, config.limits));
        let trusted = &config.trusted_proxies;
        let peer = Peer::new(source.ip, source.port, is_tls, trusted, stream.clone());
        let peer = Arc::new(peer);
        let served = Served { door: self, peer, stream, refused: AtomicBool::new(false) };
        match protocol {
            Protocol::Http2 => Arc::new(served).http2().await,
            Protocol::Http1 | Protocol::Tunnel => Arc::new(served).http1().await,
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
        let ip = source.ip.to_canonical();
        if config.proxy_protocol && key::is_trusted(ip, &config.trusted_proxies) {
            let read = proxy_protocol::read(&mut tcp).await;
            source = read.map_err(|_| Some(Refusal::ProxyProtocol))?.unwrap_or(source);
        }
        let Some(tls) = &self.tls else {
            let (protocol, early) = listen(&mut tcp).await.map_err(|_| None)?;
            return Ok(Opened { transport: Transport::Plain(tcp), early, protocol, source });
        };
        let acceptor = TlsAcceptor::from(tls.borrow().clone());
        let accepted = Box::pin(acceptor.accept(tcp)).await;
        let tls = Box::new(accepted.map_err(|_| Some(Refusal::Tls))?);
        let protocol = match tls.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        Ok(Opened { transport: Transport::Tls(tls), early: Vec::new(), protocol, source })
    }

    fn client(&self) -> Client {
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

// === impl Served ===

impl Served {
    async fn http1(self: Arc<Self>) {
        let end = {
            let served = self.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                served.stream.begin(&request);
                served.clone().answer(request)
            });
            let limits = &self.door.plan.config.limits;
            let mut builder = http1::Builder::new();
            builder.header_read_timeout(None).max_header_size(limits.header_bytes);
            // Any other number costs every request a little.
            if limits.headers != Limits::default().headers {
                builder.max_headers(limits.headers);
            }
            let connection = builder.serve_connection(Edge(self.stream.clone()), service);
            let connection = pin!(connection.with_upgrades());
            let close =
                |connection: Pin<&mut UpgradeableConnection<_, _>>| connection.graceful_shutdown();
            self.drive(connection, close, Phase::ClosingIdle, |cx| self.stream.waits(cx)).await
        };
        // The connection is gone, and with it its request and all that was held for it.
        match end {
            End::Over(_) if self.stream.is_heeded() => self.part().await,
            End::Over(_) | End::Aborted => {}
            End::Late(Wait::Head) => self.give_up().await,
            End::Late(wait) => self.late(wait),
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Watched>, Infallible> {
        let mut response = self.door.gateway.handle(&self.peer, request).await;
        if !response.status().is_success() && response.headers().contains_key(CONNECTION) {
            self.refused.store(true, Relaxed);
        }
        let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if self.door.draining.load(Relaxed) && !is_switched {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if is_switched {
            self.stream.becomes_tunnel();
        }
        self.stream.answered();
        Ok(response.map(|body| Watched { body, served: self }))
    }

    async fn http2(self: Arc<Self>) {
        let streams = Streams::new(self.door.client().body_timeout);
        let end = {
            let served = self.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let served = served.clone();
                async move {
                    let response = served.door.gateway.handle(&served.peer, request).await;
                    Ok::<_, Infallible>(response.map(Pieces::of))
                }
            });
            let builder = http2::builder(streams.clone(), &self.door.plan.config.limits);
            let mut connection = pin!(builder.serve_connection(Edge(self.stream.clone()), service));
            let close = |connection: Pin<&mut Connection<_, _, _>>| connection.graceful_shutdown();
            let waits = |cx: &mut Context<'_>| match self.stream.waits(cx) {
                (Wait::Start | Wait::Request, _) if !streams.poll_none(cx) => (Wait::Nothing, 0),
                waits => waits,
            };
            let end = self.drive(connection.as_mut(), close, Phase::Draining, waits).await;
            if let End::Late(Wait::Start | Wait::Request) = end {
                // It is told so; that nothing more comes of it is not its choice.
                close(connection.as_mut());
                let _ = timeout(LINGER, connection).await;
            }
            end
        };
        match end {
            End::Late(wait) => self.late(wait),
            End::Over(Err(error)) if is_offence(&error) => self.door.seats.refuse(Refusal::Http2),
            End::Over(_) | End::Aborted => {}
        }
        streams.end().await;
    }

    /// Drives a connection to its end; from `phase` on towards it.
    async fn drive<C: Future<Output = hyper::Result<()>>>(
        &self,
        mut connection: Pin<&mut C>,
        close: impl Fn(Pin<&mut C>),
        mut phase: Phase,
        waits: impl Fn(&mut Context<'_>) -> (Wait, u32),
    ) -> End {
        let (mut clock, mut phases) = (Clock::new(self.door.client()), self.door.phases.clone());
        loop {
            let end = poll_fn(|cx| {
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(End::Over(ended));
                }
                let waits = waits(cx);
                clock.poll(cx, waits).map(End::Late)
            });
            tokio::select! {
                biased;
                end = end => return end,
                _ = phases.wait_for(|now| *now >= phase) => {}
            }
            if phase == Phase::Aborting {
                return End::Aborted;
            }
            close(connection.as_mut());
            clock.hurry();
            phase = Phase::Aborting;
        }
    }

    /// The last of a connection that its parser has done with.
    async fn part(&self) {
        let refused = self.stream.refused();
        if let Some(status) = refused {
            self.door.gateway.unparsed(&self.peer, status);
        }
        let is_told = refused.is_some() || self.refused.load(Relaxed) || self.stream.is_unread();
        if is_told && *self.door.phases.borrow() < Phase::ClosingIdle {
            let _ = timeout(LINGER, self.stream.close(LAST_WORDS)).await;
        }
    }

    /// The rest of a head does not come.
    async fn give_up(&self) {
        let failure = Failure::HeadTimeout.response();
        self.door.seats.refuse(Refusal::HeaderTimeout);
        self.door.gateway.unparsed(&self.peer, failure.status());
        let said = async {
            if self.stream.say(&serialized(&failure, None)).await.is_ok() {
                self.stream.close(LAST_WORDS).await;
            }
        };
        let _ = timeout(LINGER, said).await;
    }

    fn late(&self, wait: Wait) {
        match wait {
            Wait::Start | Wait::Head => self.door.seats.refuse(Refusal::HeaderTimeout),
            Wait::Write => {
                self.stream.reset();
                self.door.seats.refuse(Refusal::Stalled);
            }
            Wait::Request | Wait::Nothing => {}
        }
    }
}

/// Whether it was us who broke off, because of what the client sent.
fn is_offence(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| error.is_library() && !error.is_io())
}

// === impl Watched ===

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.served.stream.end();
    }
}
