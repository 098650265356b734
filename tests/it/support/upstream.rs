//! Origins: what a test puts behind a gateway. Each call is written down as it came.

use super::wire::{Conn, Head};
use parking_lot::Mutex;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

/// Port 0 of loopback, for which the system chooses a free port.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// An origin in this process, which ends together with the test.
#[derive(Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    log: Arc<Log>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Log {
    calls: Mutex<Vec<Call>>,
    connections: AtomicUsize,
}

/// A request as it arrived at the origin, with its body.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The instant at which its head had arrived as a whole.
    pub(crate) at: Instant,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

/// The answer of an origin to a call, and the way in which it is sent.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// If set, the origin waits for a permit of it before it answers.
    pub(crate) gate: Option<Arc<Semaphore>>,
    pub(crate) delay: Duration,
    pub(crate) bytes: Vec<u8>,
    /// Whether the origin ends the connection after the answer.
    pub(crate) close: bool,
}

/// A response with a body, after which the connection stays.
pub(crate) fn reply(status: &str, fields: &[(&str, &str)], body: &str) -> Reply {
    let fields: String =
        fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {length}\r\n\r\n{body}");
    Reply { bytes: text.into_bytes(), ..Reply::default() }
}

// === impl Reply ===

impl Reply {
    pub(crate) fn ok() -> Self {
        reply("200 OK", &[], "ok")
    }

    /// An answer of these bytes only, after which the connection ends.
    pub(crate) fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self { bytes: bytes.as_ref().to_vec(), close: true, ..Self::default() }
    }

    pub(crate) fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    pub(crate) fn behind(self, gate: &Arc<Semaphore>) -> Self {
        Self { gate: Some(gate.clone()), ..self }
    }
}

// === impl Upstream ===

impl Upstream {
    /// Starts an origin that answers 200 to every request.
    pub(crate) async fn ok() -> Self {
        Self::start(|_| Reply::ok()).await
    }

    pub(crate) async fn start(handle: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Self {
        Self::on(0, handle).await
    }

    /// Starts an origin on a port that the test has chosen.
    pub(crate) async fn on(
        port: u16,
        handle: impl Fn(&Call) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::at(([127, 0, 0, 1], port), handle).await
    }

    /// Starts an origin on an address that the test has chosen.
    pub(crate) async fn at(
        address: impl Into<SocketAddr>,
        handle: impl Fn(&Call) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let log = Arc::<Log>::default();
        let (handle, calls) = (Arc::new(handle), log.clone());
        let serve = move |stream| serve(Conn::over(stream), handle.clone(), calls.clone());
        Self::listen(address.into(), log, serve).await
    }

    /// Starts an origin that answers 200 to every request, over TLS.
    pub(crate) async fn tls(config: ServerConfig) -> Self {
        Self::tls_with(config, |_| Reply::ok()).await
    }

    /// Starts an origin over TLS.
    pub(crate) async fn tls_with(
        config: ServerConfig,
        handle: impl Fn(&Call) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let handle = Arc::new(handle);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let log = Arc::<Log>::default();
        let calls = log.clone();
        let serve = move |stream| {
            let (acceptor, calls, handle) = (acceptor.clone(), calls.clone(), handle.clone());
            async move {
                // A client that does not trust us breaks off here.
                let Ok(stream) = acceptor.accept(stream).await else { return };
                serve(Conn::over(stream), handle, calls).await;
            }
        };
        Self::listen(LOCAL, log, serve).await
    }

    /// Starts an origin whose connections `serve` handles by itself.
    pub(crate) async fn raw<F: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(Conn) -> F + Send + 'static,
    ) -> Self {
        Self::listen(LOCAL, Arc::default(), move |stream| serve(Conn::over(stream))).await
    }

    async fn listen<F: Future<Output = ()> + Send + 'static>(
        address: SocketAddr,
        log: Arc<Log>,
        serve: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let counted = log.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.connections.fetch_add(1, Relaxed);
                stream.set_nodelay(true).expect("a socket option");
                connections.spawn(serve(stream));
            }
        });
        Self { address, log, task }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All calls that have arrived at the origin so far, in order.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.log.calls.lock().clone()
    }

    /// The instants at which the calls so far arrived.
    pub(crate) fn arrivals(&self) -> Vec<Instant> {
        self.log.calls.lock().iter().map(|call| call.at).collect()
    }

    /// The number of connections that the origin has accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.log.connections.load(Relaxed)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve<H: Fn(&Call) -> Reply>(mut conn: Conn, handle: Arc<H>, log: Arc<Log>) {
    // A client that leaves or breaks off ends its connection and nothing else.
    while let Ok(Some((head, at, body))) = conn.request().await {
        let mut start = head.start.split(' ').map(str::to_owned);
        let (method, target) = (start.next(), start.next());
        let (method, target) = (method.unwrap_or_default(), target.unwrap_or_default());
        let call = Call { at, method, target, head, body };
        let reply = handle(&call);
        log.calls.lock().push(call);
        if let Some(gate) = &reply.gate {
            gate.acquire().await.expect("an open gate").forget();
        }
        sleep(reply.delay).await;
        if conn.send(reply.bytes).await.is_err() || reply.close {
            return;
        }
    }
}
