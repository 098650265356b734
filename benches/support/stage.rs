//! Gateways on one Redis, or one gateway with the memory store, as a bench starts and asks them. All of them are real.

use super::gateway::{PATIENCE, Process, free_port, page, until_ready};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    fs, io,
    net::SocketAddr,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

/// Gateways, and the connections of their clients.
pub(crate) struct Stage {
    gateways: Vec<SocketAddr>,
    admins: Vec<SocketAddr>,
    /// Connections that no request uses at the moment, by gateway.
    idle: Arc<Mutex<Vec<VecDeque<TcpStream>>>>,
    _processes: Vec<Process>,
    _dir: TempDir,
}

/// The head of an answer.
#[allow(dead_code, reason = "no bench reads all of it")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The gateway made it.
    pub(crate) is_own: bool,
    /// How long the gateway held the request, in ms.
    pub(crate) wait: f64,
    /// When the request may come again.
    pub(crate) retry_after: Duration,
}

// === impl Stage ===

impl Stage {
    /// Starts `count` gateways for the upstream at `upstream`; `rest` is the further text of their configuration, which may
    /// begin with upstreams of its own. A lone gateway has the memory store.
    pub(crate) async fn set(count: usize, upstream: SocketAddr, rest: &str) -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let (mut processes, mut store) = (Vec::new(), "store: memory".to_owned());
        if count > 1 {
            let redis = free_port()?;
            processes.push(
                Command::new("redis-server")
                    .args(["--bind", "127.0.0.1", "--port", &redis.port().to_string()])
                    .args(["--save", "", "--appendonly", "no"])
                    .stdout(Stdio::null())
                    .spawn()
                    .map(Process)?,
            );
            until_open(redis).await?;
            store = format!("store: {{ url: \"redis://{redis}\", timeout: 2s }}");
        }
        let (mut gateways, mut admins) = (Vec::new(), Vec::new());
        for i in 0..count {
            let (listen, admin) = (free_port()?, free_port()?);
            let file = dir.path().join(format!("{i}.yaml"));
            let own = if rest.starts_with("upstreams:") {
                String::new()
            } else {
                format!("upstream: http://{upstream}\n")
            };
            let yaml = format!("listen: {listen}\nadmin: {admin}\n{own}{store}\n{rest}");
            fs::write(&file, yaml)?;
            processes.push(
                Command::new(env!("CARGO_BIN_EXE_paceway"))
                    .args(["run", "--config"])
                    .arg(&file)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .map(Process)?,
            );
            gateways.push(listen);
            admins.push(admin);
        }
        for admin in &admins {
            until_ready(*admin).await?;
        }
        let idle = Arc::new(Mutex::new((0..count).map(|_| VecDeque::new()).collect()));
        Ok(Self { gateways, admins, idle, _processes: processes, _dir: dir })
    }

    /// Sums the counter `name` of all gateways.
    #[allow(dead_code, reason = "not every bench sums a counter")]
    pub(crate) async fn sum(&self, name: &str) -> io::Result<u64> {
        let mut sum = 0;
        for admin in &self.admins {
            let page = page(*admin, "/metrics").await?;
            let counts = page.lines().filter(|line| line.starts_with(name));
            sum +=
                counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>();
        }
        Ok(sum)
    }

    /// Sends a request for `target`, to each gateway in turn, and returns the head of the answer.
    pub(crate) fn request(
        &self,
        number: usize,
        target: &str,
    ) -> impl Future<Output = io::Result<Answer>> + Send + use<> {
        let request = format!("GET {target} HTTP/1.1\r\nHost: bench\r\n\r\n");
        let (i, idle) = (number % self.gateways.len(), self.idle.clone());
        let gateway = self.gateways[i];
        async move {
            let kept = idle.lock()[i].pop_front();
            let mut stream = match kept {
                Some(stream) => stream,
                None => TcpStream::connect(gateway).await?,
            };
            stream.set_nodelay(true)?;
            stream.write_all(request.as_bytes()).await?;
            let answer = timeout(PATIENCE, head(&mut stream)).await??;
            let answer = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
            let status = answer.get(9..12).and_then(|status| status.parse().ok());
            let status = status.ok_or(io::ErrorKind::InvalidData)?;
            if status == 200 {
                idle.lock()[i].push_back(stream);
            }
            let field = |name: &str| answer.split_once(name)?.1.split(['\r', ';', ',']).next();
            let number = |name: &str| field(name)?.trim().parse::<f64>().ok();
            Ok(Answer {
                status,
                is_own: answer.contains("paceway-origin: gateway"),
                wait: number("paceway;dur=").unwrap_or_default(),
                retry_after: Duration::from_secs_f64(number("retry-after: ").unwrap_or_default()),
            })
        }
    }
}

/// Reads up to the end of the header section; no message of this bench has a body that matters.
pub(crate) async fn head(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let (mut text, mut piece) = (Vec::new(), [0; 2048]);
    while !text.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece).await? {
            0 => return Ok(None),
            more => text.extend_from_slice(&piece[..more]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

async fn until_open(address: SocketAddr) -> io::Result<()> {
    let opened = async {
        while TcpStream::connect(address).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, opened).await.map_err(io::Error::from)
}
