//! Reads `limits_from`. Asks no database.

use crate::config::{
    limits_from::{DatabaseUrl, LimitsFrom},
    reader::{ConfigReader, ConfigSection},
};

const MAX_QUERY: usize = 16 << 10;

impl ConfigReader {
    pub(super) fn limits_from(&mut self, root: &ConfigSection<'_>) -> Option<LimitsFrom> {
        let section = self.section_at(root, "limits_from")?;
        let example = ", as in `url: postgres://paceway:${DB_PASSWORD}@db/limits`";
        let url = self.required(&section, "url", example);
        let example = ", as in `query: select name, rate, burst, enabled from limits`";
        let query = self.require_by(&section, "query", example, |text| match text.trim() {
            "" => Err("is empty"),
            text if text.len() > MAX_QUERY => Err("is longer than 16KiB"),
            text => Ok(text.to_owned()),
        });
        // The URL may hold a password, so no message quotes it.
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
        let every = self.read_or_default(&section, "every");
        Some(LimitsFrom { url: url?, query: query?, every })
    }
}
