//! The bodies of the calls that programs make. `openapi.json` beside this file describes them.

use serde::Deserialize;

/// `POST /v1/acquire`: permits of all limiters, or of none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireCall {
    pub(super) limiters: Vec<PermitsAsked>,
    /// Whether the answer comes when the instant of the permits has come.
    #[serde(default)]
    pub(super) wait: bool,
    #[serde(default)]
    pub(super) max_wait_ms: u64,
}

/// The permits of one limiter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PermitsAsked {
    pub(super) limiter: String,
    #[serde(default)]
    pub(super) key: Option<String>,
    #[serde(default = "one")]
    pub(super) cost: i64,
}

/// `POST /v1/refund`: the call was not made.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefundCall {
    pub(super) reservation: String,
}

/// `POST /v1/settle`: the call cost something else than it reserved.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleCall {
    pub(super) reservation: String,
    pub(super) limiters: Vec<TrueCostSaid>,
}

/// The true cost at one limiter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrueCostSaid {
    pub(super) limiter: String,
    #[serde(default)]
    pub(super) key: Option<String>,
    pub(super) cost: i64,
}

/// `POST /v1/renew` and `/v1/release`: a concurrency permit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PermitCall {
    pub(super) limiter: String,
    #[serde(default)]
    pub(super) key: Option<String>,
    pub(super) lease: String,
}

fn one() -> i64 {
    1
}
