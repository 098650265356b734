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
        ("", paused),
        ("retries", retries(config, route, throttle, wait)),
    ]
}

/// The limiters that a refusal pauses, and for how long.
fn paused(config: &Config, route: &Route, throttle: &ThrottleConfig, asked: &[&str]) -> String {
    let charged = route.limiters.iter().filter(|_| config.limiting);
    let names = charged.filter(|charge| {
        throttle.pauses.has(charge.limiter) && config.limiters[charge.limiter].mode == Mode::Enforce
    });
    let names = names.map(|charge| &*config.limiters[charge.limiter].name);
    let names: Vec<_> = names.filter(|name| asked.contains(name)).collect();
    if names.is_empty() {
        return "a refusal pauses no limiter".into();
    }
    let rules = &throttle.rules;
    format!(
        "a refusal pauses {} as long as it says, {MIN_PAUSE:?} to {:?}; if it does not, {:?}, doubled with each in a row",
        names.join(", "),
        rules.max_pause,
        rules.default_pause
    )
}

fn retries(config: &Config, route: &Route, throttle: &ThrottleConfig, wait: Duration) -> String {
    let retry = &throttle.retry;
    if !throttle.retries() {
        return "never: one attempt".into();
    }
    if wait.is_zero() && config.limiting && !route.limiters.is_empty() {
        return "never: the request may not wait".into();
    }
    let body = match retry.max_body {
        0 => "if it has no body".to_owned(),
        bytes => format!("if its body has at most {bytes} bytes"),
    };
    format!("up to {} attempts within the wait, {body}", retry.attempts)
}
