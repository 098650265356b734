//! The requests of each account in the last hour, from the counters that requests update anyway. Every minute a tick reads them.

use crate::{metrics, plan::Plan};
use std::collections::{HashMap, VecDeque};

/// The ticks that are kept: those of an hour.
const MINUTES: usize = 60;

/// The counts of all accounts at the last ticks.
#[derive(Default)]
pub(in crate::admin) struct AccountHours {
    /// By upstream and account, the oldest first.
    all: HashMap<[String; 2], VecDeque<u64>>,
}

// === impl AccountHours ===

impl AccountHours {
    /// Keeps the counts of all accounts. A reload may have added or removed some.
    pub(in crate::admin) fn tick(&mut self, plan: &Plan) {
        let mut before = std::mem::take(&mut self.all);
        for upstream in &plan.config.upstreams {
            for account in upstream.accounts.iter().flat_map(|accounts| &accounts.all) {
                let name = [upstream.name.clone(), account.name.clone()];
                let now = metrics::ACCOUNT_REQUESTS.value(&[&upstream.name, &account.name]);
                let mut counts = before.remove(&name).unwrap_or_else(|| [0].into());
                note(&mut counts, now);
                self.all.insert(name, counts);
            }
        }
    }

    /// The requests of an account that has sent `now` since the start.
    pub(super) fn of(&self, upstream: &str, account: &str, now: u64) -> u64 {
        let counts = self.all.get(&[upstream.to_owned(), account.to_owned()]);
        let before = counts.and_then(|counts| counts.front()).copied();
        now.saturating_sub(before.unwrap_or_default())
    }
}

fn note(counts: &mut VecDeque<u64>, now: u64) {
    counts.push_back(now);
    if counts.len() > MINUTES {
        counts.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_end_after_an_hour() {
        let name = ["u".to_owned(), "a".to_owned()];
        let mut hours = AccountHours { all: [(name.clone(), [0].into())].into() };
        for minute in 1..=3 * MINUTES as u64 {
            note(hours.all.get_mut(&name).expect("its counts"), 7 * minute);
            let expected = 7 * minute.min(MINUTES as u64 - 1);
            assert_eq!(hours.of("u", "a", 7 * minute), expected, "{minute}");
            assert_eq!(hours.all[&name].len(), (minute as usize + 1).min(MINUTES));
        }
        assert_eq!(hours.of("u", "new", 5), 5);
    }
}
