//! The picture of the working rate: a limiter before a vendor that allows less than the file says, and then as much.

use crate::{
    EPOCH, MS,
    picture::{BLUE, ORANGE, RED, SECOND, path, tenth, text},
};
use paceway::{
    algorithm::{Micros, Rule, SlidingWindow},
    store::{Check, Entry, Pause, Reply, memory::MemoryStore},
};
use std::collections::VecDeque;

pub(crate) const NAME: &str = "refusals";
const WRITTEN: i64 = 30;
/// The calls that the vendor allows in any second before [`RISE`].
const LESS: i64 = 26;
const RISE: Micros = 30 * SECOND;
const END: Micros = 75 * SECOND;
const STEP: Micros = 250 * MS;
const LEFT: f64 = 60.0;
const WIDTH: f64 = 640.0;
const BOTTOM: f64 = 200.0;
const HEIGHT: f64 = 120.0;
/// The lowest rate of the picture.
const LEAST: f64 = 20.0;

/// The working rate over time, 0 in a pause, and the instants of refusals.
struct Course {
    rates: Vec<(Micros, f64)>,
    refusals: Vec<Micros>,
}

/// Sends a call at each slot.
fn course() -> Option<Course> {
    let store = MemoryStore::default();
    let check = Check {
        period: SECOND,
        ..Check::new("it", Rule::from(SlidingWindow::new(WRITTEN, SECOND, 0)?))
    };
    let mut all = Course { rates: Vec::new(), refusals: Vec::new() };
    let mut accepted: VecDeque<Micros> = VecDeque::new();
    let (mut next_call, mut next_look) = (0, 0);
    while next_look <= END {
        if next_look <= next_call {
            let looked = store.run_at(EPOCH + next_look, &[Entry::Look { check: check.clone() }]);
            let Some(Reply::Level(level)) = looked.into_iter().next() else { return None };
            let rate = match (level.paused, level.rate) {
                (1.., _) => 0.0,
                (_, 0) => WRITTEN as f64,
                (_, rate) => rate as f64 / 1e9,
            };
            all.rates.push((next_look, rate));
            next_look += STEP;
            continue;
        }
        let now = next_call;
        let ask = Entry::Reserve { checks: [check.clone()].into(), budget: 0, ticket: None };
        let decided = store.run_at(EPOCH + now, &[ask]);
        let Some(Reply::Decision(decision)) = decided.into_iter().next() else { return None };
        if !decision.admitted {
            next_call = now + decision.retry_after.max(1);
            continue;
        }
        while accepted.front().is_some_and(|at| now - at >= SECOND) {
            accepted.pop_front();
        }
        let allowed = if now < RISE { LESS } else { WRITTEN };
        if (accepted.len() as i64) < allowed {
            accepted.push_back(now);
            continue;
        }
        all.refusals.push(now);
        let pause = Pause::for_micros(SECOND, 429);
        store.run_at(EPOCH + now, &[Entry::Pause { check: check.clone(), pause }]);
    }
    Some(all)
}

fn x(at: Micros) -> f64 {
    tenth(LEFT + WIDTH * at as f64 / END as f64)
}

fn y(rate: f64) -> f64 {
    let part = (rate - LEAST).max(0.0) / (WRITTEN as f64 + 2.0 - LEAST);
    tenth(BOTTOM - HEIGHT * part)
}

/// Draws the picture; `None` if the rule is no legal one.
pub(crate) fn svg() -> Option<String> {
    let Course { rates, refusals } = course()?;
    let line: Vec<_> = rates.iter().map(|(at, rate)| format!("{} {}", x(*at), y(*rate))).collect();
    let dots: String = refusals.iter().map(|at| format!("M{} 212h4v4h-4z", x(*at) - 2.0)).collect();
    let (less, written) = (y(LESS as f64), y(WRITTEN as f64));
    let vendor = format!("M{LEFT} {less}H{}V{written}H{}", x(RISE), x(END));
    let mut axis = format!("M{LEFT} {BOTTOM}h{WIDTH}M{LEFT} {BOTTOM}v-{HEIGHT}");
    let mut labels = String::new();
    for second in (0..=END / SECOND).step_by(15) {
        let at = x(second * SECOND);
        axis += &format!("M{at} {BOTTOM}v4");
        labels += &text(at, 234.0, "text-anchor=\"middle\"", &format!("{second} s"));
    }
    for rate in [22, LESS, WRITTEN] {
        labels += &text(52.0, y(rate as f64) + 4.0, "text-anchor=\"end\"", &format!("{rate}/s"));
    }
    let dashed = format!("fill=\"none\" stroke=\"{ORANGE}\" stroke-dasharray=\"5 3\"");
    let solid = format!("fill=\"none\" stroke=\"{BLUE}\" stroke-width=\"1.5\"");
    let [blue, red, orange] = [BLUE, RED, ORANGE].map(|color| format!("fill=\"{color}\""));
    Some(
        [
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 250\" width=\"720\" height=\"250\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
             <title>The working rate of a limiter after refusals</title>\n\
             <rect width=\"720\" height=\"250\" fill=\"#fff\"/>\n"
                .to_owned(),
            text(12.0, 24.0, "font-weight=\"bold\"", "rate 30/s, Retry-After: 1, more calls than fit"),
            text(12.0, 46.0, &blue, "working rate (at the bottom: paused)"),
            text(260.0, 46.0, &orange, "what the vendor allows"),
            text(440.0, 46.0, &red, "a refusal"),
            path("stroke=\"#888\"", &axis),
            labels,
            path(&dashed, &vendor),
            path(&solid, &format!("M{}", line.join("L"))),
            path(&red, &dots),
            "</svg>\n".to_owned(),
        ]
        .concat(),
    )
}
