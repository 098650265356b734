//! 1,000 reloads under load: requests that pass, requests that wait, an upload, a WebSocket and an HTTP/2 stream. Ends with 1
//! when a request fails, when a stream breaks, or when memory grows. `-- RELOADS` sets the number.
#![allow(clippy::print_stdout, reason = "a table is what it is for")]

#[path = "support/gateway.rs"]
mod gateway;

use bytes::Bytes;
use gateway::{PATIENCE, Process, free_port, until_ready};
use std::{
    env, fs, io,
    net::SocketAddr,
    path::Path,
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};

/// The clients that send one request after the other, on a connection of their own.
const CLIENTS: usize = 16;

/// The state of a run, which all clients share.
#[derive(Default)]
struct Run {
    ends: AtomicBool,
    answered: AtomicU64,
    waited: AtomicU64,
    pieces: AtomicU64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    // `cargo test --all-targets` runs every bench without `--bench`: then there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let reloads = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(1000);
    match run(reloads).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(reloads: usize) -> io::Result<bool> {
    let (origin, h2_origin) = (origin().await?, h2_origin().await?);
    let (listen, admin, dir) = (free_port()?, free_port()?, tempfile::tempdir()?);
    let file = dir.path().join("paceway.yaml");
    let head = format!(
        "listen: {listen}\nadmin: {admin}\nworkers: 2\naccess_log: off\nwatch: off\n\
         upstreams:\n  one: http://{origin}\n  two: {{ url: \"http://{h2_origin}\", http2: on }}\n"
    );
    write(&file, &head, 0)?;
    let child = Command::new(env!("CARGO_BIN_EXE_paceway"))
        .args(["run", "--config"])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let gateway = Process(child);
    until_ready(admin).await?;
    let run = Arc::new(Run::default());
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let run = run.clone();
        match client % 4 {
            0 => clients.spawn(async move { requests(listen, "/paced", &run).await }),
            _ => clients.spawn(async move { requests(listen, "/plain", &run).await }),
        };
    }
    for stream in 0..3 {
        let run = run.clone();
        clients.spawn(async move {
            match stream {
                0 => upload(listen, &run).await,
                1 => socket(listen, &run).await,
                _ => h2_stream(listen, &run).await,
            }
        });
    }
    let (mut times, mut memory) = (Vec::new(), Vec::new());
    let started = Instant::now();
    for i in 1..=reloads {
        write(&file, &head, i)?;
        let asked = Instant::now();
        let answer = timeout(PATIENCE, reload(admin)).await??;
        times.push(asked.elapsed());
        if !answer.contains("\"changed\":true") {
            return Err(io::Error::other(answer));
        }
        if i % (reloads / 10).max(1) == 0 {
            memory.push(rss(&gateway)?);
        }
    }
    let span = started.elapsed();
    run.ends.store(true, Relaxed);
    let mut failures = Vec::new();
    while let Some(ended) = clients.join_next().await {
        if let Err(error) = ended? {
            failures.push(error.to_string());
        }
    }
    times.sort();
    let of = |part: usize| times[(times.len() - 1) * part / 100];
    println!("{reloads} reloads in {span:.1?}: p50 {:.1?}, p99 {:.1?}", of(50), of(99));
    println!(
        "{} answers, {} of them after a wait",
        run.answered.load(Relaxed),
        run.waited.load(Relaxed)
    );
    println!("{} pieces of an upload, a WebSocket and an HTTP/2 stream", run.pieces.load(Relaxed));
    println!("failed: {} {failures:?}", failures.len());
    println!("memory after each tenth, KiB: {memory:?}");
    let first = memory.first().copied().unwrap_or_default();
    let is_flat = memory.iter().skip(1).all(|later| *later <= first + first / 4 + 4096);
    Ok(failures.is_empty() && is_flat)
}

/// Writes the file of reload `i`. Each has another rate, another set of limiters and routes, and a route of a new name.
fn write(file: &Path, head: &str, i: usize) -> io::Result<()> {
    let rate = 200 + i % 7;
    let extra: String = (0..i % 5).map(|n| format!("- {{ suffix: /extra{n} }}\n")).collect();
    let extra = extra.replace(" }", ", upstream: one }");
    let text = format!(
        "{head}limiters:\n  paced: {{ rate: {rate}/s, burst: 5 }}\n  places: {{ algorithm: concurrency, max: 50 }}\n\
         \x20 new{i}: 5/s\n\
         routes:\n- {{ suffix: /plain, upstream: one }}\n\
         - {{ suffix: /paced, upstream: one, limiters: [paced], max_wait: 10s }}\n\
         - {{ suffix: /upload, upstream: one, limiters: [places] }}\n\
         - {{ suffix: /socket, upstream: one, limiters: [places] }}\n\
         - {{ suffix: /stream, upstream: two, limiters: [places] }}\n\
         - {{ suffix: /new{i}, upstream: one, limiters: [new{i}] }}\n{extra}"
    );
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, file)
}

async fn reload(admin: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(admin).await?;
    let asked = format!(
        "POST /reload HTTP/1.1\r\nHost: {admin}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(asked.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn rss(gateway: &Process) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.0.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").trim().parse().map_err(io::Error::other)
}

// === the clients

/// Sends requests one after the other, until the run ends. Each has to be answered with 200.
async fn requests(listen: SocketAddr, target: &str, run: &Run) -> io::Result<()> {
    let mut stream = BufReader::new(TcpStream::connect(listen).await?);
    while !run.ends.load(Relaxed) {
        let asked = format!("GET {target} HTTP/1.1\r\nHost: bench\r\n\r\n");
        stream.write_all(asked.as_bytes()).await?;
        let head = timeout(PATIENCE, head(&mut stream)).await??;
        if !head.starts_with("HTTP/1.1 200 ") {
            return Err(io::Error::other(head));
        }
        stream.read_exact(&mut [0; 2]).await?;
        run.answered.fetch_add(1, Relaxed);
        run.waited.fetch_add(u64::from(head.to_lowercase().contains("server-timing")), Relaxed);
    }
    Ok(())
}

/// Reads the head of a message, up to its empty line.
async fn head(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 {
            return Err(io::Error::other(format!("cut after {head:?}")));
        }
    }
    Ok(head)
}

/// Uploads one body for as long as the run lasts.
async fn upload(listen: SocketAddr, run: &Run) -> io::Result<()> {
    let mut stream = BufReader::new(TcpStream::connect(listen).await?);
    let asked = "POST /upload HTTP/1.1\r\nHost: bench\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(asked.as_bytes()).await?;
    while !run.ends.load(Relaxed) {
        stream.write_all(b"5\r\nhello\r\n").await?;
        run.pieces.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    stream.write_all(b"0\r\n\r\n").await?;
    let head = timeout(PATIENCE, head(&mut stream)).await??;
    head.starts_with("HTTP/1.1 200 ").then_some(()).ok_or_else(|| io::Error::other(head))
}

/// Sends lines through a WebSocket, and reads each of them back.
async fn socket(listen: SocketAddr, run: &Run) -> io::Result<()> {
    let mut stream = BufReader::new(TcpStream::connect(listen).await?);
    let asked = "GET /socket HTTP/1.1\r\nHost: bench\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    stream.write_all(asked.as_bytes()).await?;
    let head = timeout(PATIENCE, head(&mut stream)).await??;
    if !head.starts_with("HTTP/1.1 101 ") {
        return Err(io::Error::other(head));
    }
    while !run.ends.load(Relaxed) {
        stream.write_all(b"line\n").await?;
        let mut line = String::new();
        timeout(PATIENCE, stream.read_line(&mut line)).await??;
        if line != "line\n" {
            return Err(io::Error::other(format!("the WebSocket is cut: {line:?}")));
        }
        run.pieces.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Sends pieces through one HTTP/2 stream in both directions.
async fn h2_stream(listen: SocketAddr, run: &Run) -> io::Result<()> {
    let tcp = TcpStream::connect(listen).await?;
    let (mut client, connection) = h2::client::handshake(tcp).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    let request = http::Request::post("http://bench/stream").body(()).map_err(io::Error::other)?;
    let (answer, mut up) = client.send_request(request, false).map_err(io::Error::other)?;
    let answer = timeout(PATIENCE, answer).await?.map_err(io::Error::other)?;
    let mut down = answer.into_body();
    while !run.ends.load(Relaxed) {
        up.send_data(Bytes::from_static(b"piece"), false).map_err(io::Error::other)?;
        let piece = timeout(PATIENCE, down.data()).await?.transpose().map_err(io::Error::other)?;
        let piece = piece.ok_or_else(|| io::Error::other("the stream has ended"))?;
        down.flow_control().release_capacity(piece.len()).map_err(io::Error::other)?;
        run.pieces.fetch_add(1, Relaxed);
    }
    up.send_data(Bytes::new(), true).map_err(io::Error::other)
}

// === the origins

/// Starts an origin that answers requests, takes uploads, and returns the lines of WebSockets.
async fn origin() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let _ = tcp.set_nodelay(true);
            tokio::spawn(serve(BufReader::new(tcp)));
        }
    });
    Ok(address)
}

async fn serve(mut stream: BufReader<TcpStream>) -> io::Result<()> {
    loop {
        let head = head(&mut stream).await?.to_lowercase();
        if head.contains("upgrade: websocket") {
            let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
            let answer = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).await?;
            loop {
                let mut line = Vec::new();
                if stream.read_until(b'\n', &mut line).await? == 0 {
                    return Ok(());
                }
                stream.write_all(&line).await?;
            }
        }
        if head.contains("transfer-encoding: chunked") {
            let mut line = String::new();
            while line != "0\r\n" {
                line.clear();
                if stream.read_line(&mut line).await? == 0 {
                    return Ok(());
                }
            }
            stream.read_exact(&mut [0; 2]).await?;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await?;
    }
}

/// Starts an origin that returns the pieces of HTTP/2 streams.
async fn h2_origin() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(tcp).await?;
                while let Some(next) = connection.accept().await {
                    let (request, mut respond) = next?;
                    let mut up = request.into_body();
                    let mut down = respond.send_response(http::Response::new(()), false)?;
                    tokio::spawn(async move {
                        while let Some(piece) = up.data().await {
                            let piece = piece?;
                            up.flow_control().release_capacity(piece.len())?;
                            down.send_data(piece, false)?;
                        }
                        down.send_data(Bytes::new(), true)
                    });
                }
                Ok::<_, h2::Error>(())
            });
        }
    });
    Ok(address)
}
