//! The checks of a replayed request, where they differ from those of the gateway.

use crate::{
    algorithm::{Concurrency, Micros, Rule},
    cli::replay::log_line::LoggedRequest,
    config::FairSharing,
    store::{Check, Turn},
};

/// The lease of concurrency permits, µs: ten years. The gateway renews the lease of a call as long as the call runs.
const LEASE: Micros = 10 * 365 * 86_400_000_000;

/// The check with the tenant that the log names, if the log lacks what names it in the configuration.
pub(super) fn with_logged_tenant(
    check: Check,
    fair: Option<&FairSharing>,
    logged: &LoggedRequest,
) -> Check {
    let turn = match (&check.turn, fair, &logged.tenant) {
        (Some(turn), Some(fair), Some(tenant)) if logged.format.lacks(&fair.by) => {
            Some(Turn::new(tenant.as_str(), fair.weight(tenant), turn.priority))
        }
        _ => check.turn.clone(),
    };
    Check { turn, ..check }
}

/// The check with a lease that no call outlives.
pub(super) fn with_long_lease(check: Check) -> Check {
    match check.algorithm {
        Rule::Permits(rule) => {
            let rule = Concurrency::new(rule.max(), LEASE)
                .map_or(rule, |long| long.with_turns(rule.takes_turns()));
            Check { algorithm: rule.into(), ..check }
        }
        Rule::Rate(_) => check,
    }
}
