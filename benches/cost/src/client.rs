//! Clients that send exact numbers of requests: one after the other, one for each key, or one on each connection
//! that stays.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

/// The longest answer: a page of metrics.
const ANSWER: usize = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that is used for one request after the other.
pub struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
}

// === impl Connection ===

impl Connection {
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, answer: vec![0; 4096] })
    }

    /// Sends bytes and does not read the answer.
    pub fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request)
    }

    /// Sends a request and reads a whole answer, which has to be a 200; returns its body.
    pub fn exchange(&mut self, request: &[u8]) -> io::Result<&[u8]> {
        self.send(request)?;
        let mut filled = 0;
        loop {
            match self.stream.read(&mut self.answer[filled..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => filled += more,
            }
            if let Some(body) = whole(&self.answer[..filled]) {
                if !self.answer.starts_with(b"HTTP/1.1 200 ") {
                    let head = String::from_utf8_lossy(&self.answer[..body.start]);
                    return Err(io::Error::other(
                        head.lines().next().unwrap_or_default().to_owned(),
                    ));
                }
                return Ok(&self.answer[body]);
            }
            if filled == self.answer.len() {
                if filled >= ANSWER {
                    return Err(io::Error::other("an answer without end"));
                }
                self.answer.resize(filled * 2, 0);
            }
        }
    }

    /// Gives the stream to the caller, which reads and writes it from here on.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }
}

/// Returns the place of the body in the bytes of an answer, or `None` while the answer is not complete.
fn whole(answer: &[u8]) -> Option<std::ops::Range<usize>> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.split("content-length:").nth(1).and_then(|rest| rest.split("\r\n").next());
    let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    (answer.len() >= end + length).then_some(end..end + length)
}

pub fn request(address: SocketAddr, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")
}

/// Fetches the body of one answer, such as a page of metrics.
pub fn page(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut connection = Connection::open(address)?;
    let body = connection.exchange(request(address, path).as_bytes())?;
    Ok(String::from_utf8_lossy(body).into_owned())
}

/// Sends the same request `count` times, on one connection.
pub fn repeat(address: SocketAddr, path: &str, count: usize) -> io::Result<()> {
    let (mut connection, request) = (Connection::open(address)?, request(address, path));
    for _ in 0..count {
        connection.exchange(request.as_bytes())?;
    }
    Ok(())
}

/// Sends a request for each of `count` keys, which have the names that `keys.lua` of wrk uses.
pub fn each_key(address: SocketAddr, path: &str, count: usize) -> io::Result<()> {
    const CONNECTIONS: usize = 32;
    let share = |mut key: usize| {
        let mut connection = Connection::open(address)?;
        while key < count {
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nX-Key: k{key:06}\r\n\r\n");
            connection.exchange(request.as_bytes())?;
            key += CONNECTIONS;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..CONNECTIONS).map(|first| scope.spawn(move || share(first))).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a client panicked")))
        })
    })
}

/// Opens `count` connections, which all stay until this process is killed. Each sends one request; `read` waits for its
/// answer. Prints a line when all are there.
pub fn hold(address: SocketAddr, path: &str, count: usize, read: bool) -> io::Result<()> {
    let request = request(address, path);
    let mut held = Vec::with_capacity(count);
    for _ in 0..count {
        let mut connection = Connection::open(address)?;
        if read {
            connection.exchange(request.as_bytes())?;
        } else {
            connection.send(request.as_bytes())?;
        }
        held.push(connection.into_stream());
    }
    println!("held");
    loop {
        thread::park();
    }
}
