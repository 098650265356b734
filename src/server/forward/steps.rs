//! The steps after the head of a CONNECT: it is answered, and the gateway speaks as the host or connects to it. Forwards no
//! request.

use super::{BlindTunnel, ForwardDoor, TLS_HANDSHAKE, consent::Consent};
use crate::{
    answer::Failure,
    config::Config,
    log::{Permit, Throttle},
    metrics::{Protocol, Refusal},
    proxy::TunnelRecord,
    server::{
        acceptor::say,
        context::ConnectionContext,
        edge::serialized,
        handshake::{ArrivedClient, Handshake, Opened, detect},
        proxy_protocol::ClientAddress,
        transport::Transport,
    },
    tls::client::Chain,
    upstream::{DirectConnection, DirectError, DirectTerms, UpstreamError, UrlOrigin},
};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;

/// The answer to a CONNECT; what follows it belongs to the tunnel (RFC 9110 section 9.3.6).
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// A client whose CONNECT was read.
pub(in crate::server) struct AskedTunnel {
    pub(super) door: Arc<ForwardDoor>,
    pub(super) client: ArrivedClient,
    /// The host and port that it names, or the failure to answer with.
    pub(super) asked: Result<UrlOrigin, Failure>,
}

/// A client that has its 200, and to which the gateway answers as the host.
pub(in crate::server) struct GrantedTunnel {
    door: Arc<ForwardDoor>,
    client: ArrivedClient,
    origin: UrlOrigin,
}

// === impl AskedTunnel ===

impl AskedTunnel {
    /// Answers the CONNECT, for a host of no upstream once that is connected, which takes `header_timeout` at most.
    ///
    /// # Errors
    ///
    /// `None`, for a client that left or was refused.
    pub(in crate::server) async fn answer(
        self,
        context: &ConnectionContext,
    ) -> Result<Opened, Option<Refusal>> {
        let Self { door, mut client, asked } = self;
        let (proxy, ip) = (context.proxy.load(), client.address.ip);
        let origin = match asked {
            Ok(origin) => origin,
            Err(failure) => {
                let response = failure.response();
                proxy.unparsed(ip.to_canonical(), response.status());
                say(client.tcp, &serialized(&response, None)).await;
                return Err(None);
            }
        };
        let plan = context.plan();
        let record = TunnelRecord::begin(proxy, ip, &origin);
        let decided = match door.consent(&plan, &origin) {
            Ok(Consent::Open) => {
                door.note_use();
                Ok(None)
            }
            Ok(Consent::Tunnel { may_be_local }) => {
                door.tunnel(&origin, may_be_local, &plan.config).await.map(Some)
            }
            Err(failure) => Err(failure),
        };
        drop(plan);
        match decided {
            Ok(connected) => {
                client.tcp.write_all(ESTABLISHED).await.map_err(|_| None)?;
                Ok(match connected {
                    None => Opened::Granted(Box::new(GrantedTunnel { door, client, origin })),
                    Some(upstream) => {
                        let client = client.tcp;
                        Opened::Tunnel(Box::new(BlindTunnel { client, upstream, record }))
                    }
                })
            }
            Err(failure) => {
                let response = failure.response();
                record.refuse(&failure, response.status());
                say(client.tcp, &serialized(&response, None)).await;
                Err(None)
            }
        }
    }
}

// === impl GrantedTunnel ===

impl GrantedTunnel {
    /// Answers as the host of the tunnel: over TLS with a certificate for it, or in clear text, as the client begins. Sets no
    /// time-out.
    ///
    /// # Errors
    ///
    /// The reason to count; `None` for a client that left.
    pub(in crate::server) async fn open(self) -> Result<Opened, Option<Refusal>> {
        let Self { door, client: ArrivedClient { mut tcp, address, is_anonymous }, origin } = self;
        let mut first = [0; 1];
        if tcp.peek(&mut first).await.map_err(|_| None)? == 0 {
            return Err(None);
        }
        let address = ClientAddress { port: origin.port, ..address };
        let origin = origin.with_scheme(first[0] == TLS_HANDSHAKE);
        let (transport, early, protocol) = if origin.is_https {
            let config = door.certificates.config(&origin.host).map_err(|error| {
                tracing::warn!(host = origin.host, error = %Chain(&error), "no certificate for the host");
                Some(Refusal::Tls)
            })?;
            let accepted = Box::pin(TlsAcceptor::from(config).accept(tcp)).await;
            let tls = Box::new(accepted.map_err(|error| {
                tracing::debug!(host = origin.host, %error, "a client of the forward proxy does not trust its authority");
                Some(Refusal::Tls)
            })?);
            let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            let protocol = if is_h2 { Protocol::Http2 } else { Protocol::Http1 };
            (Transport::Tls(tls), Vec::new(), protocol)
        } else {
            let (protocol, early) = detect(&mut tcp).await.map_err(|_| None)?;
            (Transport::Plain(tcp), early, protocol)
        };
        let forward = Some(door.connection(Some(origin)));
        Ok(Handshake { transport, early, protocol, address, is_anonymous, forward }.into())
    }
}

// === impl ForwardDoor ===

impl ForwardDoor {
    /// Opens the other side of a tunnel.
    async fn tunnel(
        &self,
        origin: &UrlOrigin,
        may_be_local: bool,
        config: &Config,
    ) -> Result<DirectConnection, Failure> {
        let limit = config.client.header_timeout;
        let terms = DirectTerms { may_be_local, resolver: &config.resolver, limit };
        self.direct.connect(origin, terms).await.map_err(|error| {
            warn_of(origin, &error);
            match error {
                DirectError::OffLimits(_) | DirectError::Loopback => {
                    Failure::Forbidden(error.to_string().into())
                }
                DirectError::Timeout => Failure::Upstream(UpstreamError::ConnectTimeout),
                error => Failure::Upstream(UpstreamError::Connect(error.into())),
            }
        })
    }
}

/// Writes why a host cannot be reached: its client reads no body of an answer to CONNECT.
fn warn_of(origin: &UrlOrigin, error: &DirectError) {
    static LINES: Throttle = Throttle::new();
    if let Some(Permit { suppressed }) = LINES.permit() {
        let UrlOrigin { host, port, .. } = origin;
        tracing::warn!(host, port, error = %Chain(error), suppressed, "no tunnel to the host of a CONNECT");
    }
}
