//! Warns of accounts of an upstream that do less than their file seems to mean. Quotes no header.

use crate::config::{
    accounts::{Account, Accounts},
    limiter::Mode,
    settings::{Config, Route, Upstream},
};
use crate::path::PathRule;

impl Config {
    /// Returns a sentence for each setting of accounts that is probably not meant.
    pub(super) fn account_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (i, upstream) in self.upstreams.iter().enumerate() {
            let Some(accounts) = &upstream.accounts else { continue };
            let routes = self.routes.iter().filter(|route| route.upstream == i);
            let one_for_all = routes.filter_map(|route| self.one_for_all(route, upstream));
            warnings.extend(one_for_all);
            warnings.extend(bare_accounts(upstream, accounts));
            warnings.extend(none_is_first(upstream, accounts));
            warnings.extend(alike_accounts(upstream, accounts));
        }
        warnings
    }

    /// Warns of a route that sends all of its calls with one account, because no limiter tells them apart. Accounts with `on`
    /// are for the failures of others.
    fn one_for_all(&self, route: &Route, upstream: &Upstream) -> Option<String> {
        let all = &upstream.accounts.as_ref()?.all;
        let first = all.iter().min_by_key(|account| account.after)?;
        let is_other = |own: &&Account| own.name != first.name && own.on.is_empty();
        all.iter().find(is_other)?;
        let tells = |name: usize| {
            let limiter = &self.limiters[name];
            let key = limiter.key.as_ref();
            limiter.mode != Mode::Off && key.is_some_and(|key| key.names_account())
        };
        let is_told = route.limiters.iter().any(|charge| tells(charge.limiter));
        let is_known = route.missing.is_empty() && route.path != PathRule::Descriptor;
        (self.limiting && is_known && !is_told).then(|| {
            format!(
                "the route `{}` has no limiter for each account of the upstream `{}`, so that the account `{}` gets all of its \
                 calls: give it a limiter with `key: \"{{account.quota}}\"`",
                route.name, upstream.name, first.name
            )
        })
    }
}

/// Warns of accounts whose calls leave without credentials: the headers that other accounts set are taken from every call.
fn bare_accounts(upstream: &Upstream, accounts: &Accounts) -> impl Iterator<Item = String> {
    let has_headers = !accounts.names().is_empty();
    let is_bare =
        move |own: &&Account| has_headers && own.headers.is_empty() && own.url().is_none();
    accounts.all.iter().filter(is_bare).map(|own| {
        format!(
            "the account `{}` of the upstream `{}` has no `headers` and others have: its calls leave without credentials, \
             also without those of the caller; give it `headers`, or a `url` of its own",
            own.name, upstream.name
        )
    })
}

/// Warns of accounts that all come after others.
fn none_is_first(upstream: &Upstream, accounts: &Accounts) -> Option<String> {
    accounts.all.iter().all(|account| !account.after.is_zero()).then(|| {
        format!(
            "all accounts of the upstream `{}` have `after`, so that none is used first: leave it out where the calls begin",
            upstream.name
        )
    })
}

/// Warns of accounts that are one to the vendor.
fn alike_accounts(upstream: &Upstream, accounts: &Accounts) -> Vec<String> {
    let is_same = |one: &Account, other: &Account| {
        let has_all = one.headers.iter().all(|header| other.headers.contains(header));
        has_all && one.headers.len() == other.headers.len() && one.url() == other.url()
    };
    let mut warnings = Vec::new();
    for (i, own) in accounts.all.iter().enumerate() {
        let Some(other) = accounts.all[..i].iter().find(|other| is_same(other, own)) else {
            continue;
        };
        warnings.push(format!(
            "the accounts `{}` and `{}` of the upstream `{}` have the same headers and URL, so that they are one account of the \
             vendor, with one quota: give one of them another credential, or leave it out",
            other.name, own.name, upstream.name
        ));
    }
    warnings
}
