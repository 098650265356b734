//! Rates of keys that are rows of `rates_from`. They are read by the code that reads `rates` of the file. Asks no database.

use super::{
    edits::ConfigEdit,
    key_rates::{KeyedRates, MOST_PATTERNS},
    keys::RuleKind,
    limiter::LimiterConfig,
    raw::Rule,
    rows_from::{RowsFrom, RowsSource},
    settings::Config,
    yaml::{self, Outside, YamlValue},
};
use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    sync::Arc,
};

/// The most rows of one limiter. Each takes some 100 bytes.
pub(crate) const MOST_RATES: usize = 100_000;

/// The rows of each limiter with `rates_from`, by its name.
pub type RateTables = BTreeMap<String, Arc<[RateRow]>>;

/// `rates_from` of a limiter, with the rule at any rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RatesFrom {
    /// The file or the database.
    pub from: RowsFrom,
    pub(super) kind: RuleKind,
    pub(super) rule: Rule,
}

/// A key, or a pattern of keys, with its rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateRow {
    /// The key as the user writes it.
    pub key: String,
    /// The rate as text, such as `20/s`.
    pub rate: String,
    /// The last valid rate of the key, if it was another one. It counts while `rate` is invalid.
    pub former: Option<String>,
    /// The number of the row, from 1; in a file that of its line.
    pub number: usize,
}

/// A row that the limiter cannot have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfitRow {
    /// Its index among the rows of the limiter.
    pub row: usize,
    /// Whether the former rate of its key counts.
    pub has_former: bool,
    /// The place and the reason. It quotes no key that is a credential.
    pub reason: String,
}

/// Reads the rows of one limiter.
struct RateReader<'c> {
    from: &'c RatesFrom,
    limiter: &'c LimiterConfig,
    /// The permits that each request takes at least.
    cost: i64,
    /// The keys whose rates an operator has changed.
    edited: HashSet<&'c str>,
    rates: KeyedRates,
    unfit: Vec<UnfitRow>,
}

// === impl Config ===

impl Config {
    /// The same configuration with the rates of rows. `edits` are those that it has: the rate that an operator gave to a key
    /// counts. A row that a limiter cannot have is left out, and noted there.
    pub fn with_rates(mut self, tables: &RateTables, edits: &[ConfigEdit]) -> Self {
        for i in 0..self.limiters.len() {
            let limiter = &self.limiters[i];
            let Some(from) = &limiter.rates_from else { continue };
            let Some(rows) = tables.get(&limiter.name) else { continue };
            let charges = self.routes.iter().flat_map(|route| &route.limiters);
            let costs = charges.filter(|own| own.limiter == i).map(|own| own.cost.least());
            let edited = edits.iter().filter_map(|edit| match edit {
                ConfigEdit::Rates { limiter: name, key: Some(key), .. } => {
                    (*name == limiter.name).then_some(key.as_str())
                }
                _ => None,
            });
            let mut reader = RateReader {
                from,
                limiter,
                cost: costs.max().unwrap_or_default(),
                edited: edited.collect(),
                rates: KeyedRates::default(),
                unfit: Vec::new(),
            };
            reader.read(rows);
            let RateReader { rates, unfit, .. } = reader;
            let limiter = &mut self.limiters[i];
            (limiter.key_rates, limiter.unfit_rows) = (Arc::new(rates), unfit.into());
        }
        self
    }
}

// === impl RateReader ===

impl RateReader<'_> {
    /// Reads the rows of a limiter, and adds its other rates.
    fn read(&mut self, rows: &[RateRow]) {
        for (i, row) in rows.iter().enumerate() {
            let Err(reason) = self.add(row, &row.rate) else { continue };
            let former = row.former.as_ref().map(|former| self.add(row, former));
            let reason = format!("{}: {reason}", self.place(row));
            self.unfit.push(UnfitRow { row: i, has_former: former == Some(Ok(())), reason });
        }
        self.rates.add_missing(&self.limiter.key_rates);
    }

    fn add(&mut self, row: &RateRow, text: &str) -> Result<(), String> {
        let RatesFrom { kind, rule, .. } = self.from;
        let LimiterConfig { key, calendar, key_rates, name, .. } = self.limiter;
        // A limiter without a key is refused where the file is read.
        let Some(key) = key else { return Ok(()) };
        // Keys and rates may have been written the wrong way round.
        let quoted = if key.is_secret() { "***" } else { text };
        let rate = kind.read_rate(text.trim(), calendar.is_some());
        let rate = rate.map_err(|reason| format!("`{}` {reason}", quoted.escape_debug()))?;
        let rule = self.rates.rule_for(rate, rule)?;
        let most = rule.rule.capacity();
        if most < self.cost {
            let cost = self.cost;
            return Err(format!(
                "a request costs at least {cost} of `{name}`, and {rate} can never give more than {most} at once"
            ));
        }
        // The rate of an operator counts. That of the row is checked nevertheless: it counts afterwards.
        if !self.edited.is_empty() && self.edited.contains(&*key.canonical_name(&row.key)) {
            return Ok(());
        }
        let patterns = MOST_PATTERNS.saturating_sub(key_rates.patterns());
        self.rates.add_named(key, &row.key, rule, patterns)
    }

    /// The place of a row, for the log.
    fn place(&self, row: &RateRow) -> String {
        let what = match &self.from.from.source {
            RowsSource::File(_) => "line",
            RowsSource::Database { .. } => "row",
        };
        if self.limiter.key.as_ref().is_some_and(|key| key.is_secret()) {
            return format!("{what} {}", row.number);
        }
        format!("{what} {}, key `{}`", row.number, row.key.escape_debug())
    }
}

// === impl RateRow ===

impl RateRow {
    /// Reads a file with a map of keys and rates, in YAML or JSON. A key without a value is none.
    ///
    /// # Errors
    ///
    /// The place and the reason, if the whole cannot be used.
    pub(crate) fn read_file(text: &str) -> Result<Vec<Self>, String> {
        // Nothing in it is a variable.
        if let Some(line) = text.lines().position(|line| line.contains("${")) {
            return Err(format!("line {}: `${{` has no meaning in this file", line + 1));
        }
        // A program that is about to write it has made it empty.
        let is_empty =
            |line: &str| line.trim_start().is_empty() || line.trim_start().starts_with('#');
        if text.lines().all(is_empty) {
            return Err("is empty; write `{}` for no rates".into());
        }
        let outside = Outside { directory: Path::new("."), variable: &|_| None, unread: None };
        let mut mistakes = Vec::new();
        let root = yaml::read_quietly(text, &outside, &mut mistakes);
        if let Some(mistake) = root.as_ref().err().or_else(|| mistakes.first()) {
            let line = mistake.place.map_or(1, |place| place.line);
            let is_star = |line: &str| line.trim_start_matches(['{', ' ']).starts_with('*');
            let is_star = text.lines().nth(line.saturating_sub(1)).is_some_and(is_star);
            let cure =
                if is_star { "; write quotes around a key that begins with `*`" } else { "" };
            return Err(format!("line {line}: {}{cure}", mistake.reason));
        }
        let Ok(YamlValue::Map(entries)) = root.map(|root| root.value) else {
            return Err(
                "is no map of keys and rates, as in `acme: 20/s`; write `{}` for none".into()
            );
        };
        if entries.len() > MOST_RATES {
            return Err(format!("has more than {MOST_RATES} keys"));
        }
        let rows = entries.into_iter().filter(|own| !own.node.is_null()).map(|own| {
            let number = own.key.place.line;
            match own.node.value {
                YamlValue::Scalar(rate) => {
                    Ok(Self { key: own.key.name, rate: rate.text, former: None, number })
                }
                _ => Err(format!("line {number}: a key must have one rate, as in `acme: 20/s`")),
            }
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests;
