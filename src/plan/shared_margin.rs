//! The margin of a limiter that is learned from the upstream's answers: its rules as they are now, and the observations that become
//! the next report. It asks no store; `learn` does.

use crate::{
    algorithm::{Algorithm, Micros, Rule, auto_margin::AutoMargin},
    config::{AutoRule, LimiterConfig, Rate},
    limit::micros,
};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// The times of answers are compared within one to two minutes.
const TIMES_KEPT: Duration = Duration::from_secs(60);

/// A limiter whose margin is learned. All workers share it.
pub struct SharedMargin {
    /// The bounds of the margin.
    pub rule: AutoMargin,
    /// The key of the text by which gateways share the margin.
    pub key: Box<str>,
    /// The rules as they are configured, one for each rate.
    first: Vec<(Algorithm, Rate)>,
    /// The rules as they are now.
    now: ArcSwap<SmallVec<[Algorithm; 1]>>,
    /// Whether a request asked the limiter, and whether one had to wait for it or was refused by it, since the last report.
    asked: AtomicBool,
    held: AtomicBool,
    /// When the last call was sent that the upstream refused since the last report.
    refused: Mutex<Option<Instant>>,
    /// The times of answers, in this minute and in the one before.
    times: Mutex<[AnswerTimes; 2]>,
    /// Resolves when a refusal is worth a report at once.
    pub wake: Notify,
    /// The present plan has another rule for the limiter, or no such limiter.
    is_replaced: AtomicBool,
}

/// The observations of this gateway since its last report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observed {
    /// Whether a request asked the limiter.
    pub asked: bool,
    /// Whether the limiter held or refused one.
    pub held: bool,
    /// When the last call was sent that the upstream refused.
    pub refused: Option<Instant>,
}

/// The shortest and the longest time of an answer since an instant.
#[derive(Debug, Clone, Copy)]
struct AnswerTimes {
    since: Instant,
    least: Duration,
    most: Duration,
}

// === impl SharedMargin ===

impl SharedMargin {
    /// The margin of a limiter before anything is known; `None` for a limiter that learns none.
    pub(super) fn new(limiter: &LimiterConfig, key: String) -> Option<Self> {
        let Some(AutoRule::Margin(rule)) = limiter.auto else { return None };
        let rates = || limiter.algorithms.iter().filter_map(Rule::as_rate).copied();
        let times =
            AnswerTimes { since: Instant::now(), least: Duration::MAX, most: Duration::ZERO };
        Some(Self {
            rule,
            key: key.into(),
            first: rates().zip(limiter.rates.iter().copied()).collect(),
            now: ArcSwap::from_pointee(rates().collect()),
            asked: AtomicBool::new(false),
            held: AtomicBool::new(false),
            refused: Mutex::default(),
            times: Mutex::new([times; 2]),
            wake: Notify::new(),
            is_replaced: AtomicBool::new(false),
        })
    }

    /// Takes over from `before`, the margin of the limiter of the same name in the plan before: the same rule continues with all of
    /// its observations.
    pub(super) fn taking_over(self, before: Option<&Arc<Self>>) -> Arc<Self> {
        match before.filter(|before| before.is_same(&self)) {
            Some(before) => before.clone(),
            None => Arc::new(self),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.rule, &self.key, &self.first) == (other.rule, &other.key, &other.first)
    }

    /// Ends the reports of this margin: a plan without it has replaced the one that it belonged to.
    pub(crate) fn replaced(&self) {
        self.is_replaced.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// Whether a plan without this margin has replaced the one that it belonged to.
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Relaxed)
    }

    /// The rule of the rate with index `i`, as it is now.
    pub fn algorithm(&self, i: usize) -> Algorithm {
        self.now.load()[i]
    }

    /// Notes a request that asked the limiter, `held` if it had to wait for the limiter or was refused by it.
    pub(crate) fn asked(&self, held: bool) {
        self.asked.store(true, Relaxed);
        self.held.fetch_or(held, Relaxed);
    }

    /// Notes that the upstream refused a call, which was `sent` at that instant.
    pub(crate) fn refused(&self, sent: Instant) {
        let mut last = self.refused.lock();
        *last = Some(last.map_or(sent, |last| last.max(sent)));
        drop(last);
        self.wake.notify_one();
    }

    /// Notes how long the upstream took to answer.
    pub(crate) fn took(&self, time: Duration) {
        let now = Instant::now();
        let mut times = self.times.lock();
        if now.duration_since(times[0].since) >= TIMES_KEPT {
            times[1] =
                mem::replace(&mut times[0], AnswerTimes { since: now, least: time, most: time });
        }
        times[0].least = times[0].least.min(time);
        times[0].most = times[0].most.max(time);
    }

    /// By how much the times of answers differ, µs; `None` before the second one.
    pub(crate) fn spread(&self) -> Option<Micros> {
        let times = self.times.lock();
        let least = times.iter().map(|times| times.least).min()?;
        let most = times.iter().map(|times| times.most).max()?;
        most.checked_sub(least).filter(|spread| !spread.is_zero()).map(micros)
    }

    /// Takes the observations since the last call of this function.
    pub(crate) fn observed(&self) -> Observed {
        let (asked, held) = (self.asked.swap(false, Relaxed), self.held.swap(false, Relaxed));
        Observed { asked, held, refused: self.refused.lock().take() }
    }

    /// Puts a refusal back that no report has brought to the store, unless a later one was noted since.
    pub(crate) fn put_back(&self, refused: Instant) {
        self.refused.lock().get_or_insert(refused);
    }

    /// Decides with `margin` from now on.
    pub(crate) fn set_margin(&self, margin: Micros) {
        let with_margin = |(rule, rate): &(Algorithm, Rate)| {
            rule.with_rate(i64::try_from(rate.count).ok()?, rate.period_micros(), margin)
        };
        let rules: Option<SmallVec<[Algorithm; 1]>> = self.first.iter().map(with_margin).collect();
        // A store that is read each second says mostly the same.
        if let Some(rules) = rules.filter(|rules| **self.now.load() != *rules) {
            self.now.store(rules.into());
        }
    }
}
