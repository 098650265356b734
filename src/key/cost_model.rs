//! A model of what calls cost, learned from the costs that their answers said: a ratio to the bytes of the body, and the
//! distribution of the costs beyond it. Old answers fade. Knows no store and no clock.

use std::collections::BTreeMap;

/// The answers before which nothing is known.
const LEAST: f64 = 20.0;
/// The answers before which the ratio is too rough to say what a cost has beyond it.
const ROUGH: f64 = 8.0;
/// The answers at which all that is known counts half: the model follows a change within as many.
const MOST: f64 = 2048.0;
/// A body counts at most as so many average ones, and a cost as so many that were expected: one call of 20 MB or of millions of tokens
/// would otherwise decide on the ratio of some thousand.
const FAR: f64 = 4.0;
const GREAT: f64 = 8.0;
/// The ratio of the reserves follows the learned one when it differs by this part of an average cost.
const MOVED: f64 = 0.05;
/// The share of the costs that a reserve covers.
const COVERED: f64 = 0.95;
/// The buckets of one doubling. A value within one is interpolated.
const BUCKETS: f64 = 4.0;
/// The bucket of the greatest costs, above 2^45.
const LAST: u16 = 180;
/// No sum is greater: 4,096 squared lengths of bodies of 2^64 bytes are 10^42.
const GREATEST: f64 = 1e45;
/// The first word of its text.
const VERSION: &str = "r2";

/// The costs of the answers so far, as weighted sums.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CostModel {
    answers: f64,
    bytes: f64,
    costs: f64,
    squared_bytes: f64,
    bytes_by_costs: f64,
    /// The ratio of the reserves.
    ratio: f64,
    /// The weight of the costs beyond it, by their bucket. Bucket 0 has those of at most 1.
    beyond: BTreeMap<u16, f64>,
}

/// The length of a body, and the permits that the call cost.
#[derive(Debug, Clone, Copy)]
struct CountedCall {
    bytes: f64,
    cost: f64,
}

/// The facts of a model with all answers.
#[derive(Debug, Clone, Copy)]
pub struct KnownCosts {
    answers: f64,
    bytes: f64,
    costs: f64,
    ratio: f64,
}

// === impl KnownCosts ===

impl KnownCosts {
    /// The call as it counts for the ratio: one that is far from all others is brought near them.
    fn near(&self, CountedCall { bytes, cost }: CountedCall) -> CountedCall {
        let part = (FAR * self.bytes / self.answers / bytes.max(1.0)).min(1.0);
        let (bytes, cost) = (bytes * part, cost * part);
        let expected = (self.ratio * bytes).max(self.costs / self.answers).max(1.0);
        CountedCall { bytes, cost: cost.min(GREAT * expected) }
    }
}

// === impl CostModel ===

impl CostModel {
    /// Whether no answer was seen.
    pub fn is_empty(&self) -> bool {
        self.answers == 0.0
    }

    /// Whether enough answers were seen for a reserve.
    pub fn is_known(&self) -> bool {
        self.answers >= LEAST && !self.beyond.is_empty()
    }

    /// The facts of this model by which calls are observed.
    pub fn known(&self) -> KnownCosts {
        let Self { answers, bytes, costs, ratio, .. } = *self;
        KnownCosts { answers, bytes, costs, ratio }
    }

    /// Learns that a call with so many `bytes` cost so much. `known` is of the model with all answers, of which this one may be a
    /// part.
    pub fn observe(&mut self, bytes: u64, cost: i64, known: KnownCosts) {
        self.take_ratio(known.ratio);
        let (bytes, cost) = (bytes as f64, cost as f64);
        let counted = if known.answers >= ROUGH {
            *self.beyond.entry(bucket(cost - self.ratio * bytes)).or_default() += 1.0;
            known.near(CountedCall { bytes, cost })
        } else {
            CountedCall { bytes, cost }
        };
        let CountedCall { bytes, cost } = counted;
        self.answers += 1.0;
        self.bytes += bytes;
        self.costs += cost;
        self.squared_bytes += bytes * bytes;
        self.bytes_by_costs += bytes * cost;
        // The new answers alone say little of the ratio.
        if self.answers > known.answers {
            self.follow();
        }
        self.fade();
    }

    /// Adds the answers of `other`.
    pub fn add(&mut self, other: &Self) {
        if self.is_empty() {
            self.ratio = other.ratio;
        }
        let mut other = other.clone();
        other.take_ratio(self.ratio);
        self.answers += other.answers;
        self.bytes += other.bytes;
        self.costs += other.costs;
        self.squared_bytes += other.squared_bytes;
        self.bytes_by_costs += other.bytes_by_costs;
        for (bucket, weight) in other.beyond {
            *self.beyond.entry(bucket).or_default() += weight;
        }
        self.follow();
        self.fade();
    }

    /// Takes the learned ratio for the reserves if it has moved.
    fn follow(&mut self) {
        let ratio = self.learned_ratio().min(GREATEST);
        if ((ratio - self.ratio) * self.bytes).abs() > self.costs * MOVED {
            self.take_ratio(ratio);
        }
    }

    /// Takes another ratio. The costs beyond it are those of a body of average length; those that were below the ratio stay so,
    /// because nothing says by how much.
    fn take_ratio(&mut self, ratio: f64) {
        let less = (ratio - self.ratio) * self.bytes / self.answers.max(1.0);
        self.ratio = ratio;
        if less != 0.0 {
            for (bucket, weight) in std::mem::take(&mut self.beyond) {
                let moved = middle_of(bucket).map_or(0, |middle| self::bucket(middle - less));
                *self.beyond.entry(moved).or_default() += weight;
            }
        }
    }

    /// The permits that cover 95 % of the calls with so many `bytes`; `None` until enough is known.
    pub fn reserve(&self, bytes: u64) -> Option<i64> {
        let least = self.ratio * bytes as f64;
        self.is_known().then(|| (least + self.quantile()).ceil().max(1.0) as i64)
    }

    /// The permits of a byte, by least squares: never below 0, and never so many that costs are below it on average.
    fn learned_ratio(&self) -> f64 {
        let spread = self.answers * self.squared_bytes - self.bytes * self.bytes;
        let common = self.answers * self.bytes_by_costs - self.bytes * self.costs;
        // Bodies of one length say nothing of a ratio, and sums of them are not exact.
        if spread <= self.answers * self.squared_bytes * 1e-9 {
            return 0.0;
        }
        (common / spread).min(self.costs / self.bytes).max(0.0)
    }

    /// The cost beyond the ratio that is not exceeded by [`COVERED`] of the answers.
    fn quantile(&self) -> f64 {
        let mut left = self.beyond.values().sum::<f64>() * COVERED;
        for (bucket, weight) in &self.beyond {
            if left <= *weight && *bucket > 0 {
                return ((f64::from(*bucket) - 1.0 + left / weight) / BUCKETS).exp2();
            }
            left -= weight;
        }
        1.0
    }

    fn fade(&mut self) {
        while self.answers >= MOST {
            for sum in self.sums() {
                *sum /= 2.0;
            }
            self.beyond.values_mut().for_each(|weight| *weight /= 2.0);
            self.beyond.retain(|_, weight| *weight > 0.01);
        }
        for sum in self.sums() {
            *sum = sum.min(GREATEST);
        }
    }

    fn sums(&mut self) -> [&mut f64; 5] {
        let Self { answers, bytes, costs, squared_bytes, bytes_by_costs, .. } = self;
        [answers, bytes, costs, squared_bytes, bytes_by_costs]
    }

    /// The model as a text, by which gateways share it.
    pub fn text(&self) -> String {
        let sums = [self.bytes, self.costs, self.squared_bytes, self.bytes_by_costs, self.ratio];
        let mut text = format!("{VERSION} {:e}", self.answers);
        sums.iter().for_each(|sum| text.push_str(&format!(" {sum:e}")));
        for (bucket, weight) in &self.beyond {
            text.push_str(&format!(" {bucket}:{weight:.3}"));
        }
        text
    }

    /// Reads such a text; `None` for one of another version.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next()? != VERSION {
            return None;
        }
        let mut sum =
            || words.next()?.parse().ok().filter(|sum: &f64| (0.0..=GREATEST).contains(sum));
        let mut model = Self {
            answers: sum()?,
            bytes: sum()?,
            costs: sum()?,
            squared_bytes: sum()?,
            bytes_by_costs: sum()?,
            ratio: sum()?,
            beyond: BTreeMap::new(),
        };
        for word in words {
            let (bucket, weight) = word.split_once(':')?;
            let weight =
                weight.parse().ok().filter(|weight: &f64| (0.0..=2.0 * MOST).contains(weight));
            model.beyond.insert(bucket.parse().ok().filter(|bucket| *bucket <= LAST)?, weight?);
        }
        // Each answer has one cost beyond the ratio at most. A text of another program may have more, and rounded weights add up.
        let weight: f64 = model.beyond.values().sum();
        if weight > model.answers {
            let part = model.answers / weight;
            model.beyond.values_mut().for_each(|weight| *weight *= part);
        }
        (model.answers <= 2.0 * MOST).then_some(model)
    }
}

/// The bucket of a cost beyond the ratio.
fn bucket(beyond: f64) -> u16 {
    let bucket = if beyond > 1.0 { 1.0 + (beyond.log2() * BUCKETS).floor() } else { 0.0 };
    (bucket as u16).min(LAST)
}

/// A cost of a bucket but the first.
fn middle_of(bucket: u16) -> Option<f64> {
    (bucket > 0).then(|| ((f64::from(bucket) - 0.5) / BUCKETS).exp2())
}

#[cfg(test)]
mod tests;
