//! The part of a limiter that is learned from the upstream's answers: its rule as it is now, and the observations that
//! become the next report. It asks no store; `learn` does.

use crate::{
    algorithm::{
        Algorithm, Micros, Rule,
        auto_rate::{Nanohertz, nanohertz},
    },
    answer::Quota,
    config::{AutoRule, LimiterConfig, Rate},
    limit::micros,
};
use arc_swap::ArcSwap;
use metrics::Gauge;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// The times of answers are compared within one to two minutes.
const TIMES_KEPT: Duration = Duration::from_secs(60);

/// A limiter whose rate or margin is learned. All workers share it.
pub struct AutoLimit {
    /// The bounds of the learned part.
    pub rule: AutoRule,
    /// The key of the text by which gateways share the learned part.
    pub key: Box<str>,
    /// The rules as they are configured, one for each rate.
    first: Vec<(Algorithm, Rate)>,
    /// The greatest cost of a request, permits.
    cost: i64,
    now: ArcSwap<LearnedRules>,
    /// Requests that asked the limiter, and those of them that it held or refused, since the last report.
    asked: AtomicU32,
    held: AtomicU32,
    /// The last call that the upstream refused since the last report.
    refused: Mutex<Option<HeardRefusal>>,
    /// The times of answers, in this minute and in the one before.
    times: Mutex<[AnswerTimes; 2]>,
    /// Resolves when a refusal is worth a report at once.
    pub wake: Notify,
    /// Notified when the learned rate falls.
    fell: Notify,
    /// The learned rate as a metric.
    shown: Option<Gauge>,
    /// The present plan has another rule for the limiter, or no such limiter.
    is_replaced: AtomicBool,
}

/// The rules of a limiter as they are now, one for each of its rates.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LearnedRules {
    rules: SmallVec<[Algorithm; 1]>,
    /// The learned rate; 0 if the margin is learned.
    rate: Nanohertz,
}

/// A call that the upstream refused, as this gateway saw it.
#[derive(Debug, Clone, Copy)]
pub struct HeardRefusal {
    /// When it was sent.
    pub sent: Instant,
    /// The rate of the rule by which its slot was promised.
    pub rate: Nanohertz,
}

/// The observations of this gateway since its last report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observed {
    /// The requests that asked the limiter.
    pub asked: u32,
    /// Those of them that it held or refused.
    pub held: u32,
    /// The last call that the upstream refused.
    pub refused: Option<HeardRefusal>,
}

/// The shortest and the longest time of an answer since an instant.
#[derive(Debug, Clone, Copy)]
struct AnswerTimes {
    since: Instant,
    least: Duration,
    most: Duration,
}

fn rate_of(rule: &Rule) -> Nanohertz {
    rule.as_rate().map_or(0, |rate| rate.rate())
}

// === impl AutoLimit ===

impl AutoLimit {
    /// The learned part of a limiter whose requests have at most this cost, before anything is known; `None` for a limiter
    /// that learns nothing.
    pub(super) fn new(
        (limiter, cost): (&LimiterConfig, i64),
        key: String,
        shown: impl FnOnce() -> Gauge,
    ) -> Option<Self> {
        let rule = limiter.auto?;
        let rates = || limiter.algorithms.iter().filter_map(Rule::as_rate).copied();
        let first = rates().zip(limiter.rates.iter().copied());
        let rules = rates().collect();
        let rate = match rule {
            AutoRule::Rate(rule) => rule.first(0).rate,
            AutoRule::Margin(_) => 0,
        };
        let now = Instant::now();
        let times = AnswerTimes { since: now, least: Duration::MAX, most: Duration::ZERO };
        Some(Self {
            rule,
            key: key.into(),
            first: first.collect(),
            cost,
            now: ArcSwap::from_pointee(LearnedRules { rules, rate }),
            asked: AtomicU32::new(0),
            held: AtomicU32::new(0),
            refused: Mutex::default(),
            times: Mutex::new([times; 2]),
            wake: Notify::new(),
            fell: Notify::new(),
            shown: matches!(rule, AutoRule::Rate(_)).then(shown),
            is_replaced: AtomicBool::new(false),
        })
    }

    /// Takes over from `before`, the learned part of the limiter of the same name in the plan before. The same rule continues
    /// with all of its observations. A rule with other bounds begins with the learned rate, within its bounds.
    pub(super) fn taking_over(self, before: Option<&Arc<Self>>) -> Arc<Self> {
        match before {
            Some(before) if before.is_same(&self) => before.clone(),
            Some(before) => {
                if let (AutoRule::Rate(rule), Some(rate)) = (self.rule, before.rate()) {
                    self.set_rate(rate.clamp(rule.min, rule.max));
                }
                Arc::new(self)
            }
            None => Arc::new(self),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.rule, &self.key, &self.first, self.cost)
            == (other.rule, &other.key, &other.first, other.cost)
    }

    /// Ends the reports of this part: a plan without it has replaced the one that it belonged to.
    pub(crate) fn replaced(&self) {
        self.is_replaced.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// Whether a plan without this part has replaced the one that it belonged to.
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Relaxed)
    }

    /// The rule of the rate with index `i`, as it is now.
    pub fn algorithm(&self, i: usize) -> Algorithm {
        self.now.load().rules[i]
    }

    /// The learned rate; `None` if the margin is learned.
    pub fn rate(&self) -> Option<Nanohertz> {
        Some(self.now.load().rate).filter(|rate| *rate > 0)
    }

    /// The learned rate as permits a second.
    pub fn per_second(&self) -> Option<f64> {
        self.rate().map(|rate| rate as f64 / nanohertz(1, 1_000_000) as f64)
    }

    /// The learned rate as callers read it: whole permits in the period of `start`, or in a longer one.
    pub(super) fn quota(&self) -> Option<Quota> {
        let (rate, (_, start)) = (self.rate()?, self.first.first()?);
        let permits = i128::from(rate) * i128::from(micros(start.period)) / 1_000_000_000_000_000;
        Some(Quota::Rate(match u64::try_from(permits) {
            Ok(count @ 1..) => Rate { count, ..*start },
            _ => {
                let period = 1_000_000_000_000_000 / rate.max(1).unsigned_abs();
                Rate { count: 1, period: Duration::from_micros(period) }
            }
        }))
    }

    /// Resolves when the rule of the rate with index `i` is slower than `rule` by more than a twentieth: a fall is one of
    /// three tenths.
    pub(crate) async fn slower_than(&self, i: usize, rule: &Rule) {
        let rate = rate_of(rule);
        loop {
            // Created before the look, so that no fall between the two is missed.
            let fell = self.fell.notified();
            if self.algorithm(i).rate() < rate - rate / 20 {
                return;
            }
            fell.await;
        }
    }

    /// Counts a request that asked the limiter, `held` if it had to wait for the limiter or was refused by it.
    pub(crate) fn asked(&self, held: bool) {
        self.asked.fetch_add(1, Relaxed);
        if held {
            self.held.fetch_add(1, Relaxed);
        }
    }

    /// Notes that the upstream refused a call, which was `sent` at that instant with a slot of `rule`.
    pub(crate) fn refused(&self, sent: Instant, rule: &Rule) {
        let refusal = HeardRefusal { sent, rate: rate_of(rule) };
        let mut last = self.refused.lock();
        if last.is_none_or(|last| last.sent < sent) {
            *last = Some(refusal);
        }
        drop(last);
        self.wake.notify_one();
    }

    /// Notes how long the upstream took to answer. Only a limiter with `margin: auto` needs it.
    pub(crate) fn took(&self, time: Duration) {
        if let AutoRule::Margin(_) = self.rule {
            let now = Instant::now();
            let mut times = self.times.lock();
            if now.duration_since(times[0].since) >= TIMES_KEPT {
                times[1] = mem::replace(
                    &mut times[0],
                    AnswerTimes { since: now, least: time, most: time },
                );
            }
            times[0].least = times[0].least.min(time);
            times[0].most = times[0].most.max(time);
        }
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
        Observed {
            asked: self.asked.swap(0, Relaxed),
            held: self.held.swap(0, Relaxed),
            refused: self.refused.lock().take(),
        }
    }

    /// Puts a refusal back that no report has brought to the store, unless a later one was noted since.
    pub(crate) fn put_back(&self, refusal: HeardRefusal) {
        self.refused.lock().get_or_insert(refusal);
    }

    /// Decides by `rate` from now on. A rate that the rule cannot count changes nothing; the configuration excludes it.
    pub(crate) fn set_rate(&self, rate: Nanohertz) {
        let rules: Option<SmallVec<[Algorithm; 1]>> =
            self.first.iter().map(|(rule, _)| rule.at_rate(rate, self.cost)).collect();
        if let Some(rules) = rules {
            self.set(LearnedRules { rules, rate });
            if let (Some(shown), Some(rate)) = (&self.shown, self.per_second()) {
                shown.set(rate);
            }
        }
    }

    /// Decides with `margin` from now on.
    pub(crate) fn set_margin(&self, margin: Micros) {
        let with_margin = |(rule, rate): &(Algorithm, Rate)| {
            rule.with_rate(i64::try_from(rate.count).ok()?, rate.period_micros(), margin)
        };
        let rules: Option<SmallVec<[Algorithm; 1]>> = self.first.iter().map(with_margin).collect();
        if let Some(rules) = rules {
            self.set(LearnedRules { rules, rate: 0 });
        }
    }

    fn set(&self, learned: LearnedRules) {
        // A store that is read each second says mostly the same.
        let before = self.now.load().rate;
        if **self.now.load() != learned {
            let has_fallen = learned.rate < before;
            self.now.store(learned.into());
            if has_fallen {
                self.fell.notify_waiters();
            }
        }
    }
}
