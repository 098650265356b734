//! A master, a replica, and three Sentinels that watch over them.

use super::{
    PATIENCE, Redis, Said, eventually, free_port,
    redis::{binary, command},
};
use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};
use tokio::time::Instant;

/// The name that the Sentinels have for their master.
const NAME: &str = "paceway-test";

/// A master, a replica of it, and three Sentinels that watch both.
#[derive(Debug)]
pub(crate) struct Sentinels {
    /// The servers; the first one was the master at the start.
    pub(crate) servers: Vec<Redis>,
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

// === impl Sentinels ===

impl Sentinels {
    /// They replace a master that is silent for half a second.
    pub(crate) async fn start() -> Self {
        // By itself it waits five seconds for further replicas.
        let master = Redis::with(&["--repl-diskless-sync-delay", "0"]);
        let port = master.port().to_string();
        let replica = Redis::with(&["--replicaof", &format!("127.0.0.1 {port}")]);
        eventually("the replica follows", async || {
            let said = replica.command(&["ROLE"]);
            format!("{said:?}")
                .contains(&format!("{:?}", Said::Bytes(Some(b"connected".into()))))
                .then_some(())
        })
        .await;
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::start(&port)).collect();
        for sentinel in &sentinels {
            eventually("the Sentinels know each other and the replica", async || {
                let count = |what| match command(sentinel.port, &["SENTINEL", what, NAME]) {
                    Ok(Said::List(list)) => list.len(),
                    _ => 0,
                };
                (count("sentinels") == 2 && count("replicas") == 1).then_some(())
            })
            .await;
        }
        Self { servers: vec![master, replica], sentinels }
    }

    pub(crate) fn url(&self) -> String {
        let places = self.sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port));
        format!("redis-sentinel://{}/{NAME}", places.collect::<Vec<_>>().join(","))
    }

    /// The port of the first Sentinel, as a part of an URL for instance.
    pub(crate) fn port(&self) -> u16 {
        self.sentinels[0].port
    }

    /// Whether all of them name this one of [`Self::servers`].
    pub(crate) fn all_name(&self, server: usize) -> bool {
        let port = Said::Bytes(Some(self.servers[server].port().to_string().into_bytes()));
        self.sentinels.iter().all(|sentinel| {
            let words = ["SENTINEL", "get-master-addr-by-name", NAME];
            matches!(command(sentinel.port, &words), Ok(Said::List(parts)) if parts.get(1) == Some(&port))
        })
    }

    /// Sends one command to each of the Sentinels.
    pub(crate) fn all(&self, words: &[&str]) {
        for sentinel in &self.sentinels {
            let said = command(sentinel.port, words).expect("an answer");
            assert_eq!(said, Said::Line("OK".into()), "{words:?}");
        }
    }

    /// Has all of them watch over another server, and forget what they knew.
    pub(crate) fn name(&self, server: usize) {
        let port = self.servers[server].port().to_string();
        self.all(&["SENTINEL", "REMOVE", NAME]);
        self.all(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "2"]);
    }

    /// Ends one of them; the other two are still most of them.
    pub(crate) fn kill_one(&mut self) {
        self.sentinels.remove(0);
    }
}

// === impl Sentinel ===

impl Sentinel {
    fn start(master: &str) -> Self {
        for _ in 0..10 {
            let (dir, port) = (tempfile::tempdir().expect("a directory"), free_port());
            let config = format!(
                "port {port}
bind 127.0.0.1
sentinel monitor {NAME} 127.0.0.1 {master} 2
sentinel down-after-milliseconds {NAME} 500
sentinel failover-timeout {NAME} 2000
"
            );
            let file = dir.path().join("sentinel.conf");
            fs::write(&file, config).expect("a file");
            let child = Command::new(binary())
                .arg(&file)
                .arg("--sentinel")
                .current_dir(dir.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let mut sentinel = Self { child: child.expect("redis-server"), port, _dir: dir };
            if sentinel.comes_up() {
                return sentinel;
            }
        }
        panic!("no Sentinel starts; run one by hand to see why");
    }

    fn comes_up(&mut self) -> bool {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if self.child.try_wait().expect("its state").is_some() {
                return false;
            }
            if command(self.port, &["PING"]).is_ok() {
                return self.child.try_wait().expect("its state").is_none();
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("a Sentinel neither answers nor ends");
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
