//! The machine: which process gets which core, the installed tools, and a description of the hardware.

use std::{
    env, fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    process::{self, Command},
    sync::atomic::{AtomicU16, Ordering::Relaxed},
    thread,
};

/// Free ports are chosen from this range, which is below the ports that the kernel gives to clients.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Cores for a process, as `taskset` writes them; `None` stands for all cores.
#[derive(Debug, Clone)]
pub struct Cores(Option<String>);

/// Which process runs on which core: the measured server has the first core for itself, all others share the rest.
#[derive(Debug)]
pub struct Layout {
    pub measured: Cores,
    pub load: Cores,
    pub second: Cores,
    /// The first two cores, for measurements of two workers.
    pub two: Cores,
}

/// CPU time since a start and the part of it that the host of a virtual machine took, in the kernel's ticks.
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
    /// Reads the first line of `/proc/stat` (proc(5)); returns `None` where the system has no such file.
    pub fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let numbers = text.lines().next()?.split_whitespace().skip(1).map(|number| number.parse());
        // The last two columns are the time of guests, which the kernel has counted in the columns of users already.
        let numbers = numbers.take(8).collect::<Result<Vec<u64>, _>>().ok()?;
        Some(Self { all: numbers.iter().sum(), stolen: *numbers.get(7)? })
    }

    /// Returns the part of the time since `start` that the host took, in %.
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

/// Finds the program's file, also in the directories that only root's `PATH` has.
pub fn find(tool: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(tool)).find(|file| file.is_file())
}

pub fn has(tool: &str) -> bool {
    find(tool).is_some()
}

/// Finds a port of 127.0.0.1 on which no process listens.
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

/// Describes the machine in general words: its cores and processor, without its host name.
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

/// Returns the first line that a command prints, on stdout or stderr; empty when it prints none.
pub fn line_of(command: &str, args: &[&str]) -> String {
    let file = find(command).unwrap_or_else(|| command.into());
    let Ok(output) = Command::new(file).args(args).output() else { return String::new() };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
}

/// Returns the current date in UTC, as year, month and day.
pub fn today() -> String {
    line_of("date", &["-u", "+%Y-%m-%d"])
}
