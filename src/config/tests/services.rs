//! Tests the access to services, keys of descriptors, and addresses that services, upstreams and the data plane may not share.

use super::{mistakes, parse};
use rstest::rstest;

const OPEN: &str = "set `token`, or `tls` with `client_ca`, or listen on a loopback address";

/// A program that reaches a service can use up every quota. The service of programs has nothing before it, so it is refused.
#[rstest]
#[case::open("@0.0.0.0:8084", true)]
#[case::open_v6("@{ listen: \"[::]:8084\" }", true)]
#[case::loopback("127.0.0.1:8084", false)]
#[case::loopback_v6("\"[::1]:8084\"", false)]
#[case::token("{ listen: 0.0.0.0:8084, token: hunter2 }", false)]
fn warns_of_services_that_other_hosts_reach(
    #[values("decisions", "envoy_rate_limit", "ext_authz", "forward_auth")] service: &str,
    #[case] written: &str,
    #[case] is_open: bool,
) {
    let text = format!("services: {{ {service}: {written} }}");
    let column = text.find('@').unwrap_or_default() + 1;
    let text = text.replace('@', "");
    if is_open && service == "decisions" {
        let message = format!(
            "test.yaml:3:{column}: services.decisions: other hosts reach this address: {OPEN}"
        );
        return assert_eq!(mistakes(&text), [message]);
    }
    let text = format!("upstream: http://a\nroutes: [{{ suffix: '*' }}]\n{text}\n");
    let warnings = parse(&text).expect("a config").warnings();
    let warning =
        format!("other hosts reach `services.{service}` and can use up its quotas: {OPEN}");
    assert_eq!(warnings.contains(&warning), is_open, "{warnings:?}");
}

#[test]
fn refuses_a_route_with_the_name_decisions() {
    let text = "upstream: http://a\nservices: { decisions: 127.0.0.1:1 }\nroutes: [{ name: decisions, suffix: '*' }]\n";
    let error = parse(text).expect_err("must be refused").to_string();
    assert!(error.contains("the name `decisions` of a route or descriptor is that"), "{error}");
    let config = parse(&text.replace("name: decisions", "name: all")).expect("a config");
    assert!(config.summary().starts_with("1 route, "), "{}", config.summary());
}

#[rstest]
#[case::header("{header.x}", "`{header.x}` is no part of a descriptor; write `{descriptor.NAME}`")]
#[case::address(
    "{client_ip}",
    "`{client_ip}` is no part of a descriptor; write `{descriptor.NAME}`"
)]
#[case::header_and_more(
    "{descriptor.shop}:{header.x}",
    "`{descriptor.shop}:{header.x}` has `{header.x}`, which is no part of a descriptor; write `{descriptor.NAME}`"
)]
fn reports_one_mistake_in_the_key_of_a_descriptor(#[case] key: &str, #[case] message: &str) {
    let text = format!(
        "services: {{ envoy_rate_limit: 127.0.0.1:1 }}\nlimiters: {{ a: 5/s }}\n\
         descriptors: [{{ match: {{ shop: '*' }}, limiters: [a], key: '{key}' }}]"
    );
    let all = mistakes(&text);
    assert_eq!(all, [format!("test.yaml:5:59: descriptors[0].key: {message}")]);
}

/// The gateway would send each request to itself.
#[rstest]
#[case::by_default("", "http://127.0.0.1:8080", true)]
#[case::by_name("", "http://localhost:8080/v2", true)]
#[case::another_port("", "http://127.0.0.1:8081", false)]
#[case::another_address("", "http://127.0.0.2:8080", false)]
#[case::all_addresses("listen: 0.0.0.0:80", "http://127.0.0.2", true)]
#[case::all_addresses_v6("listen: '[::]:443'", "https://localhost", true)]
#[case::another_host("listen: 0.0.0.0:80", "http://10.0.0.1", false)]
#[case::its_own_address("listen: 10.0.0.1:80", "http://10.0.0.1", true)]
#[case::a_name_of_dns("listen: 0.0.0.0:80", "http://a", false)]
fn refuses_an_upstream_that_is_the_gateway_itself(
    #[case] listen: &str,
    #[case] url: &str,
    #[case] is_circle: bool,
) {
    let text = format!(
        "{listen}\nupstreams: {{ v: {{ urls: ['{url}'] }} }}\nroutes: [{{ suffix: '*' }}]\n"
    );
    let warnings = parse(&text).expect("a config").warnings();
    let warning =
        "the upstream `v` is this gateway's own `listen`: requests would go round in a circle";
    assert_eq!(warnings.iter().any(|it| it == warning), is_circle, "{warnings:?}");
}
