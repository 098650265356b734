//! Both ends of the requests that `request.sh` measures: an origin that always gives the same answer, and a client
//! that makes an exact number of requests on one connection.

use std::{
    env,
    io::{self, Read, Write},
    net,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime,
};

const BODY: usize = 128;
const HEAD: usize = 8 * 1024;
/// The longest answer: a page of metrics.
const ANSWER: usize = 1024 * 1024;

fn main() -> io::Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["--serve", address] => serve(address),
        ["--get", address, path, count] => {
            get(address, path, count.parse().map_err(io::Error::other)?)
        }
        // `cargo bench` and `cargo test --all-targets` run every bench.
        _ => Ok(()),
    }
}

/// Answers everything, on one thread, until it is killed.
fn serve(address: &str) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        let body = "x".repeat(BODY);
        let answer: &str = format!(
            "HTTP/1.1 200 OK\r\nServer: origin\r\nDate: Sat, 21 Nov 2026 09:00:00 GMT\r\n\
             Content-Type: text/plain\r\nContent-Length: {BODY}\r\n\r\n{body}"
        )
        .leak();
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            // A connection's error is its client's.
            tokio::spawn(async move { drop(answer_all(stream, answer.as_bytes()).await) });
        }
    })
}

async fn answer_all(mut stream: TcpStream, answer: &[u8]) -> io::Result<()> {
    let (mut head, mut filled) = ([0; HEAD], 0);
    loop {
        match stream.read(&mut head[filled..]).await? {
            0 => return Ok(()),
            more => filled += more,
        }
        if head[..filled].ends_with(b"\r\n\r\n") {
            stream.write_all(answer).await?;
            filled = 0;
        }
    }
}

/// The request of `wrk`, `count` times.
fn get(address: &str, path: &str, count: usize) -> io::Result<()> {
    let mut stream = net::TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut answer = vec![0; ANSWER];
    for _ in 0..count {
        stream.write_all(request.as_bytes())?;
        let mut filled = 0;
        while !is_whole(&answer[..filled]) {
            match stream.read(&mut answer[filled..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => filled += more,
            }
        }
    }
    Ok(())
}

/// Whether a head and as many bytes as it announces are there.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.split("content-length:").nth(1).and_then(|rest| rest.split("\r\n").next());
    let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    answer.len() >= end + 4 + length
}
