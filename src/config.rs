//! The configuration: checked, typed and immutable. [`Config::load`] is the only way to make one from a file, and no other
//! module checks its values again.

mod admin;
mod document;
mod edits;
mod fair;
mod http;
mod indentation;
mod keys;
mod limit_row;
mod limiter;
mod limits_from;
mod mistake;
mod quotes;
mod raw;
mod reader;
#[doc(hidden)]
pub mod reference;
mod services;
mod settings;
mod throttle;
mod traces;
mod unit;
mod warnings;
mod yaml;

pub use admin::{AdminConfig, AdminRead, AdminToken};
pub use edits::ConfigEdit;
pub use fair::{FairSharing, PRIORITIES, PriorityRule, priority_name};
pub use http::{ClientLimits, Limits, ServerTls};
pub use limit_row::LimitRow;
pub use limiter::{AutoRule, Charge, FailurePolicy, LimiterConfig, Mode, Scope};
pub use limits_from::{DatabaseKind, DatabaseUrl, LimitsFrom, MissingLimiter};
pub use mistake::{ConfigError, Mistake, Position};
pub use services::{
    DecisionsConfig, DescriptorRule, ForwardAuthConfig, OriginalRequest, Service, ServiceListener,
    Services,
};
pub use settings::{AccessLog, Config, EventFormat, Route, StoreConfig, Upstream};
pub use throttle::{PausedLimiters, RetryConfig, ThrottleConfig};
pub use traces::{CollectorUrl, OtlpProtocol, SampleRatio, TracingConfig};
pub use unit::Rate;
pub(crate) use unit::duration;

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
        std::fs::read_to_string(path).map_err(|error| unread(&path.display().to_string(), &error))
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

#[cfg(test)]
mod tests;
