//! Reads `limits_from`, and `rates_from` of a limiter. Asks no database, and leaves a file with rates unread: it may be away
//! for a while.

use super::rules::Rule;
use crate::config::{
    keys::RuleKind,
    limiter::LimiterConfig,
    rate_rows::RatesFrom,
    reader::{ConfigReader, ConfigSection},
    rows_from::{DatabaseUrl, RowsFrom, RowsSource},
};
use std::sync::Arc;

const MAX_QUERY: usize = 16 << 10;

impl ConfigReader {
    pub(super) fn limits_from(&mut self, root: &ConfigSection<'_>) -> Option<RowsFrom> {
        let section = self.section_at(root, "limits_from")?;
        let example = "select name, rate, burst, enabled from limits";
        let source = self.database(&section, example);
        let every = self.read_or_default(&section, "every");
        Some(RowsFrom { source: source?, every })
    }

    /// Reads the source of the rates of keys, which have the rule that the limiter would have at them.
    pub(super) fn rates_from(
        &mut self,
        section: &ConfigSection<'_>,
        kind: RuleKind,
        rule: &Rule,
        limiter: &mut LimiterConfig,
    ) {
        let Some(field) = section.get("rates_from") else { return };
        if self.key_of_rates(&field, limiter).is_none() {
            return;
        }
        let Some(section) = self.section_at(section, "rates_from") else { return };
        let every = self.read_or_default(&section, "every");
        let from_database = ["url", "query"].into_iter().find_map(|key| section.get(key));
        let source = match (section.get("file"), from_database) {
            (Some(_), Some(field)) => {
                self.note_at(&field, "cannot go with `file`; keep one of the two");
                None
            }
            (None, Some(_)) => self.database(&section, "select shop as key, rate from shops"),
            (Some(_), None) => {
                let directory = self.directory.clone();
                let file = self.read_by(&section, "file", |text| match text {
                    "" => Err("names no file"),
                    text => Ok(directory.join(text)),
                });
                file.map(RowsSource::File)
            }
            (None, None) => {
                let how = ", as in `file: shops.yaml`; or write `url` and `query` of a database";
                self.required(&section, "file", how);
                None
            }
        };
        let Some(source) = source else { return };
        let (from, rule) = (RowsFrom { source, every }, rule.clone());
        limiter.rates_from = Some(Arc::new(RatesFrom { from, kind, rule }));
    }

    /// Reads `url` and `query`. The URL may hold a password, so no message quotes it.
    fn database(&mut self, section: &ConfigSection<'_>, query: &str) -> Option<RowsSource> {
        let example = ", as in `url: postgres://paceway:${DB_PASSWORD}@db/limits`";
        let url = self.required(section, "url", example);
        let example = format!(", as in `query: {query}`");
        let query = self.require_by(section, "query", &example, |text| match text.trim() {
            "" => Err("is empty"),
            text if text.len() > MAX_QUERY => Err("is longer than 16KiB"),
            text => Ok(text.to_owned()),
        });
        let url = url.and_then(|field| {
            let parsed = field.scalar().map(|scalar| DatabaseUrl::parse(&scalar.text));
            match parsed {
                Some(Ok(url)) => Some(url),
                Some(Err(reason)) => {
                    self.note_at(&field, reason);
                    None
                }
                None => {
                    self.note_at(&field, "must be a single value");
                    None
                }
            }
        });
        Some(RowsSource::Database { url: url?, query: query? })
    }
}
