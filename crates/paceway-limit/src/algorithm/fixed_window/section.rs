//! The permits taken in the windows of one period. A section does not know the limit: its caller decides how
//! many permits are too many.

use crate::algorithm::{Grant, MAX_HOLES, Micros, ceil_div, stored::StoredBytes};
use smallvec::SmallVec;

/// The greatest count of a window; it keeps all arithmetic exact. A window that has reached it refuses
/// refunds.
const MOST: i64 = 1_000_000_000_000;

/// The windows of one period that have permits, as runs of windows with equal counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    /// The length of a window, µs.
    pub(super) period: Micros,
    /// When the last grant or refund was made under the rule of this period, µs.
    pub(super) asked: Micros,
    /// The count of the rule under which that grant or refund was made.
    pub(super) limit: i64,
    /// When the section was made from the permits of another one, µs; 0 if it was not.
    since: Micros,
    /// The period of that other section, µs; 0 if there is none.
    source: Micros,
    /// The runs in order of time; two runs that touch have different counts.
    pub(super) runs: SmallVec<[Run; 2]>,
}

/// The windows from `first` to `last`, in each of which `count` permits are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) count: i64,
}

// === impl Section ===

impl Section {
    /// Reads a section as the Lua twin writes it.
    pub(super) fn read(bytes: &mut StoredBytes<'_>) -> Option<Self> {
        let [period, asked, limit, since, source] = bytes.integers()?;
        let runs = bytes.count()?;
        let runs = bytes.list(runs)?.into_iter().map(|[first, last, count]| {
            (first <= last && count >= 0).then_some(Run { first, last, count })
        });
        let runs = runs.collect::<Option<_>>()?;
        (period >= 1).then_some(Self { period, asked, limit, since, source, runs })
    }

    /// A section without permits.
    pub(super) fn new(period: Micros, asked: Micros) -> Self {
        Self { period, asked, limit: 0, since: 0, source: 0, runs: SmallVec::new() }
    }

    /// A section with `count` permits in each window from the first instant to the last.
    pub(super) fn full(period: Micros, asked: Micros, count: i64, from_to: [Micros; 2]) -> Self {
        let mut section = Self { limit: count, ..Self::new(period, asked) };
        let [first, last] = from_to.map(|instant| section.window(instant));
        section.runs.push(Run { first, last, count });
        section
    }

    /// Makes the section of a period that is not kept, as of the instant of the last write. It takes the
    /// permits of the section in `others` that has most of them, each at the start of its window; those of a
    /// window that had begun at `clock` are placed at `clock`. That instant does not move while no request is
    /// admitted, so a long window that is full under the old rule fills one window of the new rule and not
    /// one after another.
    ///
    /// The old windows that were past at `clock` are not kept. Those since `born` within a longer window of
    /// the new rule (of `count` permits) count as full: that window never exceeds what the laxer of both
    /// rules allows there.
    pub(super) fn converted(
        period: Micros,
        count: i64,
        others: &[Self],
        [born, clock]: [Micros; 2],
    ) -> Self {
        let mut section = Self::new(period, clock);
        // Among sections with equally many permits the first counts.
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
            // In a long queue each window gets as many permits as the fullest of them can have.
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

    /// How many permits may be in one window of this section: its own limit, or as many as `other` grants in
    /// that time with `count` permits in each of its own windows, if that is more.
    pub(super) fn allows(&self, other: &Self, count: i64) -> i64 {
        ceil_div(self.period, other.period).saturating_mul(count).min(MOST).max(self.limit)
    }

    /// The first instant from `at` on in whose window at most `most` permits are taken.
    pub(super) fn first_room(&self, at: Micros, most: i64) -> Micros {
        let window = self.window(at);
        let mut fit = window;
        for run in &self.runs[self.find(window)..] {
            if run.first > fit || run.count <= most {
                break;
            }
            fit = run.last + 1;
        }
        if fit == window { at } else { fit * self.period }
    }

    /// The number of the window that contains `instant`.
    pub(super) fn window(&self, instant: Micros) -> i64 {
        instant.div_euclid(self.period)
    }

    /// The index of the first run that does not end before `window`.
    fn find(&self, window: i64) -> usize {
        self.runs.partition_point(|run| run.last < window)
    }

    /// The permits that are taken in `window`.
    pub(super) fn count(&self, window: i64) -> i64 {
        let run = self.runs.get(self.find(window)).filter(|run| run.first <= window);
        run.map_or(0, |run| run.count)
    }

    /// Whether a grant of `cost` permits under the rule of `period` can be refunded to this section at
    /// `clock`. A section that was made later contains the grant only if the grant is where
    /// [`Self::converted`] placed it: at the start of its window, or granted at once. Otherwise the refund
    /// would return permits of another request.
    pub(super) fn holds(&self, grant: &Grant, period: Micros, cost: i64, clock: Micros) -> bool {
        let placed = grant.whole <= grant.aux || grant.whole.rem_euclid(period) == 0;
        let known = grant.aux > self.since || self.source == period && placed;
        let window = self.window(grant.whole);
        known && window >= self.window(clock) && (cost..MOST).contains(&self.count(window))
    }

    /// The permits in all windows. The sum is used only to find the section that has most of them.
    fn permits(&self) -> i64 {
        let permits = |run: &Run| run.count.saturating_mul(run.last - run.first + 1).min(MOST);
        self.runs.iter().map(permits).sum()
    }

    /// The instant at which the last window with permits is past, µs.
    pub(super) fn end(&self) -> Micros {
        self.runs.last().map_or(0, |run| (run.last + 1) * self.period)
    }

    /// Drops the windows that are past at `clock`.
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
        self.split(window);
        self.split(window + 1);
        let i = self.find(window);
        if self.runs.get(i).is_none_or(|run| run.first > window) {
            self.runs.insert(i, Run { first: window, last: window, count: 0 });
        }
        self.runs[i].count = (self.runs[i].count + permits).min(MOST);
        if self.runs[i].count == 0 {
            self.runs.remove(i);
            return;
        }
        self.join(i + 1);
        self.join(i);
    }

    /// Splits the run that contains `window` and begins before it.
    fn split(&mut self, window: i64) {
        let i = self.find(window);
        if let Some(run) = self.runs.get(i).copied().filter(|run| run.first < window) {
            self.runs.insert(i, Run { last: window - 1, ..run });
            self.runs[i + 1].first = window;
        }
    }

    /// Unites run `i` with the one before it when they touch and have the same count.
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

    /// Keeps at most [`MAX_HOLES`] runs. The two neighbours that differ in the fewest windows (among equals
    /// the last) become one run as full as the fuller one: the room between is wasted, and no limit is
    /// exceeded.
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
