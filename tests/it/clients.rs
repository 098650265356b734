//! Clients and origins that others wrote, with the gateway between them: curl, h2load, httpx, undici, the gRPC
//! library and a WebSocket library of Python. `make test` installs them; their halves are in `tests/clients`.

mod curl;
mod early;
mod sdks;

use crate::support::{Conn, Gateway, PATIENCE, Upstream, eventually};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rstest::rstest;
use serde_json::{Map, json};
use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tokio::sync::Semaphore;

/// A gateway with certificates before an origin, and the file of the authority that signed them.
struct Secured {
    gateway: Gateway,
    ca: PathBuf,
    dir: tempfile::TempDir,
}

/// A server in another process; it ends with the test.
struct Server {
    child: Child,
    port: u16,
    _stdin: ChildStdin,
}

// === impl Server ===

impl Server {
    fn start(script: &str, args: &[&str]) -> Self {
        let mut command = python(script, args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
        let stdin = child.stdin.take().expect("a pipe");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("its port");
        Self { child, port: line.trim().parse().expect("a port"), _stdin: stdin }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn python(script: &str, args: &[&str]) -> Command {
    let mut command = Command::new("target/clients/python/bin/python");
    command.arg(format!("tests/clients/{script}")).args(args);
    command
}

/// Node, the system's or the one that came with the clients.
fn node(args: &[&str]) -> Command {
    let own = env::current_dir().expect("a directory").join("target/clients/python/bin");
    let path = env::var("PATH").unwrap_or_default();
    let mut command = Command::new("node");
    command.env("PATH", format!("{path}:{}", own.display()));
    command.env("CLIENTS", own.parent().and_then(Path::parent).expect("target/clients"));
    command.args(args);
    command
}

/// Runs a client to its end, which must be a good one; what it printed.
async fn run(mut command: Command) -> String {
    let name = format!("{command:?}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{name}: {error}; `make test` installs what is missing"));
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.expect("a pipe").read_to_end(&mut bytes);
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
        });
        receiver
    };
    let stdout = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let ended = tokio::task::spawn_blocking(move || {
        // The client itself gives up earlier.
        for _ in 0..12_000 {
            if let Some(status) = child.try_wait().expect("its state") {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        None
    });
    let status = ended.await.expect("no panic");
    let (stdout, stderr) = (stdout.recv().expect("text"), stderr.recv().expect("text"));
    assert!(status.is_some_and(|status| status.success()), "{name} {status:?}\n{stdout}\n{stderr}");
    stdout
}

/// An origin that describes each request as JSON, except on some paths: `/status/N`, `/never`, and `/events`, whose next
/// event waits until a request for `/saw/I` says that the one before has come.
async fn origin() -> Upstream {
    let seen: Arc<Vec<Semaphore>> = Arc::new((0..5).map(|_| Semaphore::new(0)).collect());
    Upstream::raw(move |mut conn| {
        let seen = seen.clone();
        async move {
            while let Ok(Some((head, _, body))) = conn.request().await {
                let mut words = head.start.split(' ');
                let method = words.next().unwrap_or_default().to_owned();
                let target = words.next().unwrap_or_default().to_owned();
                let sent = match target.split_once("/status/") {
                    Some((_, status)) => {
                        let fields = "Location: /elsewhere\r\nContent-Length: 0\r\n";
                        let fields = if status == "204" { "" } else { fields };
                        conn.send(format!("HTTP/1.1 {status} So\r\n{fields}\r\n")).await
                    }
                    None if target == "/never" => {
                        conn.rest().await;
                        return;
                    }
                    None if target == "/events" => events(&mut conn, &seen).await,
                    None => {
                        if let Some(i) = target.strip_prefix("/saw/") {
                            seen[i.parse::<usize>().expect("a number")].add_permits(1);
                        }
                        let mut fields = Map::new();
                        for (name, value) in &head.fields {
                            fields.insert(name.clone(), json!(value));
                        }
                        let body = String::from_utf8_lossy(&body);
                        let told = json!({
                            "method": method, "target": target, "fields": fields, "body": body,
                        });
                        let told = told.to_string();
                        let length = told.len();
                        let text = if method == "HEAD" { "" } else { told.as_str() };
                        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
                        conn.send(format!("{head}Content-Length: {length}\r\n\r\n{text}")).await
                    }
                };
                if sent.is_err() {
                    return;
                }
            }
        }
    })
    .await
}

async fn events(conn: &mut Conn, seen: &[Semaphore]) -> std::io::Result<()> {
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    conn.send(head).await?;
    for (i, seen) in seen.iter().enumerate() {
        let event = format!("data: {i}\n\n");
        conn.send(format!("{:x}\r\n{event}\r\n", event.len())).await?;
        let told = tokio::time::timeout(PATIENCE, seen.acquire()).await;
        told.expect("the client has seen the event before the next one").expect("open").forget();
    }
    conn.send("0\r\n\r\n").await
}

async fn before(url: &str) -> Gateway {
    Gateway::start(&format!("upstream: {url}\n{ROUTES}")).await
}

const ROUTES: &str = "
limiters:
  limited: 1/day
  places: { algorithm: concurrency, max: 2 }
routes:
  - { suffix: /test.Echo/Limited, limiters: [limited] }
  - { suffix: /held, limiters: [places] }
  - { name: grpc, suffix: \"*\" }
";

/// The same gateway over TLS, with the authority that clients must trust.
async fn secured(upstream: &str) -> Secured {
    let dir = tempfile::tempdir().expect("a directory");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate with the name of its issuer for one that signed itself.
    params.distinguished_name.push(DnType::CommonName, "the authority of a test");
    let ca_key = KeyPair::generate().expect("a key");
    let ca = params.self_signed(&ca_key).expect("a certificate");
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]);
    let cert = params.expect("parameters").signed_by(&key, &issuer).expect("a certificate");
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("a file");
        path
    };
    let ca = file("ca.pem", ca.pem());
    let cert = file("cert.pem", cert.pem());
    let key = file("key.pem", key.serialize_pem());
    let tls = format!("tls: {{ cert: {}, key: {} }}\n", cert.display(), key.display());
    let gateway = Gateway::start(&format!("{tls}{upstream}\n{ROUTES}")).await;
    Secured { gateway, ca, dir }
}

#[tokio::test(flavor = "multi_thread")]
async fn httpx_works_through_the_gateway() {
    let origin = origin().await;
    let gateway = before(&origin.url()).await;
    let plain = run(python("httpx_client.py", &[&format!("http://{}", gateway.listen)])).await;
    assert_eq!(plain.lines().count(), 5, "{plain}");
    let secured = secured(&format!("upstream: {}", origin.url())).await;
    let url = format!("https://localhost:{}", secured.gateway.listen.port());
    let tls = run(python("httpx_client.py", &[&url, secured.ca.to_str().expect("text")])).await;
    assert_eq!(tls.lines().count(), 10, "{tls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn undici_works_through_the_gateway() {
    let origin = origin().await;
    let gateway = before(&origin.url()).await;
    let script = "tests/clients/undici.mjs";
    let plain = run(node(&[script, &format!("http://{}", gateway.listen)])).await;
    assert_eq!(plain.lines().count(), 4, "{plain}");
    let secured = secured(&format!("upstream: {}", origin.url())).await;
    let url = format!("https://localhost:{}", secured.gateway.listen.port());
    let tls = run(node(&[script, &url, secured.ca.to_str().expect("text")])).await;
    assert_eq!(tls.lines().count(), 7, "{tls}");
}

#[rstest]
#[case::in_clear_text(false)]
#[case::over_tls(true)]
#[tokio::test(flavor = "multi_thread")]
async fn grpc_works_through_the_gateway(#[case] tls: bool) {
    let server = Server::start("grpc_upstream.py", &[]);
    let upstream = format!("upstreams: {{ grpc: {{ url: \"{}\", http2: true }} }}", server.url());
    let seen = if tls {
        let secured = secured(&upstream).await;
        let ca = secured.ca.to_str().expect("text").to_owned();
        run(python("grpc_client.py", &[&secured.gateway.listen.to_string(), &ca])).await
    } else {
        let gateway = Gateway::start(&format!("{upstream}\n{ROUTES}")).await;
        run(python("grpc_client.py", &[&gateway.listen.to_string()])).await
    };
    assert_eq!(seen.lines().count(), 10, "{seen}");
}

#[rstest]
#[case::in_clear_text(false)]
#[case::over_tls(true)]
#[tokio::test(flavor = "multi_thread")]
async fn websockets_work_through_the_gateway(#[case] tls: bool) {
    let server = Server::start("websocket.py", &["serve"]);
    let seen = if tls {
        let secured = secured(&format!("upstream: {}", server.url())).await;
        let ca = secured.ca.to_str().expect("text").to_owned();
        run(python("websocket.py", &["call", &secured.gateway.listen.to_string(), &ca])).await
    } else {
        let gateway = before(&server.url()).await;
        run(python("websocket.py", &["call", &gateway.listen.to_string()])).await
    };
    assert_eq!(seen.lines().count(), 5, "{seen}");
}

/// Two sockets hold both permits of the limiter until they close.
#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_holds_its_permit_as_long_as_it_is_open() {
    let server = Server::start("websocket.py", &["serve"]);
    let gateway = before(&server.url()).await;
    let mut command = python("websocket.py", &["hold", &gateway.listen.to_string(), "3"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the client");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!([next(), next(), next()], ["open", "open", "429"]);
    assert_eq!(gateway.limiter("places").await["level"], 0);
    writeln!(child.stdin.take().expect("a pipe")).expect("a line");
    assert_eq!(next(), "closed");
    eventually("the permits are free", async || {
        (gateway.limiter("places").await["level"] == 2).then_some(())
    })
    .await;
    assert!(child.wait().expect("its end").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_passes_the_h2_conformance_suite() {
    let origin = origin().await;
    let gateway = before(&origin.url()).await;
    let seen = run(python("h2spec.py", &[&gateway.listen.to_string()])).await;
    assert!(seen.contains("as they must be, 0 not"), "{seen}");
    assert!(seen.lines().count() > 80, "{seen}");
}

#[rstest]
#[case::http_1(&["--h1"], false)]
#[case::http_2(&[], false)]
#[case::http_2_over_tls(&[], true)]
#[tokio::test(flavor = "multi_thread")]
async fn h2load_gets_every_answer(#[case] args: &[&str], #[case] tls: bool) {
    let origin = Upstream::ok().await;
    let gateway = match tls {
        true => secured(&format!("upstream: {}", origin.url())).await.keep(),
        false => (before(&origin.url()).await, None),
    };
    let scheme = if tls { "https" } else { "http" };
    let mut command = Command::new("h2load");
    command.args(args).args(["-n", "4000", "-c", "8", "-m", "16"]);
    command.arg(format!("{scheme}://{}/x", gateway.0.listen));
    let seen = run(command).await;
    let wanted =
        "4000 total, 4000 started, 4000 done, 4000 succeeded, 0 failed, 0 errored, 0 timeout";
    assert!(seen.contains(wanted), "{seen}");
    assert!(seen.contains("status codes: 4000 2xx"), "{seen}");
}

impl Secured {
    fn keep(self) -> (Gateway, Option<tempfile::TempDir>) {
        (self.gateway, Some(self.dir))
    }
}
