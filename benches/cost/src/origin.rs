//! Origins that always give the same answers, on one thread, until they are killed.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use std::io;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime,
};

const BODY: usize = 128;
/// The size of the large answer, and of the uploads of a load.
pub const LARGE: usize = 1 << 20;
const HEAD: usize = 8 * 1024;
const PIECE: usize = 64 * 1024;
/// A message of gRPC: its head of 5 bytes, which says that it is not compressed, and 128 bytes.
pub const MESSAGE: usize = 5 + BODY;

/// The answers of the HTTP/1.1 origin, made once.
#[derive(Clone, Copy)]
struct Answers {
    usual: &'static [u8],
    large: &'static [u8],
}

/// Answers HTTP/1.1 requests: 128 bytes, or 1 MiB for `/v1/large`. Reads bodies that have a length.
pub fn serve(address: &str) -> io::Result<()> {
    let answers = Answers { usual: answer(BODY).leak(), large: answer(LARGE).leak() };
    accept(address, move |stream| answer_all(stream, answers))
}

/// Answers calls of gRPC over HTTP/2 in clear text, each with a message of 128 bytes.
pub fn serve_grpc(address: &str) -> io::Result<()> {
    accept(address, answer_calls)
}

/// The message of a gRPC call.
pub fn message() -> Vec<u8> {
    let mut message = vec![0, 0, 0, 0, BODY as u8];
    message.resize(MESSAGE, b'x');
    message
}

fn accept<F>(address: &str, serve: impl Fn(TcpStream) -> F) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let served = serve(stream);
            // An error of a connection matters to its client alone.
            tokio::spawn(async move { drop(served.await) });
        }
    })
}

fn answer(length: usize) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nServer: origin\r\nDate: Sat, 21 Nov 2026 09:00:00 GMT\r\n\
         Content-Type: text/plain\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.into_bytes(), vec![b'x'; length]].concat()
}

async fn answer_all(mut stream: TcpStream, answers: Answers) -> io::Result<()> {
    let (mut bytes, mut filled) = (vec![0; HEAD], 0);
    loop {
        match stream.read(&mut bytes[filled..]).await? {
            0 => return Ok(()),
            more => filled += more,
        }
        let Some(head) = end_of_head(&bytes[..filled]) else { continue };
        let mut left = length_of_body(&bytes[..head]).saturating_sub(filled - head);
        if left > 0 && bytes.len() < PIECE {
            bytes.resize(PIECE, 0);
        }
        let is_large = bytes.starts_with(b"GET /v1/large");
        while left > 0 {
            match stream.read(&mut bytes).await? {
                0 => return Ok(()),
                more => left = left.saturating_sub(more),
            }
        }
        stream.write_all(if is_large { answers.large } else { answers.usual }).await?;
        filled = 0;
    }
}

/// Returns the end of the head, which comes alone where the request has no body.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    const END: &[u8] = b"\r\n\r\n";
    if bytes.ends_with(END) {
        return Some(bytes.len());
    }
    let end = bytes.windows(END.len()).position(|window| window == END)?;
    Some(end + END.len())
}

fn length_of_body(head: &[u8]) -> usize {
    if head.starts_with(b"GET ") {
        return 0;
    }
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = head.split("content-length:").nth(1).and_then(|rest| rest.split("\r\n").next());
    length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)
}

async fn answer_calls(stream: TcpStream) -> io::Result<()> {
    let mut connection = h2::server::handshake(stream).await.map_err(io::Error::other)?;
    let message = Bytes::from(message());
    while let Some(call) = connection.accept().await {
        let (call, respond) = call.map_err(io::Error::other)?;
        let message = message.clone();
        tokio::spawn(async move { drop(answer_call(call, respond, message).await) });
    }
    Ok(())
}

async fn answer_call(
    call: Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    message: Bytes,
) -> Result<(), h2::Error> {
    let mut body = call.into_body();
    while let Some(bytes) = body.data().await {
        body.flow_control().release_capacity(bytes?.len())?;
    }
    let (mut response, mut trailers) = (Response::new(()), HeaderMap::new());
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", kind);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(message, false)?;
    stream.send_trailers(trailers)
}
