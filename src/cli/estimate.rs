//! `paceway estimate`: shows when calls would be sent by a limiter of a running gateway. It takes no permits.

use super::{
    CommandError,
    admin_client::{AdminArgs, AdminClient, segment},
    print, print_json,
    status::said,
    table::millis,
};
use http::Method;
use serde_json::{Value, json};

/// The calls that are asked about.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct EstimateArgs {
    /// The limiter.
    name: String,
    /// How many calls, up to 1,000,000.
    #[arg(long)]
    count: u32,
    /// The permits that each call costs.
    #[arg(long, default_value_t = 1)]
    cost: u32,
    /// The key of the calls, if the limiter has one.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The tenant of the calls, if the limiter has `fair`.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// The priority of the calls. By default that of the limiter's routes, or `normal`.
    #[arg(long, value_parser = ["high", "normal", "low"])]
    priority: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

// === impl EstimateArgs ===

impl EstimateArgs {
    pub(super) fn prints_json(&self) -> bool {
        self.admin.json
    }
}

pub(super) fn estimate(args: &EstimateArgs) -> Result<(), CommandError> {
    let EstimateArgs { name, count, cost, key, tenant, priority, admin } = args;
    let client = AdminClient::connect(admin)?;
    let mut body = json!({ "count": count, "cost": cost });
    for (field, value) in [("key", key), ("tenant", tenant), ("priority", priority)] {
        if let Some(value) = value {
            body[field] = value.as_str().into();
        }
    }
    let path = format!("/limiters/{}/estimate", segment(name));
    let answer = client.ask(&Method::POST, &path, Some(&body))?;
    if admin.json {
        return print_json(&answer);
    }
    print(&text(name, *count, &answer))
}

fn text(name: &str, count: u32, answer: &Value) -> String {
    let when = |span: &str, at: &str| match answer[span].as_f64().unwrap_or_default() {
        0.0 => "at once".to_owned(),
        span => format!("in {}, at {}", millis(span), said(&answer[at])),
    };
    let (first, last) = (when("first_ms", "first_at"), when("last_ms", "last_at"));
    if count == 1 {
        return format!("{name}: the call would be sent {first}");
    }
    format!("{name}: the first of {count} calls would be sent {first}; the last {last}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(1, 0.0, "search: the call would be sent at once")]
    #[case(
        5000,
        999_600.0,
        "search: the first of 5000 calls would be sent at once; the last in 16.7min, at later"
    )]
    fn tells_when_calls_would_be_sent(#[case] count: u32, #[case] last: f64, #[case] told: &str) {
        let answer =
            json!({ "first_ms": 0.0, "last_ms": last, "first_at": "now", "last_at": "later" });
        assert_eq!(text("search", count, &answer), told);
    }
}
