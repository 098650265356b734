//! Describes what the gateway does when the upstream of a route says "slow down".

use crate::{
    config::{Config, Mode, Route, ThrottleConfig},
    throttle::MIN_PAUSE,
};
use std::time::Duration;

/// Returns the lines about refusals of the upstream: which answers they are, what they pause, and whether a refused request is
/// sent again. `asked` are the limiters that the request takes permits of, and `wait` is its budget.
pub(super) fn lines(
    config: &Config,
    route: &Route,
    asked: &[&str],
    wait: Duration,
) -> Vec<(&'static str, String)> {
    let throttle = &config.upstreams[route.upstream].throttle;
    if !throttle.is_on {
        return vec![("throttle", "off: refusals of the upstream are passed on".into())];
    }
    let when: Vec<_> = throttle.rules.when.iter().map(ToString::to_string).collect();
    let paused = paused(config, route, throttle, asked);
    vec![
        ("throttle", format!("refusals are: {}", when.join(" · "))),
        ("", pauses(throttle, &paused)),
        ("retries", retries(throttle, !paused.is_empty(), wait)),
    ]
}

/// The limiters that a refusal pauses.
fn paused<'c>(
    config: &'c Config,
    route: &Route,
    throttle: &ThrottleConfig,
    asked: &[&str],
) -> Vec<&'c str> {
    let charged = route.limiters.iter().filter(|_| config.limiting);
    let names = charged.filter(|charge| {
        throttle.pauses.has(charge.limiter) && config.limiters[charge.limiter].mode == Mode::Enforce
    });
    let names = names.map(|charge| &*config.limiters[charge.limiter].name);
    names.filter(|name| asked.contains(name)).collect()
}

/// Names the limiters that a refusal pauses, and for how long.
fn pauses(throttle: &ThrottleConfig, paused: &[&str]) -> String {
    if paused.is_empty() {
        return "an upstream's refusal pauses no limiter".into();
    }
    let rules = &throttle.rules;
    format!(
        "an upstream's refusal pauses {} as long as it says, {MIN_PAUSE:?} to {:?}; if it does not, {:?}, doubled with each in a row",
        paused.join(", "),
        rules.max_pause,
        rules.default_pause
    )
}

fn retries(throttle: &ThrottleConfig, is_paused: bool, wait: Duration) -> String {
    let retry = &throttle.retry;
    if !throttle.retries() {
        return "never: one attempt".into();
    }
    if !is_paused {
        return "never: no limiter of the request is paused, so there is no slot to wait for"
            .into();
    }
    if wait.is_zero() {
        return "never: the request may not wait".into();
    }
    let body = match retry.max_body {
        0 => "if it has no body".to_owned(),
        bytes => format!("if its body has at most {bytes} bytes"),
    };
    format!("up to {} attempts within the wait, {body}", retry.attempts)
}
