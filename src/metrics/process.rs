//! The metrics of this process under the names that Prometheus's own clients use, read from `/proc` at each scrape. Systems
//! without `/proc` have none.

use super::{
    Scrape,
    declared::{CPU_SECONDS, RESIDENT_BYTES, STARTED, THREADS, VIRTUAL_BYTES},
};
use std::fs;

/// Clock ticks of a second: Linux shows times to programs in hundredths on every architecture.
const TICKS: f64 = 100.0;

/// The use of the machine by this process.
#[derive(Debug, PartialEq)]
struct ProcessUsage {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    threads: u64,
    /// Unix time.
    started: f64,
}

// === impl Scrape ===

impl Scrape {
    /// Adds the metrics of this process.
    pub fn process(&mut self) {
        let read = |file| fs::read_to_string(file).ok();
        let files = (read("/proc/self/stat"), read("/proc/self/status"), read("/proc/stat"));
        let (Some(stat), Some(status), Some(system)) = files else { return };
        let Some(usage) = ProcessUsage::parse(&stat, &status, &system) else { return };
        self.value(&CPU_SECONDS, "", &[], usage.cpu_seconds);
        self.value(&RESIDENT_BYTES, "", &[], usage.resident_bytes);
        self.value(&VIRTUAL_BYTES, "", &[], usage.virtual_bytes);
        self.value(&THREADS, "", &[], usage.threads);
        self.value(&STARTED, "", &[], usage.started);
    }
}

// === impl ProcessUsage ===

impl ProcessUsage {
    /// Reads the contents of `/proc/self/stat`, `/proc/self/status` and `/proc/stat` (proc(5)).
    fn parse(stat: &str, status: &str, system: &str) -> Option<Self> {
        // The name of the program comes first, in brackets, and may hold anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        // `state`, the first of these fields, has the number 3 in proc(5).
        let ticks = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let number = |text: &str, key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        Some(Self {
            cpu_seconds: (ticks(14)? + ticks(15)?) / TICKS,
            resident_bytes: number(status, "VmRSS:")? * 1024,
            virtual_bytes: number(status, "VmSize:")? * 1024,
            threads: number(status, "Threads:")?,
            started: number(system, "btime")? as f64 + ticks(22)? / TICKS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_figures_of_the_process() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 2066 0 0 0 150 50 0 0 20 0 5 0 1234 95000 1200";
        let status = "Name:\ta\nVmSize:\t  95 kB\nVmRSS:\t  48 kB\nThreads:\t5\n";
        let usage = ProcessUsage::parse(stat, status, "cpu 1\nbtime 1700000000\n");
        let expected = ProcessUsage {
            cpu_seconds: 2.0,
            resident_bytes: 49_152,
            virtual_bytes: 97_280,
            threads: 5,
            started: 1_700_000_012.34,
        };
        assert_eq!(usage, Some(expected));
        assert_eq!(ProcessUsage::parse("7 (a) S 1", status, "btime 1\n"), None);
    }
}
