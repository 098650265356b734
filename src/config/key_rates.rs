//! `rates` of a limiter: another rate for some of its keys. Asks no store.

use super::unit::Rate;
use crate::algorithm::Algorithm;
use std::collections::HashMap;

/// The most patterns: a request is compared with each of them.
pub(super) const MOST_PATTERNS: usize = 100;

/// The rates of the keys that have another one than their limiter, by name or by pattern.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyedRates {
    /// Each rate once, with its rule.
    rules: Vec<KeyRule>,
    /// The index of each rate in `rules`. All keys may have different ones.
    places: HashMap<Rate, usize>,
    /// The index of the rule of each key, in the form that [`Template::fill`](crate::key::Template::fill) gives a key.
    exact: HashMap<String, usize>,
    /// Patterns with the indices of their rules, the longest pattern first.
    patterns: Vec<(KeyPattern, usize)>,
}

/// A rate, and the rule of a limiter at this rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRule {
    /// The rate as the user writes it.
    pub rate: Rate,
    /// The rule.
    pub rule: Algorithm,
}

/// A text in which each `*` stands for any text, such as `plus-*`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyPattern {
    /// The text before the first `*`.
    start: String,
    /// The texts between two of them.
    middle: Vec<String>,
    /// The text after the last one.
    end: String,
}

// === impl KeyedRates ===

impl KeyedRates {
    /// Sets the rate of a key, or of the keys of a pattern. Returns whether that name had none.
    pub(super) fn add(&mut self, name: String, rule: KeyRule) -> bool {
        let Some(pattern) = KeyPattern::parse(&name) else {
            if self.exact.contains_key(&name) {
                return false;
            }
            let place = self.place_of(rule);
            self.exact.insert(name, place);
            return true;
        };
        if self.patterns.iter().any(|(own, _)| *own == pattern) {
            return false;
        }
        let place = self.place_of(rule);
        self.add_pattern(pattern, place);
        true
    }

    /// Adds the rates of `others` whose names have none.
    pub(super) fn add_missing(&mut self, others: &Self) {
        for (name, place) in &others.exact {
            if !self.exact.contains_key(name) {
                let place = self.place_of(others.rules[*place]);
                self.exact.insert(name.clone(), place);
            }
        }
        for (pattern, place) in &others.patterns {
            if self.patterns.iter().all(|(own, _)| own != pattern) {
                let place = self.place_of(others.rules[*place]);
                self.add_pattern(pattern.clone(), place);
            }
        }
    }

    /// The rule at a rate that some key has.
    pub(super) fn rule_at(&self, rate: Rate) -> Option<Algorithm> {
        self.places.get(&rate).map(|place| self.rules[*place].rule)
    }

    /// The index of a rule, which is added if its rate is new.
    fn place_of(&mut self, rule: KeyRule) -> usize {
        *self.places.entry(rule.rate).or_insert_with(|| {
            self.rules.push(rule);
            self.rules.len() - 1
        })
    }

    fn add_pattern(&mut self, pattern: KeyPattern, place: usize) {
        let shorter = |(own, _): &(KeyPattern, usize)| own.letters() < pattern.letters();
        let at = self.patterns.iter().position(shorter).unwrap_or(self.patterns.len());
        self.patterns.insert(at, (pattern, place));
    }

    /// The index in [`Self::rules`] of the rule of a key: that of its name, or else of the longest pattern that it has; `None` for
    /// a key with the rate of the limiter.
    pub fn find(&self, key: &str) -> Option<usize> {
        let exact = self.exact.get(key).copied();
        exact.or_else(|| {
            let pattern = self.patterns.iter().find(|(pattern, _)| pattern.has(key));
            pattern.map(|(_, place)| *place)
        })
    }

    /// Each rate once, with its rule.
    pub fn rules(&self) -> &[KeyRule] {
        &self.rules
    }

    /// The same, to be changed.
    pub(super) fn rules_mut(&mut self) -> &mut [KeyRule] {
        &mut self.rules
    }

    /// How many patterns have a rate.
    pub(super) fn patterns(&self) -> usize {
        self.patterns.len()
    }

    /// How many names and patterns have a rate.
    pub fn len(&self) -> usize {
        self.exact.len() + self.patterns.len()
    }

    /// Whether no key has a rate of its own.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

// === impl KeyPattern ===

impl KeyPattern {
    /// Reads a name that has a `*`.
    fn parse(text: &str) -> Option<Self> {
        let (start, rest) = text.split_once('*')?;
        let (middle, end) = rest.rsplit_once('*').map_or(("", rest), |(middle, end)| (middle, end));
        let middle = middle.split('*').filter(|part| !part.is_empty());
        Some(Self {
            start: start.into(),
            middle: middle.map(Into::into).collect(),
            end: end.into(),
        })
    }

    fn letters(&self) -> usize {
        self.start.len() + self.middle.iter().map(String::len).sum::<usize>() + self.end.len()
    }

    fn has(&self, key: &str) -> bool {
        let rest = key.strip_prefix(&*self.start).and_then(|rest| rest.strip_suffix(&*self.end));
        let mut parts = self.middle.iter();
        parts
            .try_fold(rest, |rest, part| Some(Some(rest?.split_once(&**part)?.1)))
            .flatten()
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;
    use proptest::prelude::*;
    use rstest::rstest;
    use std::time::Duration;

    fn rule(count: u64) -> KeyRule {
        let rate = Rate { count, period: Duration::from_secs(1) };
        let count = i64::try_from(count).expect("small");
        KeyRule { rate, rule: TokenBucket::new(count, 1_000_000, count).expect("a rule").into() }
    }

    fn rates(all: &[(&str, u64)]) -> KeyedRates {
        let mut rates = KeyedRates::default();
        all.iter().for_each(|(name, count)| assert!(rates.add((*name).into(), rule(*count))));
        rates
    }

    /// A name counts before a pattern, and a long pattern before a short one, whatever their order is.
    #[rstest]
    #[case::a_name("acme", Some(20))]
    #[case::a_name_with_a_pattern("plus-acme", Some(30))]
    #[case::a_pattern("plus-shop", Some(10))]
    #[case::the_longer_pattern("plus-eu-shop", Some(15))]
    #[case::an_empty_rest("plus-", Some(10))]
    #[case::an_end("shop.test", Some(5))]
    #[case::two_stars("a-b-c", Some(7))]
    #[case::two_stars_that_overlap("a-c", None)]
    #[case::another_key("shop", None)]
    #[case::a_part_of_a_name("acm", None)]
    fn the_most_exact_name_counts(#[case] key: &str, #[case] count: Option<u64>) {
        let names = [
            ("plus-*", 10),
            ("acme", 20),
            ("plus-eu-*", 15),
            ("plus-acme", 30),
            ("*.test", 5),
            ("a-*-c", 7),
        ];
        let (forwards, mut backwards) = (rates(&names), names);
        backwards.reverse();
        for rates in [forwards, rates(&backwards)] {
            assert_eq!(rates.find(key).map(|place| rates.rules()[place].rate.count), count);
        }
    }

    #[test]
    fn a_name_has_one_rate() {
        for name in ["acme", "plus-*"] {
            let mut rates = rates(&[(name, 1)]);
            assert!(!rates.add(name.into(), rule(2)));
        }
    }

    proptest! {
        /// A pattern has each text that is made from it.
        #[test]
        fn texts_of_a_pattern_have_it(parts in prop::collection::vec("[a-c]{0,3}", 2..5), fill in "[a-c]{0,3}") {
            let pattern = KeyPattern::parse(&parts.join("*")).expect("a pattern");
            prop_assert!(pattern.has(&parts.join(&fill)));
        }
    }
}
