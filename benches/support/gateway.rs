//! A gateway as a bench sees it from outside: its process, its ports, its pages.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    process::Child,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

/// The longest time that any step of a bench may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A child process that is killed with the bench.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Finds a port of 127.0.0.1 on which no process listens.
pub(crate) fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Fetches a page of the admin side and returns its head and body.
pub(crate) async fn page(admin: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(admin).await?;
    let asked = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    stream.write_all(asked.as_bytes()).await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}

pub(crate) async fn until_ready(admin: SocketAddr) -> io::Result<()> {
    let ready = async {
        while !page(admin, "/readyz").await.is_ok_and(|page| page.starts_with("HTTP/1.1 200 ")) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, ready).await.map_err(io::Error::from)
}
