//! The gate of CI: fails when a request needs over 3 % more user instructions than `benches/instructions.txt` records.

use crate::{
    machine::line_of,
    parts::{
        Bench,
        instructions::{gateway, requests},
        missing,
    },
};
use std::{env::consts::ARCH, fs, io, path::Path};

const TOLERANCE: f64 = 1.03;
/// Starts of the gateway for one figure, which is their median. Each start has other seeds of its hash maps.
const RUNS: usize = 3;

/// The recorded figure, with the compiler and the `Cargo.lock` that it belongs to.
#[derive(Debug, PartialEq)]
struct Recorded {
    count: f64,
    compiler: String,
}

/// Compares the figure with `file` and returns whether it holds; with `record` it writes `file` instead.
pub fn run(bench: &Bench<'_>, file: &Path, record: bool) -> io::Result<bool> {
    if let Some(why) = missing(&["valgrind", "vgdb"]) {
        return Err(io::Error::other(why));
    }
    let mut counts = Vec::new();
    for _ in 0..RUNS {
        counts.push(requests(bench, &gateway(bench)?)?.round());
    }
    counts.sort_by(f64::total_cmp);
    let (count, compiler) =
        (counts[RUNS / 2], format!("{} {ARCH}", line_of("rustc", &["--version"])));
    println!("user instructions per request: {count} (of {counts:?})");
    if record {
        fs::write(file, Recorded { count, compiler }.text())?;
        return Ok(true);
    }
    let recorded = Recorded::read(&fs::read_to_string(file)?)?;
    if !recorded.compiler.ends_with(&format!(" {ARCH}")) {
        println!("not compared: the figure was recorded with {}", recorded.compiler);
        return Ok(true);
    }
    let most = recorded.count * TOLERANCE;
    if count <= most {
        let change = (count / recorded.count - 1.0) * 100.0;
        println!("recorded: {}, now {change:+.1} %, allowed: +3 %", recorded.count);
        if count * TOLERANCE < recorded.count {
            println!(
                "much cheaper: record it with `make instructions RECORD=1`, so that it stays so"
            );
        }
        return Ok(true);
    }
    eprintln!(
        "A request needs {count} user instructions; recorded are {}, allowed {most:.0}.\n\
         recorded with: {}\n\
         built with:    {compiler}\n\
         To see where they are spent: valgrind --tool=callgrind on target/counted/paceway, then callgrind_annotate.\n\
         If it is another compiler or a dependency that was updated, or if the feature is worth it, record the new\n\
         figure with `make instructions RECORD=1` in a commit that says why.",
        recorded.count, recorded.compiler
    );
    Ok(false)
}

// === impl Recorded ===

impl Recorded {
    fn text(&self) -> String {
        format!(
            "# User instructions per request (GET, HTTP/1.1, kept-alive, memory store, one limiter) of the profile\n\
             # `counted`, by callgrind. CI fails above this and 3 %. Renewed by `make instructions RECORD=1`.\n\
             {}\n\
             {}\n",
            self.count, self.compiler
        )
    }

    fn read(text: &str) -> io::Result<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let count = lines.next().and_then(|line| line.trim().parse().ok());
        let count = count.ok_or_else(|| io::Error::other("there is no recorded figure"))?;
        Ok(Self { count, compiler: lines.next().unwrap_or_default().trim().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_count_can_be_read() -> io::Result<()> {
        let recorded = Recorded { count: 36_000.0, compiler: "rustc 1.95.0 x86_64".into() };
        assert_eq!(Recorded::read(&recorded.text())?, recorded);
        assert!(Recorded::read("# nothing\n").is_err());
        Ok(())
    }
}
