//! Tests the names of the states of limiters.

use super::{limiters::limiter, parse};
use crate::config::LimiterConfig;
use std::collections::HashSet;

#[test]
fn in_a_cluster_joint_limiters_share_a_tag_and_keyed_ones_are_spread() {
    let key = "key: '{client_ip}'";
    let config = parse(&format!(
        "upstream: http://a\nstore: redis-cluster://r\nlimiters: {{ c: {{ rate: [3/s, 20/min], {key} }}, b: 5/s, z: \
         {{ rate: 5/s, {key} }}, lone: 5/s }}\nroutes:\n- {{ suffix: /1, limiters: [c, b] }}\n\
         - {{ suffix: /2, limiters: [z] }}\n- {{ suffix: /3, limiters: [lone] }}\n"
    ))
    .expect("a config");
    let [c, b, z, lone] = &*config.limiters else { panic!("not four") };
    let plain = |limiter: &LimiterConfig, part, filled| {
        limiter.state_names("p", Some("i1"), part).of(filled)
    };
    assert_eq!(plain(c, 0, Some("::1")), "p:{b}:T:c:::1");
    assert_eq!(plain(c, 1, Some("::1")), "p:{b}:T:c/1min:::1");
    assert_eq!(plain(b, 0, None), "p:{b}:T:b");
    assert_eq!(plain(lone, 0, None), "p:{lone}:T:lone");
    assert_eq!(plain(z, 0, Some("::1")), "p:{z.38}:T:z:::1");
    assert_eq!([c.spread, b.spread, z.spread, lone.spread], [false, false, true, false]);
    let tag = |i: u32| {
        let key = z.state_names("p", None, 0).of(Some(&format!("10.0.0.{i}")));
        key.split(['{', '}']).nth(1).expect("a tag").to_owned()
    };
    let tags: HashSet<_> = (0..1000).map(tag).collect();
    assert_eq!(tags.len(), 64);
}

/// A rolling deployment that adds a route must find the states of the gateways before it, and so must a reload.
#[test]
fn without_a_cluster_state_names_do_not_depend_on_routes() {
    let names = |store: &str, routes: &str| {
        let config = parse(&format!(
            "upstream: http://a\nstore: {store}\nlimiters: {{ a: 5/s, b: {{ rate: [3/s, 20/min], key: \
             '{{client_ip}}' }} }}\nroutes:\n- {{ suffix: /a, limiters: [a] }}\n\
             - {{ suffix: /b, limiters: [b] }}\n{routes}"
        ))
        .expect("a config");
        let of = |limiter: &LimiterConfig, part, key| limiter.state_names("p", None, part).of(key);
        let [a, b] = &*config.limiters else { panic!("not two") };
        [of(a, 0, None), of(b, 0, Some("::1")), of(b, 1, Some("::1"))]
    };
    const BOTH: &str = "- { suffix: /both, limiters: [b, a] }\n";
    for store in ["memory", "redis://r", "redis-sentinel://r/m", "unix:/r"] {
        let alone = names(store, "");
        assert_eq!(alone, ["p:{a}:T:a", "p:{b}:T:b:::1", "p:{b}:T:b/1min:::1"]);
        assert_eq!(names(store, BOTH), alone);
    }
    // The nodes of a Cluster decide only on what has one hash tag.
    assert_eq!(
        names("redis-cluster://r", BOTH),
        ["p:{a}:T:a", "p:{a}:T:b:::1", "p:{a}:T:b/1min:::1"]
    );
}

/// A program may name any limiters together. Only a Cluster needs one tag for them, and a reload that adds a limiter renames
/// no state in memory.
#[test]
fn decisions_of_programs_group_limiters_in_a_cluster_alone() {
    let tags = |store: &str| {
        let config = parse(&format!(
            "services: {{ decisions: 127.0.0.1:1 }}\nupstream: http://a\n{store}\
             limiters: {{ a: 5/s, b: 5/s }}\nroutes: [{{ suffix: '*' }}]\n"
        ))
        .expect("a config");
        config.limiters.iter().map(|own| own.group.clone()).collect::<Vec<_>>()
    };
    assert_eq!(tags(""), ["a", "b"]);
    assert_eq!(tags("store: redis://r\n"), ["a", "b"]);
    assert_eq!(tags("store: redis-cluster://r\n"), ["a", "a"]);
    // One call may name two keys of a limiter.
    let lone = parse(
        "services: { decisions: 127.0.0.1:1 }\nupstream: http://a\nstore: redis-cluster://r\n\
         limiters: { a: { rate: 5/s, key: '{client_ip}' } }\nroutes: [{ suffix: '*' }]\n",
    );
    assert!(!lone.expect("a config").limiters[0].spread);
}

#[test]
fn the_state_of_an_instance_limiter_has_the_name_of_the_instance() {
    let limiter = limiter("{ rate: [3/s, 20/min], key: '{host}', scope: instance }");
    let name = |part| limiter.state_names("paceway", Some("gw-1"), part).of(Some("h"));
    let tag = name(0).split("}:").next().expect("a tag").to_owned();
    assert_eq!(name(0), format!("{tag}}}:T:a@gw-1:h"));
    assert_eq!(name(1), format!("{tag}}}:T:a/1min@gw-1:h"));
    let shared = self::limiter("{ rate: 3/s }");
    assert_eq!(shared.state_names("paceway", Some("gw-1"), 0).of(None), "paceway:{a}:T:a");
}

/// A list that gets another rate, or loses one, keeps the states of the others.
#[test]
fn a_rate_of_a_list_is_named_by_its_period() {
    let names = |rates: &str| -> Vec<String> {
        let own = limiter(&format!("{{ rate: {rates} }}"));
        let of = |i| own.state_names("p", None, i).of(None);
        (0..own.rates.len()).map(|i| of(i)[5..].to_owned()).collect()
    };
    assert_eq!(names("20/s"), [":T:a"]);
    assert_eq!(names("1200/min"), [":T:a"]);
    assert_eq!(names("[5/100ms, 20/s]"), [":T:a/100ms", ":T:a"]);
    assert_eq!(names("[20/s, 5/100ms]"), [":T:a/100ms", ":T:a"]);
    assert_eq!(names("[5/100ms, 20/s, 500/min]"), [":T:a/100ms", ":T:a", ":T:a/1min"]);
    assert_eq!(names("[20/s, 500/min]"), [":T:a", ":T:a/1min"]);
    assert_eq!(names("[500/min, 9000/h]"), [":T:a", ":T:a/1h"]);
}
