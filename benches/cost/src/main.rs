//! Compares the cost of a limited, proxied request with the cost of the same work in nginx and others, on one machine
//! and in the same rounds. `benches/run.sh` builds and starts it.
#![allow(
    clippy::disallowed_types,
    reason = "it measures real time; no test runs it on virtual time"
)]

mod certificate;
mod client;
mod gate;
mod h2load;
mod machine;
mod mounted;
mod origin;
mod pace;
mod parts;
mod picture;
mod process;
mod report;
mod rounds;
mod settings;
mod stage;
mod wrk;

use machine::Ticks;
use parts::Bench;
use report::Report;
use settings::Settings;
use stage::Stage;
use std::{
    env, fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

const USAGE: &str =
    "paceway-cost bench GATEWAY ROOT | gate GATEWAY FILE [record] | mounted GATEWAY PROGRAM";

/// The peers and the tools of the measurements; a part whose tool is missing is left out.
const TOOLS: [&str; 8] =
    ["nginx", "haproxy", "redis-server", "wrk", "h2load", "openssl", "valgrind", "vgdb"];

/// A directory for files of the run, removed at its end, also after an error.
struct Scratch(PathBuf);

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match args.as_slice() {
        ["bench", gateway, root] => bench(Path::new(gateway), Path::new(root)),
        ["gate", gateway, file] => gate(Path::new(gateway), Path::new(file), false),
        ["gate", gateway, file, "record"] => gate(Path::new(gateway), Path::new(file), true),
        ["mounted", gateway, program] => mounted(Path::new(gateway), Path::new(program)),
        role => play(role).map(|()| true),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this program in the role of a client or an origin, as a process of its own.
fn play(role: &[&str]) -> io::Result<()> {
    match role {
        ["--serve", address] => origin::serve(address),
        ["--serve-grpc", address] => origin::serve_grpc(address),
        ["--repeat", address, path, count] => client::repeat(parse(address)?, path, parse(count)?),
        ["--keys", address, path, count] => client::each_key(parse(address)?, path, parse(count)?),
        ["--hold", address, path, count] => {
            client::hold(parse(address)?, path, parse(count)?, true)
        }
        ["--wait", address, path, count] => {
            client::hold(parse(address)?, path, parse(count)?, false)
        }
        ["--pace", address, path, rate, seconds] => {
            let address: SocketAddr = parse(address)?;
            pace::run(address, path, parse(rate)?, Duration::from_secs(parse(seconds)?))
        }
        _ => Err(io::Error::other(USAGE)),
    }
}

fn parse<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| io::Error::other(format!("{text}: {USAGE}")))
}

type Part = fn(&Bench<'_>) -> io::Result<Report>;

/// Measures the parts that were asked for, and returns whether all of them have figures.
fn bench(gateway: &Path, root: &Path) -> io::Result<bool> {
    let parts: [(&str, Part); 13] = [
        ("cpu", parts::cpu::measure),
        ("tls", parts::tls::measure),
        ("h2", parts::h2::measure),
        ("bodies", parts::bodies::measure),
        ("grpc", parts::grpc::measure),
        ("redis", parts::redis::measure),
        ("fleet", parts::fleet::measure),
        ("latency", parts::latency::measure),
        ("away", parts::away::measure),
        ("memory", parts::memory::measure),
        ("workers", parts::workers::measure),
        ("scale", parts::scale::measure),
        ("instructions", parts::instructions::measure),
    ];
    let settings = Settings::read()?;
    for tool in TOOLS.into_iter().filter(|tool| !machine::has(tool)) {
        eprintln!("{tool} is not installed: what needs it is left out");
    }
    if stage::nginx_modules().is_none() {
        eprintln!("nginx has no Lua module: what needs it is left out");
    }
    let scratch = Scratch::new()?;
    let stage = Stage::set(&scratch.0, gateway)?;
    let bench = Bench { stage: &stage, settings: &settings };
    let (mut report, mut whole, mut stolen) = (Report::default(), true, Vec::new());
    for (name, measure) in parts.into_iter().filter(|(name, _)| settings.wants(name)) {
        eprintln!("{name}");
        let started = Ticks::now();
        match measure(&bench) {
            Ok(part) => report.add(part),
            Err(error) => {
                eprintln!("{name}: NOT MEASURED: {error}");
                whole = false;
            }
        }
        if let Some(percent) = started.and_then(Ticks::stolen_since) {
            eprintln!("{name}: the host took {percent:.1} % of the CPU");
            stolen.push(percent);
        }
    }
    println!("{}", report.text());
    if settings.is_complete() && whole && report.is_complete() {
        let intro = format!(
            "Measured {} on {};\n{}.\n{} rounds of {} s.{}\n",
            machine::today(),
            machine::describe(),
            stage::versions(),
            settings.rounds,
            settings.seconds,
            taken(&stolen)
        );
        report.write(&root.join("docs/performance.md"), &intro)?;
        fs::write(root.join("docs/performance.svg"), picture::draw(&report.bars))?;
        eprintln!("written: docs/performance.md, docs/performance.svg");
    } else {
        eprintln!(
            "docs/performance.md is not written: this takes all parts, all peers and 8 rounds or more"
        );
    }
    Ok(whole)
}

/// Says in words how far to trust values in µs; `stolen` is the share of CPU that the host took in each part, %.
fn taken(stolen: &[f64]) -> String {
    let most = stolen.iter().copied().reduce(f64::max);
    let words = |most| format!(" The host took {most:.1} % of the CPU at most (`steal`, by part).");
    most.map(words).unwrap_or_default()
}

fn gate(gateway: &Path, file: &Path, record: bool) -> io::Result<bool> {
    let settings = Settings::read()?;
    let scratch = Scratch::new()?;
    let stage = Stage::set(&scratch.0, gateway)?;
    gate::run(&Bench { stage: &stage, settings: &settings }, file, record)
}

fn mounted(gateway: &Path, program: &Path) -> io::Result<bool> {
    let settings = Settings::read()?;
    let scratch = Scratch::new()?;
    let stage = Stage::set(&scratch.0, gateway)?;
    mounted::run(&Bench { stage: &stage, settings: &settings }, program).map(|()| true)
}

// === impl Scratch ===

impl Scratch {
    fn new() -> io::Result<Self> {
        let dir = env::temp_dir().join(format!("paceway-cost-{}", std::process::id()));
        fs::create_dir(&dir)?;
        process::end_with_signals(dir.clone())?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
