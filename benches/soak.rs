//! Mixed traffic of good and bad clients through one gateway, and its traces: memory, file descriptors, connections and
//! tasks over time. Ends with 1 when something grows or stays. `-- SECONDS` sets the duration, 600 by default.
#![allow(clippy::print_stdout, reason = "a table is what it is for")]

#[path = "support/gateway.rs"]
mod gateway;

use bytes::Bytes;
use gateway::{PATIENCE, Process, free_port, page, until_ready};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    env, fs, io,
    net::SocketAddr,
    process::{Command, ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

const MEBIBYTE: usize = 1 << 20;

/// How often clients of each kind ended in each way.
type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

/// The resources that a gateway holds at one moment.
#[derive(Debug, Clone, Copy)]
struct Held {
    rss_kib: u64,
    fds: usize,
    connections: f64,
    tasks: f64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    // `cargo test --all-targets` runs every bench without `--bench`: then there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let seconds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(600);
    match soak(Duration::from_secs(seconds)).await.expect("a run") {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

async fn soak(span: Duration) -> io::Result<bool> {
    let origin = origin().await?;
    let (listen, admin, dir) = (free_port()?, free_port()?, tempfile::tempdir()?);
    let file = dir.path().join("paceway.yaml");
    fs::write(
        &file,
        format!(
            "listen: {listen}\nadmin: {admin}\naccess_log: off\nupstream: http://{origin}\n\
             client: {{ header_timeout: 500ms, idle_timeout: 2s, body_timeout: 1s }}\n\
             limiters:\n  paced: {{ rate: 200/s, burst: 20 }}\n  few: 1/s\n\
             \x20 places: {{ algorithm: concurrency, max: 20 }}\n\
             routes:\n  - {{ suffix: /paced, limiters: [paced], max_wait: 500ms }}\n\
             \x20 - {{ suffix: /few, limiters: [few] }}\n\
             \x20 - {{ suffix: /socket, limiters: [places], max_wait: 1s }}\n  - {{ suffix: \"*\" }}\n"
        ),
    )?;
    let child = Command::new(env!("CARGO_BIN_EXE_paceway"))
        .args(["run", "--config"])
        .arg(&file)
        .stdout(Stdio::null())
        .spawn()?;
    let gateway = Process(child);
    until_ready(admin).await?;
    let idle = held(&gateway, admin).await?;
    println!("{:>8}{:>10}{:>6}{:>13}{:>7}", "seconds", "RSS, KiB", "fds", "connections", "tasks");
    show("idle", idle);

    let (started, counts) = (Instant::now(), Counts::default());
    let mut clients = JoinSet::new();
    for kind in 0..KINDS.len() * 4 {
        let (counts, (name, _)) = (counts.clone(), KINDS[kind % KINDS.len()]);
        clients.spawn(async move {
            while started.elapsed() < span {
                let ended = timeout(PATIENCE, act(name, listen)).await;
                let ended = match ended {
                    Ok(Ok(how)) => how,
                    Ok(Err(error)) => format!("{:?}", error.kind()),
                    Err(_) => "never ended".into(),
                };
                *counts.lock().entry(format!("{name}: {ended}")).or_default() += 1;
                sleep(Duration::from_millis(5)).await;
            }
        });
    }
    let step = (span / 20).max(Duration::from_secs(1));
    let mut samples = Vec::new();
    while started.elapsed() + step <= span {
        sleep(step).await;
        samples.push(held(&gateway, admin).await?);
        show(&started.elapsed().as_secs().to_string(), samples[samples.len() - 1]);
    }
    while clients.join_next().await.is_some() {}
    let after = settled(&gateway, admin, idle).await?;
    show("after", after);
    println!();
    for (what, count) in counts.lock().iter() {
        println!("{count:>9}  {what}");
    }
    let never = counts.lock().keys().any(|what| what.ends_with("never ended"));
    Ok(verdict(idle, &samples, after) && !never)
}

/// Returns whether nothing grew in the second half, and nothing was left at the end.
fn verdict(idle: Held, samples: &[Held], after: Held) -> bool {
    let (first, second) = samples.split_at(samples.len() / 2);
    let most = |samples: &[Held], of: fn(&Held) -> u64| samples.iter().map(of).max().unwrap_or(0);
    let rss = (most(first, |held| held.rss_kib), most(second, |held| held.rss_kib));
    let fds = (most(first, |held| held.fds as u64), most(second, |held| held.fds as u64));
    let flat = rss.1 <= rss.0 + rss.0 / 10 + 2048 && fds.1 <= fds.0 + fds.0 / 4 + 8;
    let clean = after.connections == 0.0 && after.tasks <= idle.tasks && after.fds <= idle.fds + 4;
    println!(
        "\nflat: {flat} (RSS {} to {} KiB, fds {} to {}), clean: {clean}",
        rss.0, rss.1, fds.0, fds.1
    );
    flat && clean
}

// === the clients

/// The kinds of clients, each with a description of its behaviour.
const KINDS: [(&str, &str); 12] = [
    ("paced", "waits for its slot, or is refused"),
    ("refused", "almost always refused"),
    ("large", "1 MiB up and down"),
    ("keep-alive", "ten requests on one connection"),
    ("leaves while it waits", ""),
    ("leaves in its upload", ""),
    ("leaves in its download", ""),
    ("slow head", "never ends"),
    ("slow body", "never ends"),
    ("socket", "an upgrade, some talk, an end of some kind"),
    ("http/2", "20 streams on one connection, half of them dropped"),
    ("garbage", "no HTTP"),
];

async fn act(kind: &str, gateway: SocketAddr) -> io::Result<String> {
    if kind == "http/2" {
        return streams(gateway).await;
    }
    let mut client = BufReader::new(TcpStream::connect(gateway).await?);
    match kind {
        "paced" => ask(&mut client, "GET /paced HTTP/1.1\r\nHost: a\r\n\r\n").await,
        "refused" => ask(&mut client, "GET /few HTTP/1.1\r\nHost: a\r\n\r\n").await,
        "keep-alive" => {
            for _ in 0..9 {
                ask(&mut client, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n").await?;
            }
            ask(&mut client, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n").await
        }
        "large" => {
            let head =
                format!("POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: {MEBIBYTE}\r\n\r\n");
            client.write_all(head.as_bytes()).await?;
            client.write_all(&vec![b'x'; MEBIBYTE]).await?;
            ask(&mut client, "").await
        }
        "leaves while it waits" => {
            client.write_all(b"GET /paced HTTP/1.1\r\nHost: a\r\n\r\n").await?;
            sleep(Duration::from_millis(20)).await;
            Ok("left".into())
        }
        "leaves in its upload" => {
            let head =
                format!("POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: {MEBIBYTE}\r\n\r\n");
            client.write_all(head.as_bytes()).await?;
            client.write_all(&vec![b'x'; MEBIBYTE / 2]).await?;
            Ok("left".into())
        }
        "leaves in its download" => {
            client.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await?;
            client.read_exact(&mut vec![0; 64 << 10]).await?;
            Ok("left".into())
        }
        "slow head" => drip(client, "GET / HTTP/1.1\r\nHost: a\r\n", "X-More: 1\r\n").await,
        "slow body" => {
            let head = "POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n";
            client.write_all(head.as_bytes()).await?;
            ask(&mut client, "").await
        }
        "socket" => socket(client).await,
        _ => ask(&mut client, "\x16\x03\x01 no HTTP at all\r\n\r\n").await,
    }
}

/// Sends a request, reads a whole answer and returns its status.
async fn ask(client: &mut BufReader<TcpStream>, request: &str) -> io::Result<String> {
    client.write_all(request.as_bytes()).await?;
    let (status, length) = head(client).await?;
    tokio::io::copy(&mut client.take(length), &mut tokio::io::sink()).await?;
    Ok(status)
}

/// Reads the head of an answer: its status and the length of its body.
async fn head(client: &mut BufReader<TcpStream>) -> io::Result<(String, u64)> {
    let (mut status, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if client.read_line(&mut line).await? == 0 {
            return Ok(("closed".into(), 0));
        }
        let line = line.trim_end().to_ascii_lowercase();
        if status.is_empty() {
            status = line.split(' ').nth(1).unwrap_or("nonsense").to_owned();
        } else if let Some(text) = line.strip_prefix("content-length: ") {
            length = text.parse().map_err(io::Error::other)?;
        } else if line.is_empty() {
            return Ok((status, length));
        }
    }
}

/// Sends `start`, then `more` again and again, until the gateway ends the connection.
async fn drip(mut client: BufReader<TcpStream>, start: &str, more: &str) -> io::Result<String> {
    client.write_all(start.as_bytes()).await?;
    loop {
        sleep(Duration::from_millis(50)).await;
        if client.write_all(more.as_bytes()).await.is_err() {
            return Ok("closed".into());
        }
        let looked = timeout(Duration::from_millis(1), client.fill_buf()).await;
        if let Ok(Ok(answer)) = looked {
            let status = answer.get(9..12).map_or("closed".into(), String::from_utf8_lossy);
            return Ok(status.into_owned());
        }
    }
}

async fn socket(mut client: BufReader<TcpStream>) -> io::Result<String> {
    let request = "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    client.write_all(request.as_bytes()).await?;
    let (status, length) = head(&mut client).await?;
    if status != "101" {
        tokio::io::copy(&mut client.take(length), &mut tokio::io::sink()).await?;
        return Ok(status);
    }
    let mut echo = vec![0; 10_000];
    for _ in 0..10 {
        client.write_all(&[b'x'; 10_000]).await?;
        client.read_exact(&mut echo).await?;
    }
    if fastrand::bool() {
        client.shutdown().await?;
        client.read_to_end(&mut echo).await?;
        return Ok("closed in order".into());
    }
    Ok("left".into())
}

async fn streams(gateway: SocketAddr) -> io::Result<String> {
    let stream = TokioIo::new(TcpStream::connect(gateway).await?);
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), stream).await.map_err(io::Error::other)?;
    let driver = tokio::spawn(connection);
    let mut calls = JoinSet::new();
    for i in 0..20 {
        let mut sender = sender.clone();
        let request = hyper::Request::post(format!(
            "http://a/{}",
            if i % 2 == 0 { "large" } else { "paced" }
        ));
        let request =
            request.body(Full::new(Bytes::from(vec![b'x'; 10_000]))).map_err(io::Error::other)?;
        calls.spawn(async move {
            sender.ready().await.map_err(io::Error::other)?;
            let answer = sender.send_request(request);
            if i % 4 == 0 {
                let _ = timeout(Duration::from_millis(5), answer).await;
                return Ok(0);
            }
            let answer = answer.await.map_err(io::Error::other)?;
            let status = answer.status().as_u16();
            answer.into_body().collect().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>(status)
        });
    }
    let mut bad = 0;
    while let Some(status) = calls.join_next().await {
        bad += usize::from(!matches!(status.map_err(io::Error::other)?, Ok(0 | 200 | 429)));
    }
    driver.abort();
    Ok(if bad == 0 { "answered".into() } else { format!("{bad} of 20 streams without an answer") })
}

// === the origin

/// An origin that answers `/large` with 1 MiB, an upgrade with an echo, and every other request with a word.
async fn origin() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // An error of a connection matters to its client alone.
            tokio::spawn(async move { drop(serve(BufReader::new(stream)).await) });
        }
    });
    Ok(address)
}

async fn serve(mut stream: BufReader<TcpStream>) -> io::Result<()> {
    stream.get_ref().set_nodelay(true)?;
    let large = vec![b'x'; MEBIBYTE];
    loop {
        let (mut first, mut length, mut upgrade) = (String::new(), 0, false);
        let mut chunked = false;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            upgrade |= line.starts_with("upgrade:");
            chunked |= line == "transfer-encoding: chunked";
            if first.is_empty() {
                first = line;
            } else if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.parse().map_err(io::Error::other)?;
            } else if line.is_empty() {
                break;
            }
        }
        if upgrade {
            let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
            stream.write_all(head.as_bytes()).await?;
            let (mut reader, mut writer) = tokio::io::split(stream);
            tokio::io::copy(&mut reader, &mut writer).await?;
            return writer.shutdown().await;
        }
        while chunked {
            let mut size = String::new();
            stream.read_line(&mut size).await?;
            let size = u64::from_str_radix(size.trim_end(), 16).map_err(io::Error::other)?;
            tokio::io::copy(&mut (&mut stream).take(size + 2), &mut tokio::io::sink()).await?;
            chunked = size > 0;
        }
        let read = tokio::io::copy(&mut (&mut stream).take(length), &mut tokio::io::sink()).await?;
        if read < length {
            return Ok(());
        }
        let body: &[u8] = if first.contains("/large") { &large } else { b"ok" };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
    }
}

// === the gateway, from outside

fn show(when: &str, held: Held) {
    let Held { rss_kib, fds, connections, tasks } = held;
    println!("{when:>8}{rss_kib:>10}{fds:>6}{connections:>13}{tasks:>7}");
}

/// Waits until the gateway holds as little as at the start, and returns what it holds then, or after 30 s at most.
async fn settled(gateway: &Process, admin: SocketAddr, idle: Held) -> io::Result<Held> {
    let started = Instant::now();
    loop {
        let now = held(gateway, admin).await?;
        let same = now.connections == 0.0 && now.tasks <= idle.tasks && now.fds <= idle.fds;
        if same || started.elapsed() > PATIENCE {
            return Ok(now);
        }
        sleep(Duration::from_millis(200)).await;
    }
}

async fn held(gateway: &Process, admin: SocketAddr) -> io::Result<Held> {
    let process = format!("/proc/{}", gateway.0.id());
    let status = fs::read_to_string(format!("{process}/status"))?;
    let rss =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    let rss_kib = rss.and_then(|rss| rss.trim().parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    let fds = fs::read_dir(format!("{process}/fd"))?.count();
    let page = page(admin, "/metrics").await?;
    let sum = |name: &str| {
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    Ok(Held { rss_kib, fds, connections: sum("paceway_connections{"), tasks: sum("paceway_tasks") })
}
