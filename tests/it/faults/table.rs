//! The result of a fault: the law over the calls that arrived, and a line of the table in docs/failures.md.

use super::{
    Fault, Policy,
    servers::Kind,
    stage::{BURST, RATE, Seen},
};
use std::{env, fs, path::Path, time::Duration};
use tokio::time::Instant;

/// The instants that divide a run into the columns of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) start: Instant,
    pub(super) broken: Instant,
    pub(super) mended: Instant,
    pub(super) well: Instant,
    pub(super) end: Instant,
}

/// The result of a fault for the limiters of one policy.
pub(super) struct Outcome {
    pub(super) limited: Vec<Seen>,
    pub(super) probes: Vec<Seen>,
}

/// The most requests that were sent and arrived within any interval, above what the law allows there. Each was granted
/// between the two, so that no delay of a busy machine adds to it.
pub(super) fn over_the_law(passed: &[Seen]) -> f64 {
    let mut spans: Vec<_> = passed.iter().filter_map(|it| Some((it.arrived?, it.sent))).collect();
    spans.sort();
    let mut most = f64::NEG_INFINITY;
    for from in spans.iter().map(|(_, sent)| *sent) {
        let within = spans.iter().filter(|(_, sent)| *sent >= from).enumerate();
        for (before, (arrived, _)) in within {
            let allowed = BURST + RATE * (*arrived - from).as_secs_f64();
            most = most.max((before + 1) as f64 - allowed);
        }
    }
    most.max(0.0)
}

// === impl Run ===

impl Run {
    /// Leaves a line in the folder `FAILURES`, if that is set.
    pub(super) fn write_down(&self, kind: Kind, fault: Fault, policy: Policy, outcome: &Outcome) {
        let Some(folder) = env::var_os("FAILURES") else { return };
        let answers = |from: Instant, to: Instant| {
            let status = |status| {
                let seen = |seen: &&Seen| seen.status == status && (from..to).contains(&seen.sent);
                outcome.limited.iter().filter(seen).count()
            };
            format!("{}/{}/{}", status(200), status(429), status(503))
        };
        let opening = (self.broken + Duration::from_secs(1)).min(self.mended);
        let used = |from: Instant, to: Instant| {
            let span = (to - from).as_secs_f64();
            let arrivals = outcome.limited.iter().filter_map(|seen| seen.arrived);
            let count = arrivals.filter(|at| (from..to).contains(at)).count();
            // Less than that says nothing.
            if span < 0.5 {
                "-".into()
            } else {
                format!("{:.0}", 100.0 * count as f64 / (RATE * span))
            }
        };
        let over = match policy {
            Policy::Allow => "-".into(),
            Policy::Share | Policy::Reject => format!("{:.1}", over_the_law(&outcome.limited)),
        };
        let columns = [
            kind.name().into(),
            fault.name().into(),
            format!("`{}`", policy.name()),
            answers(self.broken, self.mended),
            answers(self.mended, self.end),
            p99(&outcome.probes, self.start, self.broken),
            p99(&outcome.probes, self.broken, opening),
            p99(&outcome.probes, opening, self.mended),
            used(opening, self.mended),
            used(self.well, self.end),
            over,
            format!("{:.2}", (self.well - self.mended).as_secs_f64()),
        ];
        let place = format!("{}-{:02}-{}", kind as u8, fault as u8, policy.name());
        let line = format!("| {} |\n", columns.join(" | "));
        fs::write(Path::new(&folder).join(place), line).expect("a line of the table");
    }
}

/// The 99th percentile of the latency between two instants, in ms, as text.
fn p99(probes: &[Seen], from: Instant, to: Instant) -> String {
    let within = probes.iter().filter(|seen| (from..to).contains(&seen.sent));
    let mut took: Vec<_> = within.map(|seen| seen.took).collect();
    took.sort();
    let at = (took.len() * 99).div_ceil(100).saturating_sub(1);
    took.get(at).map_or("-".into(), |took| format!("{:.1}", took.as_secs_f64() * 1e3))
}

#[test]
fn the_law_is_computed_from_the_arrivals() {
    let start = Instant::now();
    let at = |millis: u64| start + Duration::from_millis(millis);
    let seen = |sent, arrived| Seen::passed(at(sent), at(arrived));
    let burst: Vec<_> = (0..10).map(|_| seen(0, 0)).collect();
    assert!(over_the_law(&burst) <= 0.0);
    let steady = burst.iter().copied().chain((1..100).map(|i| seen(25 * i, 25 * i)));
    assert!(over_the_law(&steady.collect::<Vec<_>>()) < 1e-6);
    let twice = burst.iter().copied().chain((0..10).map(|_| seen(100, 100)));
    assert!((over_the_law(&twice.collect::<Vec<_>>()) - 6.0).abs() < 1e-6);
    // Those that are on their way for half a second may have been granted before all others.
    let late = (0..10).map(|_| seen(100, 600)).chain((0..10).map(|_| seen(600, 600)));
    assert!(over_the_law(&late.collect::<Vec<_>>()) <= 0.0);
}
