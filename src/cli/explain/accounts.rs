//! Describes the accounts with which a request may be sent, and its keys with each. Never shows a header of one.

use crate::{
    config::{Account, Accounts, Config, Mode, Route},
    key::Parts,
};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

/// An account that a request could take.
#[derive(Debug, Serialize)]
pub(super) struct ExplainedAccount {
    pub(super) name: String,
    pub(super) quota: String,
    /// The URL that it has of its own.
    pub(super) url: Option<String>,
    pub(super) after_ms: f64,
    /// The key of the request at each limiter whose keys name the account.
    pub(super) keys: BTreeMap<String, String>,
}

/// The account that a request takes if the slots of all are alike.
pub(super) fn first(accounts: &Accounts) -> Option<&Account> {
    accounts.all.iter().min_by_key(|account| account.after)
}

// === impl ExplainedAccount ===

impl ExplainedAccount {
    pub(super) fn of(config: &Config, route: &Route, own: &Account, parts: &Parts<'_>) -> Self {
        let parts = Parts { account: Some(own.names()), ..*parts };
        let limiters = route.limiters.iter().map(|charge| &config.limiters[charge.limiter]);
        let limiters = limiters.filter(|limiter| config.limiting && limiter.mode != Mode::Off);
        let keys = limiters.filter_map(|limiter| {
            let template = limiter.key.as_ref().filter(|key| key.names_account())?;
            Some((limiter.name.clone(), template.fill(&parts).ok()?))
        });
        Self {
            name: own.name.clone(),
            quota: own.quota.clone(),
            url: own.url(),
            after_ms: own.after.as_secs_f64() * 1e3,
            keys: keys.collect(),
        }
    }

    /// The account in one line.
    pub(super) fn line(&self) -> String {
        let keys = self.keys.iter().map(|(limiter, key)| format!("key {key} of {limiter}"));
        let keys: Vec<_> = keys.collect();
        let keys = if keys.is_empty() { "no key of its own".into() } else { keys.join(", ") };
        let url = self.url.as_ref().map_or_else(String::new, |url| format!(", to {url}"));
        let after = match self.after_ms {
            after if after > 0.0 => {
                let after = Duration::from_secs_f64(after / 1e3);
                format!(", where other slots come more than {after:?} later")
            }
            _ => String::new(),
        };
        format!("{}: {keys}{url}{after}", self.name)
    }
}
