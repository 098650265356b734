//! wrk, the load of 64 keep-alive connections, and its output.

use crate::{machine::Cores, process::Process, stage::Server};
use std::{io, path::Path, time::Duration};

/// The status that every answer of a load must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Success,
    Refusal,
}

/// One load: its connections, duration and script.
#[derive(Debug, Clone, Copy)]
pub struct Wrk<'a> {
    pub cores: &'a Cores,
    pub dir: &'a Path,
    pub seconds: u64,
    pub threads: u32,
    pub connections: u32,
    pub server: &'a Server,
    pub path: &'a str,
    pub expect: Expect,
    /// One of the scripts in `dir`, and the number of keys or paths that it varies.
    pub script: Option<(&'a str, usize)>,
}

/// The result of a load.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub requests: f64,
    pub per_second: f64,
}

/// A load that is running.
pub struct Running<'a> {
    wrk: &'a Wrk<'a>,
    process: Process,
    command: Vec<String>,
}

// === impl Running ===

impl Running<'_> {
    pub fn finish(self) -> io::Result<Load> {
        let within = Duration::from_secs(self.wrk.seconds + 60);
        let text = self.process.finish(&self.command, within)?;
        let load = self.wrk.read(&text);
        load.ok_or_else(|| io::Error::other(format!("{}: {text}", self.command.join(" "))))
    }
}

// === impl Wrk ===

impl Wrk<'_> {
    pub fn run(&self) -> io::Result<Load> {
        self.start()?.finish()
    }

    pub fn start(&self) -> io::Result<Running<'_>> {
        let mut command: Vec<String> = vec![
            "wrk".into(),
            format!("-t{}", self.threads),
            format!("-c{}", self.connections),
            format!("-d{}s", self.seconds),
            "--timeout=30s".into(),
        ];
        if let Some((script, _)) = self.script {
            command.extend(["-s".into(), self.dir.join(script).display().to_string()]);
        }
        command.push(self.server.url(self.path));
        if let Some((_, count)) = self.script {
            command.extend(["--".into(), count.to_string()]);
        }
        let process = Process::start(self.cores, self.dir, &command)?;
        Ok(Running { wrk: self, process, command })
    }

    /// Reads the output of wrk; returns `None` if the answers had another status than they must have.
    fn read(&self, text: &str) -> Option<Load> {
        let requests: f64 = text
            .lines()
            .find_map(|line| line.split_once(" requests in "))?
            .0
            .trim()
            .parse()
            .ok()?;
        let per_second: f64 = text
            .lines()
            .find_map(|line| line.strip_prefix("Requests/sec:"))?
            .trim()
            .parse()
            .ok()?;
        let others =
            text.lines().find_map(|line| line.trim().strip_prefix("Non-2xx or 3xx responses:"));
        let others: f64 = others.map_or(Some(0.0), |others| others.trim().parse().ok())?;
        let expected = match self.expect {
            Expect::Success => others == 0.0,
            // One request, the very first, may pass.
            Expect::Refusal => others + 1.0 >= requests,
        };
        (requests > 0.0 && expected && !text.contains("Socket errors"))
            .then_some(Load { requests, per_second })
    }
}
