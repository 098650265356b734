//! Reports the pauses of limiters in the log: one line when a pause begins, and one when it ends.

use crate::{
    answer::end,
    key,
    live::Live,
    log::{Permit, Throttle},
    plan::Plan,
    store::{Pause, PauseEvent, PauseEvents},
};
use std::sync::Arc;
use tokio::time::Instant;

/// Bounds the lines: a limiter with a key has a pause for each of its keys.
static BEGINS: Throttle = Throttle::new();
static ENDS: Throttle = Throttle::new();

/// Writes a line for each of `events`, for as long as the process runs.
pub(super) async fn report(live: Arc<Live>, mut events: PauseEvents) {
    loop {
        let event = events.next().await;
        let plan = live.plan();
        match event {
            PauseEvent::Began { key, until, status } => {
                if let Some(Permit { suppressed }) = BEGINS.permit() {
                    let (limiter, key) = shown(&plan, &key);
                    let left = until.saturating_duration_since(Instant::now());
                    let (until, pause_s) = (end(Pause::of(left, status).span), left.as_secs_f64());
                    let why = match status {
                        200..300 => "the upstream says that its quota is used up",
                        _ => "the upstream refuses calls",
                    };
                    let status = (status > 0).then_some(status);
                    tracing::warn!(
                        limiter,
                        key,
                        until,
                        pause_s,
                        status,
                        suppressed,
                        "a pause begins: {why}"
                    );
                }
            }
            PauseEvent::Grew { key, until, status } => {
                let (limiter, key) = shown(&plan, &key);
                let left = until.saturating_duration_since(Instant::now());
                let until = end(Pause::of(left, status).span);
                tracing::debug!(limiter, key, until, status, "a pause becomes longer");
            }
            PauseEvent::Ended { key, is_over } => {
                if let Some(Permit { suppressed }) = ENDS.permit() {
                    let (limiter, key) = shown(&plan, &key);
                    let by_operator = (!is_over).then_some(true);
                    tracing::info!(limiter, key, by_operator, suppressed, "a pause has ended");
                }
            }
        }
    }
}

/// The name of the limiter that a state belongs to, and its key. States hold secrets as hashes only.
fn shown<'a>(plan: &'a Plan, state: &'a str) -> (&'a str, Option<String>) {
    match plan.owner(state) {
        Some((plan, key)) => (&plan.limiter.name, key.map(key::shown)),
        None => (state, None),
    }
}
