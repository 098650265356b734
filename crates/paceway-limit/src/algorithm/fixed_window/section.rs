//! The permits taken in the windows of one period. It knows no rule: what is too many is its caller's to say.

use crate::algorithm::{Grant, MAX_HOLES, Micros, ceil_div};
use smallvec::SmallVec;

/// Where the count of a window stops, so that all arithmetic stays exact; it is then never given back to.
const MOST: i64 = 1_000_000_000_000;

/// The windows of one period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) period: Micros,
    /// When the last grant or gift was made under it.
    pub(super) asked: Micros,
    /// The count of the rule under which that was.
    pub(super) limit: i64,
    /// When it was made from the permits of another, else 0.
    since: Micros,
    /// The period of that other, else 0.
    source: Micros,
    /// Earliest first; neighbours that touch differ in their counts.
    pub(super) runs: SmallVec<[Run; 2]>,
}

/// Windows `first` to `last` have `count` permits taken each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) count: i64,
}

// === impl Section ===

impl Section {
    pub(super) fn new(period: Micros, asked: Micros) -> Self {
        Self { period, asked, limit: 0, since: 0, source: 0, runs: SmallVec::new() }
    }

    /// With `count` permits in each window from the first instant to the last.
    pub(super) fn full(period: Micros, asked: Micros, count: i64, from_to: [Micros; 2]) -> Self {
        let mut section = Self { limit: count, ..Self::new(period, asked) };
        let [first, last] = from_to.map(|instant| section.window(instant));
        section.runs.push(Run { first, last, count });
        section
    }

    /// The section of a period that is not kept, at the instant of the last write: the permits of the one of
    /// `others` that has most of them, each at the start of its window, those of a window that had begun at
    /// `clock`. That instant does not move while nobody is admitted, so a long window that is full under
    /// the old rule fills one window of the new one and not one after another.
    ///
    /// The old windows that were past at `clock` are not kept. Those since `born` in a longer window of the new rule, of
    /// `count` permits, count as full: what the laxer of both rules allows in that window is never exceeded.
    pub(super) fn converted(
        period: Micros,
        count: i64,
        others: &[Self],
        [born, clock]: [Micros; 2],
    ) -> Self {
        let mut section = Self::new(period, clock);
        // Of equals the first.
        let Some(old) = others.iter().rev().max_by_key(|old| old.permits()) else {
            return section;
        };
        (section.since, section.source) = (clock, old.period);
        let mut exact = MAX_HOLES as i64;
        for Run { mut first, last, count } in old.runs.iter().copied() {
            if first * old.period < clock {
                section.add(section.window(clock), count);
                first += 1;
            }
            exact -= last - first + 1;
            if exact >= 0 {
                (first..=last).for_each(|i| section.add(section.window(i * old.period), count));
                continue;
            }
            // A long queue: each window gets as many as the fullest of them can have.
            let count = count.saturating_mul(ceil_div(period, old.period)).min(MOST);
            let [first, last] = [first, last].map(|i| section.window(i * old.period));
            section.add(first, count);
            if first < last {
                section.runs.push(Run { first: first + 1, last, count });
                section.join(section.runs.len() - 1);
            }
        }
        let window = section.window(clock);
        let gone = old.window(clock) - old.window(born.max(window * period));
        let spare = (Self { limit: count, ..Self::new(period, 0) }).allows(old, old.limit) - count;
        let past = gone.saturating_mul(old.limit).saturating_sub(spare).min(count);
        if past > 0 {
            section.add(window, past);
        }
        section.bound();
        section
    }

    /// How many permits may be in one of its windows: its own limit, or as many as `other` lets into its own windows of
    /// that time with `count` in each, if that is more.
    pub(super) fn allows(&self, other: &Self, count: i64) -> i64 {
        ceil_div(self.period, other.period).saturating_mul(count).min(MOST).max(self.limit)
    }

    /// The first instant from `at` on in whose window at most `most` permits are taken.
    pub(super) fn first_room(&self, at: Micros, most: i64) -> Micros {
        let window = self.window(at);
        match self.first_with_room(window, most) {
            fit if fit == window => at,
            fit => fit * self.period,
        }
    }

    pub(super) fn window(&self, instant: Micros) -> i64 {
        instant.div_euclid(self.period)
    }

    /// The first run that does not end before `window`.
    fn find(&self, window: i64) -> usize {
        self.runs.partition_point(|run| run.last < window)
    }

    /// Permits taken in `window`.
    pub(super) fn count(&self, window: i64) -> i64 {
        let run = self.runs.get(self.find(window)).filter(|run| run.first <= window);
        run.map_or(0, |run| run.count)
    }

    /// The first window from `window` on in which at most `most` permits are taken.
    pub(super) fn first_with_room(&self, mut window: i64, most: i64) -> i64 {
        for run in &self.runs[self.find(window)..] {
            if run.first > window || run.count <= most {
                break;
            }
            window = run.last + 1;
        }
        window
    }

    /// Can a grant of `cost` permits under the rule of `period` be given back here at `clock`? A section that
    /// was made later knows it only when it stood where [`Self::converted`] put it: at the start of
    /// its window, or granted at once. Otherwise its permits here would be those of somebody else.
    pub(super) fn holds(&self, grant: &Grant, period: Micros, cost: i64, clock: Micros) -> bool {
        let placed = grant.whole <= grant.aux || grant.whole.rem_euclid(period) == 0;
        let known = grant.aux > self.since || self.source == period && placed;
        let window = self.window(grant.whole);
        known && window >= self.window(clock) && (cost..MOST).contains(&self.count(window))
    }

    /// Permits in all windows; which of two sections has more is all that it is for.
    fn permits(&self) -> i64 {
        let permits = |run: &Run| run.count.saturating_mul(run.last - run.first + 1).min(MOST);
        self.runs.iter().map(permits).sum()
    }

    /// When its last permit is past.
    pub(super) fn end(&self) -> Micros {
        self.runs.last().map_or(0, |run| (run.last + 1) * self.period)
    }

    pub(super) fn forget_past(&mut self, clock: Micros) {
        let window = self.window(clock);
        let past = self.find(window);
        self.runs.drain(..past);
        if let Some(run) = self.runs.first_mut() {
            run.first = run.first.max(window);
        }
    }

    /// Adds `permits` to `window`, or takes them away when negative.
    pub(super) fn add(&mut self, window: i64, permits: i64) {
        let mut i = self.find(window);
        if let Some(run) = self.runs.get(i).copied().filter(|run| run.first <= window) {
            if run.last > window {
                self.runs.insert(i + 1, Run { first: window + 1, ..run });
            }
            if run.first < window {
                self.runs.insert(i, Run { last: window - 1, ..run });
                i += 1;
            }
            let count = (run.count + permits).min(MOST);
            self.runs[i] = Run { first: window, last: window, count };
        } else {
            self.runs.insert(i, Run { first: window, last: window, count: permits });
        }
        if self.runs[i].count == 0 {
            self.runs.remove(i);
            return;
        }
        self.join(i + 1);
        self.join(i);
    }

    /// Makes one of run `i` and the one before it when nothing tells them apart.
    fn join(&mut self, i: usize) {
        if i == 0 || i >= self.runs.len() {
            return;
        }
        let (a, b) = (self.runs[i - 1], self.runs[i]);
        if a.last + 1 == b.first && a.count == b.count {
            self.runs[i - 1].last = b.last;
            self.runs.remove(i);
        }
    }

    /// Above the bound the two neighbours that differ in the fewest windows (of equals the last) become one
    /// run as full as the fuller, which is safe and wastes the room between.
    pub(super) fn bound(&mut self) {
        while self.runs.len() > MAX_HOLES {
            let wasted = |i: &usize| {
                let (a, b) = (self.runs[*i - 1], self.runs[*i]);
                let lesser = if a.count < b.count { a } else { b };
                let differ = if a.count == b.count { 0 } else { lesser.last - lesser.first + 1 };
                differ + b.first - a.last - 1
            };
            let Some(i) = (1..self.runs.len()).rev().min_by_key(wasted) else { return };
            let b = self.runs.remove(i);
            let a = &mut self.runs[i - 1];
            (a.last, a.count) = (b.last, a.count.max(b.count));
            self.join(i);
            self.join(i - 1);
        }
    }
}
