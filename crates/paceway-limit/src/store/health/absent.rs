//! Gateways that decide alone by their shares while this one uses the store: their part of each rule is charged to the
//! shared state with what this one grants, so that the sum stays within the rule. Never asks the store.

use ahash::RandomState;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A permit, in the unit of the sums below.
const ONE: u64 = 1 << 16;
/// Groups of keys whose fractions of permits are kept. Two keys of one group share a fraction.
const GROUPS: usize = 256;

/// The permits that are charged besides those that this gateway is granted.
pub(super) struct Absent {
    /// How much is charged for each permit, in parts of [`ONE`]. 0 while every gateway uses the store.
    more: AtomicU64,
    /// For each group, what was charged so far and the fraction that was not.
    sums: [AtomicU64; GROUPS],
    /// Its seeds are fixed: a client that chooses keys of one group gains nothing.
    hasher: RandomState,
}

// === impl Absent ===

impl Absent {
    pub(super) fn new() -> Self {
        let sums = std::array::from_fn(|_| AtomicU64::new(0));
        Self { more: AtomicU64::new(0), sums, hasher: RandomState::with_seeds(1, 2, 3, 4) }
    }

    /// `absent` of all `gateways` decide alone. The others share what is left: where one of three is absent, two grant two
    /// thirds of the rule, so each two permits that they grant cost three.
    pub(super) fn set(&self, absent: i64, gateways: i64) {
        let [absent, gateways] = [absent, gateways].map(|n| u64::try_from(n).unwrap_or(0));
        let more = match absent.min(gateways.saturating_sub(1)) {
            0 => 0,
            absent => absent.saturating_mul(ONE) / (gateways - absent),
        };
        self.more.store(more, Relaxed);
    }

    /// Whether any gateway is absent.
    pub(super) fn is_any(&self) -> bool {
        self.more.load(Relaxed) > 0
    }

    /// The permits to charge to the state of `key` besides `cost` that were granted from it.
    pub(super) fn more(&self, key: &str, cost: i64) -> i64 {
        let more = self.more.load(Relaxed).saturating_mul(u64::try_from(cost).unwrap_or(0));
        let group = usize::try_from(self.hasher.hash_one(key) % GROUPS as u64).unwrap_or(0);
        let sum = self.sums[group].fetch_add(more, Relaxed);
        // The sums may wrap; the difference of their whole parts is right.
        let charged = (sum.wrapping_add(more) >> 16).wrapping_sub(sum >> 16) & (u64::MAX >> 16);
        i64::try_from(charged).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// The sum that is charged for 1,000 grants of a cost.
    #[rstest]
    #[case::none(0, 3, 1, 0)]
    #[case::one_of_three(1, 3, 1, 500)]
    #[case::two_of_three(2, 3, 1, 2000)]
    #[case::all_but_this_one(9, 10, 2, 18_000)]
    #[case::one_of_a_thousand(1, 1000, 1, 1)]
    #[case::more_than_there_are(5, 2, 1, 1000)]
    #[case::alone(1, 1, 1, 0)]
    fn a_grant_charges_the_shares_of_absent_gateways(
        #[case] absent: i64,
        #[case] gateways: i64,
        #[case] cost: i64,
        #[case] expected: i64,
    ) {
        let all = Absent::new();
        all.set(absent, gateways);
        assert_eq!(all.is_any(), expected > 0);
        let sum: i64 = (0..1000).map(|_| all.more("key", cost)).sum();
        assert!((expected - 1..=expected).contains(&sum), "{sum}");
    }
}
