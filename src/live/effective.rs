//! The configuration that all parts together make. An override that it cannot have is left out, so that the temporary change
//! of an operator never blocks a new file.

use super::{Live, ReloadError, parts::ConfigParts};
use crate::config::{Config, ConfigEdit, ConfigError, LimitRow, LimiterConfig};
use jiff::Timestamp;
use std::sync::Arc;

/// An override that the configuration cannot have, such as a rate below a cost that a new file gives to a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfitOverride {
    /// The value that is not replaced.
    pub edit: ConfigEdit,
    /// The mistakes that the configuration would have with it.
    pub error: ConfigError,
}

// === impl Live ===

impl Live {
    /// Checks the configuration with other overrides, of which that of `limiter` is new, and changes nothing. Others that did
    /// not fit before are no reason to refuse it.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Config`] with the mistakes as `paceway check` prints them.
    pub fn check(
        &self,
        overrides: Vec<ConfigEdit>,
        limiter: Option<&str>,
    ) -> Result<(), ReloadError> {
        let parts = ConfigParts { overrides, ..self.changing.lock().parts.clone() };
        let (_, unfit) = self.effective(&parts)?;
        let known = self.unfit();
        let is_new = |own: &UnfitOverride| {
            own.edit.limiter() == limiter || known.iter().all(|known| known.edit != own.edit)
        };
        unfit.into_iter().find(is_new).map_or(Ok(()), |own| Err(own.error.into()))
    }

    /// The overrides that the configuration cannot have, such as a rate below a cost of a new file.
    pub fn unfit(&self) -> Vec<UnfitOverride> {
        self.unfit.lock().clone()
    }

    /// Notes the overrides that do not fit, of all `overrides`, and reports those that have changed.
    pub(super) fn note_unfit(&self, unfit: Vec<UnfitOverride>, overrides: &[ConfigEdit]) {
        let mut known = self.unfit.lock();
        let has =
            |all: &[UnfitOverride], edit: &ConfigEdit| all.iter().any(|own| own.edit == *edit);
        for own in unfit.iter().filter(|own| !has(&known, &own.edit)) {
            let (limiter, reason) = own.shown();
            tracing::warn!(
                limiter,
                reason,
                "an override does not fit the configuration: not applied"
            );
        }
        for own in known.iter().filter(|own| !has(&unfit, &own.edit)) {
            if overrides.contains(&own.edit) {
                let limiter = own.edit.limiter();
                tracing::warn!(limiter, "an override fits the configuration again: applied");
            }
        }
        *known = unfit;
    }

    /// The configuration that `parts` make. A limiter that is named and is neither in the file nor a row is a mistake here,
    /// unless the configuration in use lacks it, too: a change closes no route that was open.
    pub(super) fn effective(
        &self,
        parts: &ConfigParts,
    ) -> Result<(Config, Vec<UnfitOverride>), ConfigError> {
        let (mut config, unfit) = parts.effective()?;
        config.renew_windows(Timestamp::now());
        let running = self.plan.load();
        let is_known = |name: &str| running.config.missing.iter().any(|known| known.name == name);
        let new = config.missing.iter().filter(|missing| !is_known(&missing.name));
        let mistakes: Vec<_> = new.map(|missing| missing.mistake.clone()).collect();
        if mistakes.is_empty() { Ok((config, unfit)) } else { Err(config.error(mistakes)) }
    }

    /// Checks the configuration with other rows of `limits_from`, and changes nothing.
    ///
    /// # Errors
    ///
    /// [`ReloadError::Config`] with the mistakes as `paceway check` prints them.
    pub fn check_rows(&self, rows: Arc<[LimitRow]>) -> Result<(), ReloadError> {
        let parts = ConfigParts { rows, ..self.changing.lock().parts.clone() };
        self.effective(&parts)?;
        Ok(())
    }

    /// The names of limiters that the file names and does not have, so that they have to be rows.
    pub fn row_names(&self) -> Vec<String> {
        let missing = &self.changing.lock().parts.file.config.missing;
        missing.iter().map(|missing| missing.name.clone()).collect()
    }

    /// The names of limiters that are neither in the file nor a row. Requests of their routes get 503.
    pub fn missing(&self) -> Vec<String> {
        let missing = &self.plan.load().config.missing;
        missing.iter().map(|missing| missing.name.clone()).collect()
    }
}

// === impl UnfitOverride ===

impl UnfitOverride {
    /// The limiter, and the reason without places in a file that the operator has not written.
    pub fn shown(&self) -> (Option<&str>, String) {
        let mistakes = self.error.mistakes.iter();
        let said: Vec<_> = mistakes.map(|one| format!("{}: {}", one.path, one.reason)).collect();
        (self.edit.limiter(), said.join("; "))
    }
}

// === impl ConfigParts ===

impl ConfigParts {
    /// The configuration that all parts together make, and the overrides that do not fit it. Later parts replace values of
    /// earlier ones.
    pub(super) fn effective(&self) -> Result<(Config, Vec<UnfitOverride>), ConfigError> {
        let base = self.file.config.with_rows(&self.rows)?;
        if let Ok(config) = base.edited(&self.overrides) {
            return Ok((config.with_rates(&self.rates, &self.overrides), Vec::new()));
        }
        let (mut fit, mut unfit) = (Vec::new(), Vec::new());
        choose(&base, &self.overrides, &mut fit, &mut unfit);
        Ok((base.edited(&fit)?.with_rates(&self.rates, &fit), unfit))
    }

    /// The limiters of a new file whose values have no effect now, because an override or a row of `limits_from` has others;
    /// `limiting` for the switch. `before` is the file that it replaces.
    pub(super) fn masked(&self, before: &Config, unfit: &[UnfitOverride]) -> Vec<String> {
        let after = &self.file.config;
        let pair = |name: &str| {
            let find = |config: &'_ Config| {
                config.limiters.iter().find(|limiter| limiter.name == name).cloned().map(plain)
            };
            (find(before), find(after))
        };
        let mut masked = Vec::new();
        for edit in self.overrides.iter().filter(|edit| unfit.iter().all(|own| own.edit != **edit))
        {
            let is_masked = match edit {
                ConfigEdit::Limiting(_) => before.limiting != after.limiting,
                ConfigEdit::Rates { limiter, key, .. } => {
                    let of = |limiter: &LimiterConfig| {
                        let limiter = limiter.of_key(key.as_deref());
                        (limiter.rates.clone(), limiter.auto)
                    };
                    matches!(pair(limiter), (Some(old), Some(new)) if of(&old) != of(&new))
                }
                ConfigEdit::Mode { limiter, .. } => {
                    matches!(pair(limiter), (Some(old), Some(new)) if old.mode != new.mode)
                }
            };
            if is_masked {
                masked.push(edit.limiter().unwrap_or("limiting").to_owned());
            }
        }
        for row in self.rows.iter() {
            let (old, new) = pair(&row.name);
            if new.is_some() && old != new {
                masked.push(row.name.clone());
            }
        }
        masked.sort_unstable();
        masked.dedup();
        masked
    }
}

/// A limiter without what follows from routes and other limiters.
fn plain(limiter: LimiterConfig) -> LimiterConfig {
    LimiterConfig { group: String::new(), spread: false, has_turns: false, ..limiter }
}

/// Adds the edits to `fit` that the configuration can have together with those before them, and the others to `unfit`.
fn choose(
    base: &Config,
    edits: &[ConfigEdit],
    fit: &mut Vec<ConfigEdit>,
    unfit: &mut Vec<UnfitOverride>,
) {
    let all: Vec<_> = fit.iter().chain(edits).cloned().collect();
    match (base.edited(&all), edits) {
        (Ok(_), _) => *fit = all,
        (Err(error), [edit]) => unfit.push(UnfitOverride { edit: edit.clone(), error }),
        (Err(_), edits) => {
            let (first, second) = edits.split_at(edits.len() / 2);
            choose(base, first, fit, unfit);
            choose(base, second, fit, unfit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::ReadFile;
    use std::path::Path;

    fn file(limiters: &str) -> Arc<ReadFile> {
        let text = format!(
            "upstream: http://a\nlimiters: {{ {limiters} }}\n\
             routes: [{{ suffix: /a, limiters: [{{ limiter: a, cost: 5 }}, b] }}]\n"
        );
        let config = Config::parse(&text, "test.yaml", Path::new("."), &|_| None);
        Arc::new(ReadFile::without_file(config.expect("a config")))
    }

    fn rate(limiter: &str, rate: &str) -> ConfigEdit {
        ConfigEdit::Rates { limiter: limiter.into(), key: None, rates: vec![rate.into()] }
    }

    #[test]
    fn an_override_that_does_not_fit_is_left_out_alone() {
        let mut parts = ConfigParts::of(file("a: 10/s, b: 10/s"));
        let mode = ConfigEdit::Mode { limiter: "b".into(), mode: "observe".into() };
        parts.overrides =
            vec![ConfigEdit::Limiting(true), rate("a", "2/s"), rate("b", "3/s"), mode];
        let (config, unfit) = parts.effective().expect("a config");
        let rates: Vec<_> = config.limiters.iter().map(|own| own.rates[0].to_string()).collect();
        assert_eq!(
            (rates, config.limiters[1].mode.name()),
            (vec!["10/s".into(), "3/s".into()], "observe")
        );
        let [unfit] = &unfit[..] else { panic!("one: {unfit:?}") };
        let (limiter, reason) = unfit.shown();
        assert_eq!(limiter, Some("a"));
        assert!(reason.starts_with("routes[0].limiters[0].cost: a cost of 5 is more"), "{reason}");
    }

    #[test]
    fn a_value_that_an_override_hides_is_named() {
        let before = file("a: 10/s, b: 10/s");
        let mut parts = ConfigParts::of(file("a: 20/s, b: { rate: 10/s, mode: observe }"));
        assert_eq!(parts.masked(&before.config, &[]), [""; 0]);
        parts.overrides = vec![rate("a", "7/s"), rate("b", "7/s"), ConfigEdit::Limiting(false)];
        assert_eq!(parts.masked(&before.config, &[]), ["a"]);
        let (_, unfit) = parts.effective().expect("a config");
        assert_eq!(unfit, []);
        parts.overrides = vec![ConfigEdit::Mode { limiter: "b".into(), mode: "off".into() }];
        assert_eq!(parts.masked(&before.config, &[]), ["b"]);
    }
}
