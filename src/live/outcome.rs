//! The result of a reload, for the log, the metrics and the admin pages.

use super::ReloadError;
use crate::{config::Config, metrics, throttle::Timestamp};
use std::collections::VecDeque;

/// A configuration that has taken effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// The hash of its file.
    pub hash: String,
    /// Whether it differs from the one before, in a key that takes effect without a restart.
    pub is_new: bool,
    /// The limiters whose new values in the file have no effect now, because an override or a row of `limits_from` has
    /// others; `limiting` for the switch.
    pub masked: Vec<String>,
    /// The keys whose values differ from those in use until the next start, such as `listen`.
    pub needs_restart: Vec<&'static str>,
}

/// The configuration that is in use, and the result of the last reload.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The hash of the file that is in use.
    pub hash: String,
    /// When it was loaded.
    pub at: Timestamp,
    /// The mistakes of a later file, as `paceway check` prints them; `None` if the last reload succeeded.
    pub error: Option<String>,
    /// The keys whose values in the file need a restart.
    pub needs_restart: Vec<&'static str>,
    /// The last reloads, the newest first, at most [`MOST_RELOADS`].
    pub reloads: VecDeque<ReloadNote>,
    /// Whether `error` lists mistakes, which the next look at the files may no longer find.
    is_mistake: bool,
}

/// A reload, as operators see it afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadNote {
    /// When it ended.
    pub at: Timestamp,
    /// The hash of the file, and whether it changed anything; or the mistakes.
    pub result: Result<(String, bool), String>,
}

/// How many reloads are kept.
pub const MOST_RELOADS: usize = 10;

/// Writes the result of a reload to the log. `config` is the configuration that is in use.
pub(super) fn log(result: &Result<Reloaded, ReloadError>, config: &Config) {
    match result {
        Ok(Reloaded { hash, is_new, masked, needs_restart }) => {
            let (hash, summary) = (hash.as_str(), config.summary());
            if *is_new || !masked.is_empty() {
                tracing::info!(hash, config = summary, "configuration reloaded");
            } else {
                tracing::info!(hash, "configuration read again; nothing has changed");
            }
            if !masked.is_empty() {
                let limiters = masked.join(", ");
                tracing::warn!(
                    limiters,
                    "new values of the file have no effect now: overrides or rows of limits_from replace them"
                );
            }
            if !needs_restart.is_empty() {
                let keys = needs_restart.join(", ");
                tracing::warn!(keys, "new values of these keys take effect with the next start");
            }
            for warning in config.warnings().into_iter().filter(|_| *is_new) {
                tracing::warn!(warning, "configuration");
            }
        }
        Err(error) => {
            tracing::error!(%error, "the new configuration cannot be used; the old one stays");
        }
    }
}

// === impl LoadedConfig ===

impl LoadedConfig {
    /// The configuration of the start.
    pub(super) fn first(hash: &str) -> Self {
        let at = Timestamp::now();
        metrics::CONFIG_LOADED.level(&[]).set(at.as_millisecond() as f64 / 1e3);
        Self {
            hash: hash.to_owned(),
            at,
            error: None,
            needs_restart: Vec::new(),
            reloads: VecDeque::new(),
            is_mistake: false,
        }
    }

    /// Notes the result of a reload, and counts it.
    pub(super) fn note(&mut self, result: &Result<Reloaded, ReloadError>) {
        metrics::config_reloads(result.is_ok()).increment(1);
        let at = Timestamp::now();
        match result {
            Ok(Reloaded { hash, needs_restart, .. }) => {
                metrics::CONFIG_LOADED.level(&[]).set(at.as_millisecond() as f64 / 1e3);
                (self.hash, self.at) = (hash.clone(), at);
                self.needs_restart = needs_restart.clone();
                (self.error, self.is_mistake) = (None, false);
            }
            Err(error) => {
                self.is_mistake = matches!(error, ReloadError::Config(_));
                self.error = Some(error.to_string());
            }
        }
        let result = match result {
            Ok(Reloaded { hash, is_new, .. }) => Ok((hash.clone(), *is_new)),
            Err(error) => Err(error.to_string()),
        };
        self.reloads.push_front(ReloadNote { at, result });
        self.reloads.truncate(MOST_RELOADS);
    }

    /// The mistakes that the last reload found.
    pub(super) fn mistakes(&self) -> Option<String> {
        self.error.clone().filter(|_| self.is_mistake)
    }
}
