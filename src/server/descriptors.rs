//! Divides the file descriptors of the process between clients, upstreams, store and admin side. Without shares, 1,500 idle
//! clients at `ulimit -n 1024` would take all of them, and every call would become a 502.

use crate::config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::num::NonZeroUsize;

/// The descriptors of every process: its standard streams twice, libraries, files that are read now and then.
const BASE: usize = 24;
/// The descriptors of each runtime, including the admin side's: its poller and wakers, its listener, its connections to the
/// store. With a Redis Cluster of more than 4 servers it needs more, which come out of the upstreams' share.
const EACH_RUNTIME: usize = 12;
/// How many connections of the admin side may be open at one time.
const ADMIN: usize = 32;
/// How many clients one worker may be answering with 503 at one time because too many are connected.
const TURNED_AWAY: usize = 64;

/// The shares of the file descriptors of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    /// The limit of the process (`ulimit -n`).
    pub(super) limit: usize,
    /// How many clients may be connected at one time.
    pub(super) clients: NonZeroUsize,
    /// How many programs may be connected to services at one time. Idle clients take none of these.
    pub(super) services: NonZeroUsize,
    /// How many connections to upstreams may be open at one time.
    pub(super) upstreams: usize,
    /// How many connections of the admin side may be open at one time.
    pub(super) admin: usize,
    /// How many clients one worker may be answering with 503 at one time because too many are connected.
    pub(super) turned_away: usize,
    /// How many clients can have a call each at the same time. `max_connections` may allow more.
    pub(super) sure: usize,
}

/// Raises the limit of open files to the hard limit, and returns the limit that holds then.
pub(super) fn raise() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Some systems refuse their own hard limit. Then the limit stays.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let limit = if raised.is_ok() { maximum } else { current };
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// The limit of open files that holds now. A program that mounts the proxy decides itself whether to raise it: one that uses
/// `select` must not.
pub(super) fn current() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

// === impl Shares ===

impl Shares {
    pub(super) fn of(limit: usize, config: &Config) -> Self {
        // A service that the configuration does not have needs no part.
        let quarters = if config.services.all().next().is_some() { 1 } else { 0 };
        Self::new(limit, config.workers.get(), config.client.max_connections, quarters)
    }

    /// Gives services their `quarters` of the descriptors that are left after the fixed shares, and clients half of what
    /// is left then, so that each client can have a call. A configured number may take up to 7/8, which fits clients that
    /// are idle most of the time.
    fn new(
        limit: usize,
        workers: usize,
        configured: Option<NonZeroUsize>,
        quarters: usize,
    ) -> Self {
        let fixed = BASE + EACH_RUNTIME * (workers + 1) + ADMIN;
        let rest = limit.saturating_sub(fixed);
        let turned_away = (rest / 16 / workers).clamp(1, TURNED_AWAY);
        let rest = rest.saturating_sub(turned_away * workers);
        let services = rest / 4 * quarters;
        let rest = rest - services;
        let (sure, most) = ((rest / 2).max(1), (rest - rest / 8).max(1));
        let clients = configured.map_or(sure, |configured| configured.get().min(most));
        Self {
            limit,
            clients: NonZeroUsize::new(clients).unwrap_or(NonZeroUsize::MIN),
            services: NonZeroUsize::new(services).unwrap_or(NonZeroUsize::MIN),
            upstreams: rest.saturating_sub(clients).max(1),
            admin: ADMIN,
            turned_away,
            sure,
        }
    }

    /// Logs the shares, and warns when `max_connections` allows more clients than can have a call each.
    pub(super) fn log(&self, configured: Option<NonZeroUsize>) {
        let Self { limit, clients, upstreams, sure, .. } = self;
        tracing::debug!(
            open_files = limit,
            clients,
            upstreams,
            "the connections that the limit of open files allows"
        );
        if let Some(configured) = configured.filter(|configured| configured.get() > *sure) {
            tracing::warn!(
                "client.max_connections is {configured}, and the limit of {limit} open files is enough for {sure} \
                 clients with a call each: {clients} may connect; raise the limit (`ulimit -Hn`, `LimitNOFILE`)"
            );
        } else if *sure == 1 {
            tracing::warn!("the limit of {limit} open files is too low for this configuration");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::by_default(1024, 2, None, 437)]
    #[case::fewer(1024, 2, Some(100), 100)]
    #[case::more(1024, 2, Some(700), 700)]
    #[case::more_than_can_be(1024, 2, Some(5000), 765)]
    #[case::small(256, 2, None, 77)]
    #[case::hopeless(64, 2, None, 1)]
    fn clients_get_half_or_the_configured_number(
        #[case] limit: usize,
        #[case] workers: usize,
        #[case] configured: Option<usize>,
        #[case] expected: usize,
    ) {
        let configured = configured.and_then(NonZeroUsize::new);
        assert_eq!(Shares::new(limit, workers, configured, 0).clients.get(), expected);
    }

    #[test]
    fn services_have_a_quarter_that_clients_do_not_take() {
        for configured in [None, NonZeroUsize::new(5_000)] {
            let shares = Shares::new(1024, 2, configured, 1);
            let clients = if configured.is_some() { 574 } else { 328 };
            assert_eq!((shares.services.get(), shares.clients.get()), (218, clients));
        }
    }

    proptest! {
        #[test]
        fn all_shares_together_are_within_the_limit(
            limit in 512..2_000_000_usize,
            workers in 1..16_usize,
            configured in prop::option::of(1..3_000_000_usize),
            quarters in 0..2_usize,
        ) {
            let configured = configured.and_then(NonZeroUsize::new);
            let shares = Shares::new(limit, workers, configured, quarters);
            let fixed = BASE + EACH_RUNTIME * (workers + 1) + shares.admin;
            let served = shares.clients.get() + shares.services.get() * quarters;
            let all = fixed + served + shares.upstreams + shares.turned_away * workers;
            prop_assert!(all <= limit, "{shares:?}");
            prop_assert!(shares.upstreams > 0);
        }
    }
}
