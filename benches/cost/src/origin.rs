//! An origin that always gives the same answer, on one thread, until it is killed.

use std::io;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime,
};

const BODY: usize = 128;
const HEAD: usize = 8 * 1024;

pub fn serve(address: &str) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
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
            // An error of a connection matters to its client alone.
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
