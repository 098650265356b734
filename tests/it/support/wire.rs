//! HTTP/1.1 as bytes on a socket, for both ends: the test sends exactly the bytes that it wrote, and an answer that breaks
//! off is distinguished from one that ends.

use super::PATIENCE;
use std::{
    io::{Error, ErrorKind, Result},
    net::SocketAddr,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

/// A connection of a test, on the side of a client or of an upstream.
pub(crate) struct Conn {
    stream: Box<dyn Stream>,
    /// The bytes that were read from it and not used yet.
    buffer: Vec<u8>,
}

/// A transport of bytes: TCP, or TLS over it.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The first line and the fields of a message.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) start: String,
    /// The fields in the order in which they came; names in lower case.
    pub(crate) fields: Vec<(String, String)>,
}

/// A whole response: its head, its body, and its trailers.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    /// The instant at which the end of the response had arrived.
    pub(crate) at: Instant,
}

/// How the end of a body is found (RFC 9112 section 6.3).
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// Writes the head of a request of HTTP/1.1 without a body.
pub(crate) fn request(method: &str, target: &str, fields: &[(&str, &str)]) -> String {
    let fields: String =
        fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")
}

/// Sends one GET on a connection of its own, and reads the answer.
pub(crate) async fn get(address: SocketAddr, target: &str) -> Answer {
    let mut conn = Conn::to(address).await.expect("connect");
    conn.send(request("GET", target, &[])).await.expect("send");
    conn.answer().await.expect("a whole answer")
}

// === impl Head ===

impl Head {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        let field = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let fields = lines.filter(|line| !line.is_empty()).map(field).collect::<Option<_>>();
        Ok(Self { start, fields: fields.ok_or(ErrorKind::InvalidData)? })
    }

    /// The value of a field; the test fails if the field occurs twice.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        match self.all(name)[..] {
            [] => None,
            [value] => Some(value),
            ref values => panic!("{name} stands there {} times: {values:?}", values.len()),
        }
    }

    /// The values of all fields of this name, in their order.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let same = self.fields.iter().filter(|(own, _)| own == name);
        same.map(|(_, value)| value.as_str()).collect()
    }

    fn framing(&self, otherwise: Framing) -> Result<Framing> {
        if self
            .get("transfer-encoding")
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
        {
            return Ok(Framing::Chunked);
        }
        match self.get("content-length") {
            Some(length) => {
                Ok(Framing::Length(length.parse().map_err(|_| ErrorKind::InvalidData)?))
            }
            None => Ok(otherwise),
        }
    }
}

// === impl Answer ===

impl Answer {
    /// The value of a field; the test fails if the field occurs twice.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.get(name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// How long it was held, from `Server-Timing`, in ms; zero when it does not say.
    pub(crate) fn held_ms(&self) -> f64 {
        let Some(value) = self.field("server-timing") else { return 0.0 };
        let rest = value.strip_prefix("paceway;dur=").expect("the gateway's timing");
        let ms = rest.split(';').next().unwrap_or_default();
        ms.parse().expect("a number of ms")
    }

    /// The name of a problem that the gateway made; fails where it does not carry what every such carries.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.field("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.field("paceway-origin"), Some("gateway"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        for text in ["type", "title", "detail"] {
            assert!(problem[text].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        problem["code"].as_str().expect("a code").to_owned()
    }
}

// === impl Conn ===

impl Conn {
    pub(crate) async fn to(address: SocketAddr) -> Result<Self> {
        let stream = limit(TcpStream::connect(address)).await?;
        // Bytes are sent at once: tests look at when they arrive.
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    pub(crate) fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), buffer: Vec::new() }
    }

    /// Splits the connection, so that both directions can be used at the same time.
    pub(crate) fn split(self) -> (Self, Self) {
        let (read, write) = tokio::io::split(self.stream);
        let reader = tokio::io::join(read, tokio::io::empty());
        let writer = tokio::io::join(tokio::io::empty(), write);
        (Self { stream: Box::new(reader), buffer: self.buffer }, Self::over(writer))
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        limit(self.stream.write_all(bytes.as_ref())).await
    }

    /// Ends our direction; the other side may continue to send.
    pub(crate) async fn close_write(&mut self) -> Result<()> {
        limit(self.stream.shutdown()).await
    }

    /// Reads more bytes into the buffer; returns false at the end of the connection.
    async fn fill(&mut self) -> Result<bool> {
        Ok(limit(self.stream.read_buf(&mut self.buffer)).await? > 0)
    }

    /// The next head; `None` when the connection ends before its first byte.
    pub(crate) async fn head(&mut self) -> Result<Option<Head>> {
        loop {
            if let Some(end) = position(&self.buffer, b"\r\n\r\n") {
                let head = Head::parse(&self.buffer[..end]);
                self.buffer.drain(..end + 4);
                return head.map(Some);
            }
            if !self.fill().await? {
                return if self.buffer.is_empty() { Ok(None) } else { Err(broken()) };
            }
        }
    }

    /// Reads until `mark` has come, and returns all that came before its end.
    pub(crate) async fn until(&mut self, mark: &str) -> Result<String> {
        loop {
            if let Some(start) = position(&self.buffer, mark.as_bytes()) {
                let taken = self.buffer.drain(..start + mark.len()).collect();
                return Ok(String::from_utf8(taken).expect("text"));
            }
            if !self.fill().await? {
                return Err(broken());
            }
        }
    }

    /// Reads the next bytes, at least one; `None` at the end.
    pub(crate) async fn some(&mut self) -> Result<Option<Vec<u8>>> {
        if self.buffer.is_empty() && !self.fill().await? {
            return Ok(None);
        }
        Ok(Some(std::mem::take(&mut self.buffer)))
    }

    /// All that comes until the connection ends, in whatever way.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        loop {
            match self.fill().await {
                Ok(true) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => panic!("it never ended"),
                Ok(false) | Err(_) => return std::mem::take(&mut self.buffer),
            }
        }
    }

    /// Reads this many bytes and drops them, as of a large body.
    pub(crate) async fn skip(&mut self, length: usize) -> Result<()> {
        let buffered = length.min(self.buffer.len());
        self.buffer.drain(..buffered);
        let (mut left, mut forgotten) = (length - buffered, vec![0; 1 << 18]);
        while left > 0 {
            let most = left.min(forgotten.len());
            match limit(self.stream.read(&mut forgotten[..most])).await? {
                0 => return Err(broken()),
                read => left -= read,
            }
        }
        Ok(())
    }

    pub(crate) async fn exactly(&mut self, length: usize) -> Result<Vec<u8>> {
        while self.buffer.len() < length {
            if !self.fill().await? {
                return Err(broken());
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    async fn body(&mut self, framing: Framing) -> Result<Vec<u8>> {
        match framing {
            Framing::Length(length) => self.exactly(length).await,
            Framing::Chunked => {
                let mut body = Vec::new();
                loop {
                    let line = self.until("\r\n").await?;
                    let size = line.trim_end().split(';').next().unwrap_or_default();
                    let size =
                        usize::from_str_radix(size, 16).map_err(|_| ErrorKind::InvalidData)?;
                    body.extend(self.exactly(size).await?);
                    if self.until("\r\n").await?.len() != 2 {
                        return Err(ErrorKind::InvalidData.into());
                    }
                    if size == 0 {
                        return Ok(body);
                    }
                }
            }
            Framing::UntilClose => {
                while self.fill().await? {}
                Ok(std::mem::take(&mut self.buffer))
            }
        }
    }

    /// The next request, with its body; `None` when the client is done.
    pub(crate) async fn request(&mut self) -> Result<Option<(Head, Instant, Vec<u8>)>> {
        let Some(head) = self.head().await? else { return Ok(None) };
        let at = Instant::now();
        if head.get("expect").is_some() {
            self.send("HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let body = self.body(head.framing(Framing::Length(0))?).await?;
        Ok(Some((head, at, body)))
    }

    /// The whole response to a request that may have a body in it.
    pub(crate) async fn answer(&mut self) -> Result<Answer> {
        self.answer_to("GET").await
    }

    /// The whole response to `method`; an error when it breaks off.
    pub(crate) async fn answer_to(&mut self, method: &str) -> Result<Answer> {
        let head = loop {
            let head = self.head().await?.ok_or_else(broken)?;
            if !head.start.starts_with("HTTP/1.1 1") {
                break head;
            }
        };
        let status = head.start.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(ErrorKind::InvalidData)?;
        let none = method == "HEAD" || status == 204 || status == 304;
        let framing = if none { Framing::Length(0) } else { head.framing(Framing::UntilClose)? };
        let body = self.body(framing).await?;
        Ok(Answer { status, head, body, at: Instant::now() })
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the other side broke off")
}

fn position(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}

async fn limit<T>(io: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(PATIENCE, io).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}
