//! Warns of conditions under `throttle` that no answer meets, and of limiters that no refusal pauses.

use crate::{
    config::{
        settings::{Config, Upstream},
        throttle::PausedLimiters,
    },
    throttle::Condition,
};

impl Config {
    /// Returns a sentence for each setting under `throttle` of an upstream that has no effect.
    pub(super) fn throttle_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (i, upstream) in self.upstreams.iter().enumerate() {
            let when = &upstream.throttle.rules.when;
            for condition in when {
                warnings.extend(about(upstream, condition, when));
            }
            let PausedLimiters::Some(paused) = &upstream.throttle.pauses else { continue };
            for limiter in paused {
                let mut routes = self.routes.iter().filter(|route| route.upstream == i);
                let charges = |limiter| move |charge: &super::Charge| charge.limiter == limiter;
                if !routes.any(|route| route.limiters.iter().any(charges(*limiter))) {
                    warnings.push(format!(
                        "`pauses` of the upstream `{}` names the limiter `{}`, which no route to it uses",
                        upstream.name, self.limiters[*limiter].name
                    ));
                }
            }
        }
        warnings
    }
}

/// The first reason why a condition has no effect.
fn about(upstream: &Upstream, condition: &Condition, all: &[Condition]) -> Option<String> {
    let says = |reason: String| {
        Some(format!("the condition `{condition}` of the upstream `{}` {reason}", upstream.name))
    };
    if let Some(reason) = condition.never() {
        return says(format!("is never met: {reason}"));
    }
    if let Some(wider) = all.iter().find(|other| *other != condition && other.covers(condition)) {
        return says(format!("decides nothing: `{wider}` is met wherever it is"));
    }
    let (name, near) = condition.likely_header()?;
    says(format!("names the header `{name}`; did you mean `{near}`?"))
}
