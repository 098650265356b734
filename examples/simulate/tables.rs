//! The tables of all scenes, with the best constant rate beside each row, and the laws that the rows must keep.

use super::{
    Run,
    outcome::Outcome,
    scenes::{SCENES, Scene, Strategy},
};
use crate::{SECOND, table};
use paceway::algorithm::nanohertz::nanohertz;

pub(crate) const LEGEND: &str = "Learning. The vendor accepts N calls in any second (sliding log), or in each second of its clock \
(fixed window).
A cell: share of what strangers leave of the quota, or of the load if that is less, that the vendor accepted · calls that it \
refused, of those sent.
Beside it the best constant rate of that scene, which somebody would know who has tried all of them.
";
const WORKING: &str = "The working rates, or those that were learned: by how much the lowest one is below the highest; and \
when the written rate was reached again.\n";
const LEARNED: &str = "The rates and margins that were learned, after ten minutes.\n";
/// The seeds that find the best constant rate.
const FEW: u64 = 2;

/// The two kinds of vendor: whether it counts in windows of its clock.
const VENDORS: [bool; 2] = [false, true];

/// The tables of all scenes, and the rows that break a law.
pub(crate) fn simulate(seeds: u64, markdown: bool) -> (String, Vec<String>) {
    let of = ["scene", "limiter"];
    let vendors = ["sliding log", "constant", "fixed window", "constant"];
    let head = [of[0], of[1], vendors[0], vendors[1], vendors[2], vendors[3]].map(str::to_owned);
    let short = [of[0], of[1], vendors[0], vendors[2]].map(str::to_owned);
    let (mut lines, mut learned, mut working) = (vec![head], vec![short.clone()], vec![short]);
    let mut broken = Vec::new();
    for scene in SCENES {
        let best = VENDORS.map(|is_window| scene.best_constant(is_window, seeds.min(FEW)));
        for &strategy in scene.strategies {
            let seen = VENDORS.map(|is_window| scene.run(strategy, is_window, seeds));
            broken.extend(scene.broken_laws(strategy, seen));
            let of = [scene.name.to_owned(), strategy.name(scene.rate)];
            let [log, window] = seen.map(Outcome::cell);
            let [of_log, of_window] = best.clone();
            let [name, limiter] = of.clone();
            lines.push([name, limiter, log, of_log, window, of_window]);
            let line = |[log, window]: [String; 2]| {
                let [name, limiter] = of.clone();
                [name, limiter, log, window]
            };
            if scene.is_settled() && strategy.learns() {
                learned.push(line(seen.map(|seen| seen.learned(strategy))));
            }
            if scene.is_looked_at() && strategy == Strategy::Paused {
                working.push(line(seen.map(Outcome::working)));
            }
        }
    }
    let all = [(None, table(&lines, markdown))].into_iter().chain([
        (Some(WORKING), table(&working, markdown)),
        (Some(LEARNED), table(&learned, markdown)),
    ]);
    let text = all.map(|(title, table)| match title {
        Some(title) => format!("\n{title}\n{table}"),
        None => table,
    });
    (text.collect(), broken)
}

/// The rows that break a law.
#[cfg(test)]
pub(crate) fn broken_laws(seeds: u64) -> Vec<String> {
    let rows = SCENES.iter().flat_map(|scene| {
        let of = |strategy: &Strategy| (*scene, *strategy);
        scene.strategies.iter().map(of).collect::<Vec<_>>()
    });
    let broken = rows.flat_map(|(scene, strategy)| {
        let seen = VENDORS.map(|is_window| scene.run(strategy, is_window, seeds));
        scene.broken_laws(strategy, seen)
    });
    broken.collect()
}

// === impl Scene ===

impl Scene {
    /// Runs the scene with each seed.
    fn run(&self, strategy: Strategy, is_window: bool, seeds: u64) -> Outcome {
        let seeds = seeds.min(self.most_seeds);
        let seen = (0..seeds).map(|seed| Run::new(*self, strategy, is_window, seed).run());
        seen.reduce(Outcome::and).unwrap_or_default()
    }

    /// The constant rate that uses most, as a cell: from half of the quota or of the written rate, whichever is less, to 102 %
    /// of it. It pauses at refusals, and stays what it is.
    fn best_constant(&self, is_window: bool, seeds: u64) -> String {
        if !self.strategies.contains(&Strategy::Paused) {
            return "-".to_owned();
        }
        let least = self.quota.iter().map(|(_, quota)| *quota).min().unwrap_or(0);
        let whole = nanohertz(least.min(self.rate), SECOND);
        let tried = (50..=102).step_by(2).map(|percent| {
            let rate = whole / 100 * percent;
            (rate, self.run(Strategy::Constant(rate), is_window, seeds))
        });
        let best = tried.max_by(|(_, a), (_, b)| a.used().total_cmp(&b.used()));
        best.map_or_else(String::new, |(rate, seen)| {
            format!("{} at {:.1}/s", seen.cell(), rate as f64 / 1e9)
        })
    }
}
