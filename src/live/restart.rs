//! The keys of the configuration that take effect with the next start only.

use crate::config::{Config, StoreConfig};
use std::mem;

/// Puts the values that are in use, those of `running`, in place of values that need a restart. Returns the keys whose values
/// differ.
pub(super) fn keep(running: &Config, config: &mut Config) -> Vec<&'static str> {
    let mut keys = Vec::new();
    let mut kept = |key, is_kept| {
        if is_kept {
            keys.push(key);
        }
    };
    kept("listen", keep_one(&running.listen, &mut config.listen));
    kept("admin", keep_one(&running.admin.listen, &mut config.admin.listen));
    kept("services", keep_services(running, config));
    kept("forward", keep_forward(running, config));
    kept("workers", keep_one(&running.workers, &mut config.workers));
    kept("access_log", keep_one(&running.access_log, &mut config.access_log));
    kept("log", keep_one(&running.log, &mut config.log));
    kept("tracing", keep_collector(running, config));
    let (most, new) = (&running.client.max_connections, &mut config.client.max_connections);
    kept("client.max_connections", keep_one(most, new));
    kept("store", keep_store(&running.store, config));
    keys
}

/// Puts the value that is in use in place of a new one. True if they differ.
fn keep_one<T: Clone + PartialEq>(running: &T, new: &mut T) -> bool {
    running != new && {
        new.clone_from(running);
        true
    }
}

/// Keeps the forward proxy that is in use, or the lack of one. `others` and `allow` take effect at once.
fn keep_forward(running: &Config, config: &mut Config) -> bool {
    match (&running.forward, &mut config.forward) {
        (Some(running), Some(new)) => {
            let is_listen = keep_one(&running.listen, &mut new.listen);
            keep_one(&running.ca, &mut new.ca) || is_listen
        }
        (running, new) => keep_one(running, new),
    }
}

/// Keeps the services that are in use, with the route of the decisions of programs.
fn keep_services(running: &Config, config: &mut Config) -> bool {
    let is_other = keep_one(&running.services, &mut config.services);
    if is_other {
        config.route_decisions();
        config.group_limiters();
    }
    is_other
}

/// Keeps the collector of traces that is in use, or the lack of one. `sample` takes effect at once.
fn keep_collector(running: &Config, config: &mut Config) -> bool {
    let collector = |config: &Config| config.tracing.as_ref().map(|own| own.collector.clone());
    let is_other = collector(running) != collector(config);
    if is_other {
        config.tracing.clone_from(&running.tracing);
    }
    is_other
}

/// Keeps the store that is in use. Only `on_failure` and `on_loss`, the defaults of limiters, take effect at once.
fn keep_store(running: &StoreConfig, config: &mut Config) -> bool {
    use StoreConfig::Redis;
    let mut kept = running.clone();
    if let (Redis { on_failure, on_loss, .. }, Redis { on_failure: failure, on_loss: loss, .. }) =
        (&mut kept, &config.store)
    {
        (*on_failure, *on_loss) = (*failure, *loss);
    }
    let is_other = kept != config.store;
    if is_other {
        drop(mem::replace(&mut config.store, kept));
        // The names of states in a Cluster depend on it.
        config.group_limiters();
    }
    is_other
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::path::Path;

    fn config(keys: &str) -> Config {
        let text = format!("{keys}\nupstreams: {{ a: http://a }}\nroutes: [{{ suffix: /a }}]\n");
        Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config")
    }

    #[rstest]
    #[case::nothing("", &[])]
    #[case::an_address("listen: 127.0.0.1:1", &["listen"])]
    #[case::all(
        "listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\nservices: { forward_auth: 127.0.0.1:3 }\nworkers: 77\n\
         access_log: json\nlog: json\ntracing: { otlp: 'http://a:4317' }\nclient: { max_connections: 5 }\nstore: redis://x",
        &["listen", "admin", "services", "workers", "access_log", "log", "tracing", "client.max_connections", "store"]
    )]
    #[case::what_does_not("drain_timeout: 5s\nlimiting: off\nclient: { idle_timeout: 5s }", &[])]
    fn keys_that_need_a_restart_are_named_and_kept(#[case] keys: &str, #[case] named: &[&str]) {
        let (running, mut new) = (config(""), config(keys));
        assert_eq!(keep(&running, &mut new), named);
        assert_eq!(keep(&running, &mut new), [""; 0]);
    }

    #[test]
    fn hosts_of_tunnels_change_at_once() {
        let forward = |listen: &str, allow: &str| {
            let ca = "ca: { cert: a.pem, key: a.key }, others: tunnel";
            let text = format!(
                "forward: {{ listen: '{listen}', {ca}, allow: [{allow}] }}\nupstream: http://a\nroutes: [{{ suffix: /a }}]\n"
            );
            Config::parse_offline(&text, "test").expect("a config").0
        };
        let running = forward("127.0.0.1:1", "a.example");
        let mut new = forward("127.0.0.1:2", "b.example");
        assert_eq!(keep(&running, &mut new), ["forward"]);
        assert_eq!(keep(&running, &mut new), [""; 0]);
        assert_eq!(new, forward("127.0.0.1:1", "b.example"));
        assert_eq!(keep(&running, &mut config("")), ["forward"]);
    }

    #[test]
    fn a_change_of_the_default_policy_needs_no_restart() {
        let redis = |more: &str| config(&format!("store: {{ url: redis://x, {more} }}"));
        let (running, mut new) = (redis(""), redis("on_failure: reject, on_loss: trust"));
        assert_eq!(keep(&running, &mut new), [""; 0]);
        assert_eq!(keep(&running, &mut redis("prefix: other")), ["store"]);
    }
}
