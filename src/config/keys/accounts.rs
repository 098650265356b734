//! The keys of an account of an upstream.

use super::{
    kind::Kind,
    spec::{HOUR, Keys, duration, elsewhere, key, list, map, meant},
};
use std::time::Duration;

pub(in crate::config) const ACCOUNT: Keys = Keys {
    name: "account",
    meaning: "One of several credentials or addresses of an upstream.",
    specs: &[
        key("name", Kind::Text).written("name").required()
            .says("its name in metrics, logs and pages, and for keys with `{account}`"),
        map("headers", 0..=32, &Kind::Text).written("map of NAME: VALUE, at most {most}")
            .says("the headers that a call gets with this account, in place of those of the caller and of other accounts; \
                never shown"),
        key("quota", Kind::Text).written("name").otherwise("its `name`")
            .says("the name of its quota, for keys with `{account.quota}`. Accounts with one name share the quota"),
        key("url", Kind::Url).otherwise("that of the upstream")
            .says("the address that its calls are sent to, such as that of another region. All other settings are those of \
                the upstream"),
        duration("after", Duration::ZERO..=HOUR).default("0s")
            .says("it is used only where the slots of accounts with a smaller `after` come later than this"),
        list("on", 0..=16, &Kind::Text).written("list of statuses, `4xx` and `5xx`")
            .says("after such an answer of another account a call is sent once more, with this one, if it may be sent twice"),
    ],
    others: &[
        meant("credentials header auth authorization token key", "headers"),
        meant("id label", "name"),
        meant("group pool organization org", "quota"),
        meant("endpoint target base_url address", "url"),
        meant("priority fallback backup spill", "after"),
        elsewhere("weight", "the account with the earliest slot is used; its limiter says how much it may have"),
        elsewhere("limiters limiter rate", "write the limiter under `limiters` with `key: \"{account}\"`"),
        elsewhere("park park_for", "it is written beside `accounts`, for all of them"),
    ],
};
