//! The machine: its cores and who gets which, its tools, and what to call it.

use std::{
    env, fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    process::{self, Command},
    sync::atomic::{AtomicU16, Ordering::Relaxed},
    thread,
};

/// Below the ports that clients get.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Cores for a process, as `taskset` writes them; `None`: all.
#[derive(Debug, Clone)]
pub struct Cores(Option<String>);

/// Who runs where: what is measured has the first core for itself, everything else shares the others.
#[derive(Debug)]
pub struct Layout {
    pub measured: Cores,
    pub load: Cores,
    pub second: Cores,
    /// The first two.
    pub two: Cores,
}

/// How much CPU time there was since a start, and how much of it the host of a virtual machine took, in the kernel's ticks.
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    all: u64,
    stolen: u64,
}

// === impl Cores ===

impl Cores {
    pub fn list(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

// === impl Ticks ===

impl Ticks {
    /// As of now, from the first line of `/proc/stat` (proc(5)); `None` where there is none.
    pub fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let numbers = text.lines().next()?.split_whitespace().skip(1).map(|number| number.parse());
        // What guests had, behind these, is in what users had.
        let numbers = numbers.take(8).collect::<Result<Vec<u64>, _>>().ok()?;
        Some(Self { all: numbers.iter().sum(), stolen: *numbers.get(7)? })
    }

    /// Which part of the time since then was stolen, %.
    pub fn stolen_since(start: Self) -> Option<f64> {
        let now = Self::now()?;
        let all = now.all.checked_sub(start.all).filter(|all| *all > 0)?;
        Some(100.0 * now.stolen.saturating_sub(start.stolen) as f64 / all as f64)
    }
}

// === impl Layout ===

impl Layout {
    pub fn new() -> Self {
        let count = count();
        if count < 2 || !has("taskset") {
            eprintln!(
                "one core, or no taskset: what is measured and what loads it share their cores"
            );
            let any = || Cores(None);
            return Self { measured: any(), load: any(), second: any(), two: any() };
        }
        let load = if count == 2 { "1".to_owned() } else { format!("1-{}", count - 1) };
        Self {
            measured: Cores(Some("0".into())),
            load: Cores(Some(load)),
            second: Cores(Some("1".into())),
            two: Cores(Some("0,1".into())),
        }
    }
}

fn count() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The program's file, also where only root looks for it.
pub fn find(tool: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(tool)).find(|file| file.is_file())
}

pub fn has(tool: &str) -> bool {
    find(tool).is_some()
}

/// A port of 127.0.0.1 that nobody uses.
pub fn free_port() -> io::Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = (process::id() % 97) as u16 * 101;
    for _ in PORTS {
        let port = PORTS.start + (own + NEXT.fetch_add(1, Relaxed)) % (PORTS.end - PORTS.start);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// In general words: neither its name nor its place.
pub fn describe() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| env::consts::ARCH.into());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: String = kernel.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    format!("{} cores of {model}, Linux {}", count(), kernel.trim_end_matches('.'))
}

/// The first line that a command prints, on whichever side; empty when there is none.
pub fn line_of(command: &str, args: &[&str]) -> String {
    let file = find(command).unwrap_or_else(|| command.into());
    let Ok(output) = Command::new(file).args(args).output() else { return String::new() };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
}

/// Year, month and day of now, UTC.
pub fn today() -> String {
    line_of("date", &["-u", "+%Y-%m-%d"])
}
