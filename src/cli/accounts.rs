//! `paceway park` and `unpark`: say whether an account of an upstream is used, on all gateways.

use super::{
    CommandError,
    admin_client::{AdminArgs, AdminClient, segment},
    print, print_json,
    status::said,
};
use http::Method;
use serde_json::{Value, json};

/// The account that an operator names.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct AccountArgs {
    /// The upstream.
    upstream: String,
    /// The name of the account.
    account: String,
}

// === impl AccountArgs ===

impl AccountArgs {
    fn page(&self) -> String {
        format!("/upstreams/{}/accounts/{}/park", segment(&self.upstream), segment(&self.account))
    }
}

pub(super) fn park(
    own: &AccountArgs,
    time: Option<&str>,
    args: &AdminArgs,
) -> Result<(), CommandError> {
    let body = time.map_or_else(|| json!({}), |time| json!({ "for": time }));
    let answer = AdminClient::connect(args)?.ask(&Method::PUT, &own.page(), Some(&body))?;
    if args.json { print_json(&answer) } else { print(&line(&answer)) }
}

pub(super) fn unpark(own: &AccountArgs, args: &AdminArgs) -> Result<(), CommandError> {
    let answer = AdminClient::connect(args)?.ask(&Method::DELETE, &own.page(), None)?;
    if args.json {
        return print_json(&answer);
    }
    let done = if answer["unparked"] == true { "it is used again" } else { "it was not parked" };
    print(&format!("{} of {}: {done}", own.account, own.upstream))
}

/// Describes an account that is parked, as the admin side shows it.
pub(super) fn line(state: &Value) -> String {
    let [account, upstream] = ["account", "upstream"].map(|field| said(&state[field]));
    let until = state["parked_until"]
        .as_str()
        .map(|until| format!("parked until {until}: {}", said(&state["parked_reason"])));
    let until = until.unwrap_or_else(|| "was parked; the next call tries it".into());
    format!("{account} of {upstream}: {until}")
}
