//! The configuration: checked, typed and immutable. [`Config::load`] is the only way to make one from a file, and no other
//! module checks its values again.

mod accounts;
mod admin;
mod calendar;
mod document;
mod edits;
mod fair;
mod foreign;
mod forward;
mod http;
mod indentation;
mod key_rates;
mod keys;
mod limit_row;
mod limiter;
mod rows_from;
mod lookalikes;
mod mistake;
mod quotes;
mod rate_rows;
mod raw;
mod reader;
#[doc(hidden)]
pub mod reference;
mod services;
mod settings;
mod throttle;
mod traces;
mod unit;
mod value;
mod warnings;
mod yaml;

pub use accounts::{Account, Accounts, StatusClass};
pub use admin::{AdminConfig, AdminRead, AdminToken};
pub use calendar::Calendar;
pub use edits::ConfigEdit;
pub use fair::{FairSharing, PRIORITIES, PriorityRule, priority_name};
pub use forward::{ForwardConfig, HostPattern};
pub use http::{AnswerForm, ClientLimits, Limits, ServerTls};
pub use key_rates::{KeyRule, KeyedRates};
pub use limit_row::LimitRow;
pub use limiter::{AutoRule, Charge, FailurePolicy, LimitBounds, LimiterConfig, Mode, Scope};
pub use mistake::{ConfigError, Mistake, Position};
pub(crate) use rate_rows::MOST_RATES;
pub use rate_rows::{RateRow, RateTables, UnfitRow};
pub use rows_from::{DatabaseKind, DatabaseUrl, MissingLimiter, RowsFrom, RowsSource};
pub use services::{
    DecisionsConfig, DescriptorRule, ForwardAuthConfig, OriginalRequest, Service, ServiceListener,
    Services,
};
pub use settings::{AccessLog, Config, EventFormat, KeptMemory, Route, StoreConfig, Upstream};
pub use throttle::{PausedLimiters, RetryConfig, ThrottleConfig};
pub use traces::{CollectorUrl, OtlpProtocol, SampleRatio, TracingConfig};
pub use unit::Rate;
pub(crate) use unit::{duration, rate};

use mistake::unreadable;
use std::{cell::RefCell, collections::BTreeSet, io, path::Path};

/// The JSON Schema of the configuration file, for editors and for `paceway schema`.
pub const SCHEMA: &str = include_str!("config/schema.json");

// === impl Config ===

impl Config {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    ///
    /// All mistakes at once, each with its line and column.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::of_file(path, &Self::text(path)?)
    }

    /// Reads the text of a configuration file.
    ///
    /// # Errors
    ///
    /// The reason why the file cannot be read, as a mistake.
    pub(crate) fn text(path: &Path) -> Result<String, ConfigError> {
        let file = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| unread(&file, &error))?;
        utf8(&file, bytes)
    }

    /// Checks the `text` of the configuration file at `path`.
    ///
    /// # Errors
    ///
    /// All mistakes at once, each with its line and column.
    pub(crate) fn of_file(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let directory = path.parent().unwrap_or_else(|| Path::new("."));
        let file = path.display().to_string();
        Self::parse(text, &file, directory, &|name| std::env::var(name).ok())
    }

    /// Checks the text of a configuration. `${file:NAME}` reads files below `directory`, and `${NAME}` calls `variable`.
    ///
    /// # Errors
    ///
    /// All mistakes at once, each with its line and column.
    pub fn parse(
        text: &str,
        file: &str,
        directory: &Path,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        raw::read(text, file, &yaml::Outside { directory, variable, unread: None })
    }

    /// Checks the text of a configuration alone. Placeholders stand for `${NAME}` without a default and for
    /// `${file:NAME}`, and files with certificates are not read. The second value names what was not read, such as
    /// `${REDIS_PASSWORD}`.
    ///
    /// # Errors
    ///
    /// All mistakes at once, except for those of values with a placeholder.
    pub fn parse_offline(text: &str, file: &str) -> Result<(Self, BTreeSet<String>), ConfigError> {
        let unread = RefCell::default();
        let (directory, variable) = (Path::new("."), &|_: &str| None);
        let config =
            raw::read(text, file, &yaml::Outside { directory, variable, unread: Some(&unread) })?;
        Ok((config, unread.take()))
    }
}

/// The mistake of a file that cannot be read.
pub(crate) fn unread(file: &str, error: &io::Error) -> ConfigError {
    let reason = format!("cannot be read: {}", unreadable(error));
    let mistake = Mistake { place: None, path: String::new(), reason };
    ConfigError { file: file.to_owned(), mistakes: vec![mistake] }
}

/// The text of a file.
///
/// # Errors
///
/// The place of the first byte that is not UTF-8.
pub(crate) fn utf8(file: &str, bytes: Vec<u8>) -> Result<String, ConfigError> {
    String::from_utf8(bytes).map_err(|error| {
        let (before, after) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
        let before = String::from_utf8_lossy(before);
        let (line, last) = before.split('\n').enumerate().last().unwrap_or_default();
        let place = Position { line: line + 1, column: last.chars().count() + 1 };
        let reason = match after {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] if before.is_empty() => {
                "this is UTF-16; save the file as UTF-8".into()
            }
            _ => {
                let byte = after.first().copied().unwrap_or_default();
                format!("the byte 0x{byte:02X} is not UTF-8; save the file as UTF-8")
            }
        };
        ConfigError::new(file, vec![Mistake::new(place, "", reason)])
    })
}

#[cfg(test)]
mod tests;
