//! Repeats in the log that the store is away or gives no decisions, for operators who have not seen the first line. Asks no store.

use crate::store::health::Health;
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// The age of an outage at the first repetition. The distance of the others doubles.
const FIRST: Duration = Duration::from_secs(10);
/// The longest distance of two lines.
const LONGEST: Duration = Duration::from_secs(3600);

/// Says when a line about an outage is due.
#[derive(Debug)]
struct Repetition {
    due: Duration,
    last: Duration,
}

/// Writes the lines for as long as the process runs.
pub(super) async fn report(health: Arc<Health>) {
    let mut repetition = Repetition::default();
    loop {
        sleep(FIRST / 2).await;
        let away = health.away();
        let failure = || health.failures().into_iter().max_by_key(|(_, since, _)| *since);
        let outage = away.clone().or_else(|| failure().map(|(_, since, why)| (since, why)));
        let age = outage.as_ref().map(|(age, _)| *age);
        let (true, Some((age, why))) = (repetition.is_due(age), outage) else { continue };
        let message = match (away.is_some(), health.was_reached()) {
            (true, false) => "the store was never reached",
            (true, true) => "the store is still away",
            (false, _) => "the store still gives no decisions",
        };
        tracing::warn!(
            error = %why,
            for_s = age.as_secs(),
            gateways = health.gateways(),
            "{message}: limiters decide by their `on_failure`"
        );
    }
}

// === impl Repetition ===

impl Default for Repetition {
    fn default() -> Self {
        Self { due: FIRST, last: Duration::ZERO }
    }
}

impl Repetition {
    /// Whether a line is due about an outage of this age; `None` if there is none.
    fn is_due(&mut self, age: Option<Duration>) -> bool {
        let Some(age) = age.filter(|age| *age >= self.last) else {
            // The outage has ended, or is another one.
            *self = Self::default();
            self.last = age.unwrap_or_default();
            return false;
        };
        self.last = age;
        if age < self.due {
            return false;
        }
        self.due = age + age.min(LONGEST);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_again_at_growing_intervals() {
        let (mut repetition, mut lines) = (Repetition::default(), Vec::new());
        for age in (0..36_000).step_by(10) {
            if repetition.is_due(Some(Duration::from_secs(age))) {
                lines.push(age);
            }
        }
        assert_eq!(lines[..5], [10, 20, 40, 80, 160]);
        assert!(lines.windows(2).all(|pair| pair[1] - pair[0] <= 3600), "{lines:?}");
        // Another outage begins with the shortest distance.
        assert!(!repetition.is_due(None));
        assert!(repetition.is_due(Some(Duration::from_secs(12))));
    }

    #[test]
    fn a_new_outage_between_two_checks_is_reported_at_the_shortest_interval() {
        let mut repetition = Repetition::default();
        assert!(repetition.is_due(Some(Duration::from_secs(80))));
        assert!(!repetition.is_due(Some(Duration::from_secs(9))));
        assert!(repetition.is_due(Some(Duration::from_secs(19))));
    }
}
