//! The keys of each kind of section, and what somebody meant who wrote another. Reads nothing.

use crate::config::reader::{Keys, Other};

pub(in crate::config) const ROOT: Keys = Keys {
    now: &[
        "listen",
        "admin",
        "workers",
        "access_log",
        "drain_timeout",
        "trusted_proxies",
        "store",
        "limiting",
        "upstream",
        "upstreams",
        "limiters",
        "routes",
    ],
    later: &["tls"],
    others: &[
        meant("rate_limits", &["limiters"]),
        meant("rate_limit", &["limiters"]),
        meant("ratelimits", &["limiters"]),
        meant("limits", &["limiters"]),
        meant("rules", &["routes"]),
        meant("backend", &["upstream"]),
        meant("backends", &["upstreams"]),
        meant("redis", &["store"]),
    ],
};
pub(in crate::config) const STORE: Keys =
    Keys { now: &["url", "prefix", "timeout"], later: &["on_failure"], others: &[] };
pub(in crate::config) const UPSTREAM: Keys = Keys {
    now: &["url", "connect_timeout", "response_timeout", "limiters"],
    later: &["throttle"],
    others: &[],
};
pub(in crate::config) const LIMITER: Keys = Keys {
    now: &[
        "algorithm",
        "rate",
        "burst",
        "margin",
        "capacity",
        "warm_up",
        "cold_factor",
        "max",
        "lease",
        "key",
        "scope",
        "mode",
    ],
    later: &[],
    others: &[
        meant("type", &["algorithm"]),
        meant("kind", &["algorithm"]),
        meant("limit", &["rate", "max"]),
        Other { name: "period", meant: &["rate"], says: Some(PERIOD) },
        Other { name: "window", meant: &["rate"], says: Some(PERIOD) },
        Other { name: "interval", meant: &["rate"], says: Some(PERIOD) },
        Other { name: "per", meant: &["rate"], says: Some(PERIOD) },
        elsewhere("max_wait", WAIT),
        elsewhere("max_wait_cap", WAIT),
        elsewhere("max_waiting", WAIT),
        elsewhere("cost", COST),
    ],
};
pub(in crate::config) const CHARGE: Keys = Keys {
    now: &["limiter", "cost"],
    later: &[],
    others: &[Other {
        name: "name",
        meant: &["limiter"],
        says: Some("write it as in `{ limiter: a, cost: 5 }`"),
    }],
};
pub(in crate::config) const ROUTE: Keys = Keys {
    now: &[
        "name",
        "suffix",
        "methods",
        "host",
        "upstream",
        "limiters",
        "max_wait",
        "max_wait_cap",
        "max_waiting",
    ],
    later: &[],
    others: &[
        meant("path", &["suffix"]),
        meant("limiter", &["limiters"]),
        elsewhere("rate", QUOTA),
        elsewhere("burst", QUOTA),
        elsewhere("algorithm", QUOTA),
        elsewhere("key", QUOTA),
        elsewhere("mode", QUOTA),
        elsewhere("cost", COST),
    ],
};

const PERIOD: &str = "a period is a part of the rate, as in `rate: 5/s`";
const WAIT: &str = "it belongs to the route";
const COST: &str = "it belongs to the route, as in `limiters: [{ limiter: a, cost: 5 }]`";
const QUOTA: &str = "it belongs to a limiter under `limiters:` at the top, which the route names";

const fn meant(name: &'static str, meant: &'static [&'static str]) -> Other {
    Other { name, meant, says: None }
}

const fn elsewhere(name: &'static str, says: &'static str) -> Other {
    Other { name, meant: &[], says: Some(says) }
}
