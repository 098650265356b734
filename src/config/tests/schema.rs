//! Tests that the JSON Schema and the parser accept and reject the same files.

use super::*;

#[test]
fn schema_and_parser_know_the_same_keys() {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
    let defined = |place: &str, keys: &keys::Keys| {
        let object = schema.pointer(place).unwrap_or_else(|| panic!("no {place}"));
        let mut names: Vec<_> =
            object["properties"].as_object().expect("properties").keys().collect();
        let mut keys: Vec<_> = keys.specs.iter().map(|key| key.name).collect();
        names.sort_unstable();
        keys.sort_unstable();
        assert_eq!(names, keys, "{place}");
        assert_eq!(object["additionalProperties"], false, "{place}");
    };
    defined("", &keys::ROOT);
    for section in keys::SECTIONS {
        defined(&format!("/$defs/{}", section.name), section);
    }
}

#[test]
fn the_schema_and_the_tables_are_generated_from_the_keys() {
    let remedy = "run `cargo run --example reference`";
    assert!(SCHEMA == reference::schema(), "src/config/schema.json: {remedy}");
    let page = fs::read_to_string("docs/configuration.md").expect("a page");
    assert!(page == reference::page(&page), "docs/configuration.md: {remedy}");
    let sections = [&keys::ROOT].into_iter().chain(keys::SECTIONS);
    for section in sections.filter(|section| section.name != "certificate") {
        let table = format!("<!-- begin keys: {} -->", section.name);
        assert!(page.contains(&table), "docs/configuration.md has no table of {}", section.name);
    }
}

#[test]
fn the_schema_lists_all_styles() {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
    let listed = &schema["$defs"]["throttle"]["properties"]["style"]["anyOf"][0]["enum"];
    let names = crate::throttle::Style::NAMED.map(|(name, _)| serde_json::Value::from(name));
    let names = names.into_iter().chain([serde_json::Value::Null]).collect::<Vec<_>>();
    assert_eq!(listed.as_array(), Some(&names));
}

/// As a YAML 1.2 reader hands a file to a JSON Schema.
fn json(node: &yaml::YamlNode) -> serde_json::Value {
    match &node.value {
        yaml::YamlValue::Broken => serde_json::Value::Null,
        _ if node.is_null() => serde_json::Value::Null,
        yaml::YamlValue::Scalar(scalar) => {
            let text = &scalar.written;
            let whole = text.parse::<i64>().map(serde_json::Value::from);
            let number = whole.or_else(|_| text.parse::<f64>().map(serde_json::Value::from));
            let word = || text.parse::<bool>().map(serde_json::Value::from);
            number.or_else(|_| word()).unwrap_or_else(|_| text.clone().into())
        }
        yaml::YamlValue::List(items) => items.iter().map(json).collect(),
        yaml::YamlValue::Map(entries) => {
            entries.iter().map(|own| (own.key.name.clone(), json(&own.node))).collect()
        }
    }
}

/// Returns whether the schema accepts a text, and whether the parser does.
pub(super) fn verdicts(text: &str) -> (bool, bool) {
    let schema = serde_json::from_str(SCHEMA).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let outside =
        yaml::Outside { directory: Path::new("."), variable: &|_| Some("1".into()), unread: None };
    let node = yaml::read(text, &outside, &mut Vec::new()).expect("YAML");
    (validator.is_valid(&json(&node)), parse(text).is_ok())
}

#[rstest]
#[case("auto", true)]
#[case("off", true)]
#[case("false", true)]
#[case("", true)]
#[case("on", false)]
#[case("true", false)]
fn the_schema_accepts_both_values_of_functions(#[case] functions: &str, #[case] is_right: bool) {
    let text = format!(
        "upstream: http://a\nroutes: [{{ suffix: \"*\" }}]\nstore: {{ url: redis://a, functions: {functions} }}\n"
    );
    assert_eq!(verdicts(&text), (is_right, is_right), "{functions}");
}

/// The schema and the parser agree on the keys that an algorithm needs.
#[rstest]
#[case("{ algorithm: concurrency, max: 4 }", true)]
#[case("{ algorithm: concurrency }", false)]
#[case("{ algorithm: concurrency, lease: 5s }", false)]
#[case("{ algorithm: concurrency, rate: 5/s }", false)]
#[case("{ algorithm: concurrency, max: }", false)]
#[case("{ max: 4 }", false)]
#[case("{ rate: 5/s }", true)]
#[case("{ burst: 5 }", false)]
#[case("{ key: \"{client_ip}\" }", false)]
#[case("{ rate: 5/s, key: \"{client_ip/64}\" }", true)]
#[case("{ rate: 5/s, key: \"{path.id:int}-{segment.2:int}\" }", true)]
#[case("{ rate: }", false)]
#[case("{ algorithm: token_bucket, burst: 5 }", false)]
#[case("{ algorithm: sliding_window, margin: 30ms }", false)]
#[case("{ algorithm: sliding_window, max: 5 }", false)]
#[case("{ algorithm: sliding_window, rate: 5/s }", true)]
#[case("{ algorithm: fixed_window }", false)]
#[case("{ algorithm: fixed_window, rate: 5/month, resets: 'day 15 00:00 UTC' }", true)]
#[case("{ algorithm: fixed_window, rate: 5/h, resets: ':15 UTC', spread: even }", true)]
#[case("{ algorithm: fixed_window, rate: 5/day, resets: '00:00' }", false)]
#[case("{ algorithm: fixed_window, rate: 5/day, spread: even }", false)]
#[case("{ rate: 5/day, resets: '00:00 UTC' }", false)]
#[case("{ algorithm: leaky_bucket, capacity: 5 }", false)]
#[case("{ algorithm: warm_up, rate: 5/s }", false)]
#[case("{ algorithm: warm_up, rate: 5/s, warm_up: }", false)]
#[case("{ algorithm: warm_up, warm_up: 4s }", false)]
#[case("{ algorithm: warm_up, rate: 5/s, warm_up: 4s }", true)]
fn the_schema_requires_the_keys_of_an_algorithm(#[case] limiter: &str, #[case] is_right: bool) {
    let text = format!(
        "upstream: http://a\nlimiters: {{ a: {limiter} }}\nroutes: [{{ suffix: \"*\" }}]\n"
    );
    assert_eq!(verdicts(&text), (is_right, is_right), "{limiter}");
}

#[rstest]
#[case("5", true)]
#[case("'{path.n:int}'", true)]
#[case("'1 + 2*{query.n}+{body./a/b}'", true)]
#[case("' 1000000000 * {header.x} '", true)]
#[case("'{query.n} * 2'", false)]
#[case("'{query.n}{query.n}'", false)]
#[case("'2 - {query.n}'", false)]
#[case("'1+1+1+1+1+1+1+1+{query.n}'", false)]
#[case("'{response.body./n}'", false)]
#[case(
    "{ reserve: '1 + 5*{body./n}', settle: '{response.body./a} + 5*{response.header.b} + 1' }",
    true
)]
#[case("{ reserve: 5, settle: '{query.n} + {response.header.b}' }", false)]
#[case("{ reserve: 5, default: '1 + 1' }", false)]
#[case("{ reserve: learned, default: 500, settle: '{response.header.b}' }", true)]
#[case("{ reserve: learnt, settle: '{response.header.b}' }", false)]
fn the_schema_and_the_parser_take_the_same_sums(#[case] cost: &str, #[case] is_right: bool) {
    let text = format!(
        "upstream: http://a\nlimiters: {{ a: 1000/s }}\nroutes:\n\
         - {{ path: '/{{n}}', limiters: [{{ limiter: a, cost: {cost} }}] }}\n"
    );
    assert_eq!(verdicts(&text), (is_right, is_right), "{cost}");
}

#[test]
fn every_file_under_config_is_valid_and_names_the_schema() {
    let mut files = 0;
    for folder in ["config", "deploy"] {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let ours = folder == "config" || path.ends_with("paceway.yaml");
            if !ours || path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a text");
            assert_eq!(verdicts(&text), (true, true), "{}", path.display());
            let warnings = parse(&text).expect("a config").warnings();
            assert!(warnings.is_empty(), "{}: {warnings:?}", path.display());
            files += 1;
        }
    }
    assert!(files >= 3, "only {files} found");
}

#[rstest]
#[case::unknown_key("colour: red")]
#[case::bad_rate("limiters: { a: 5 }")]
#[case::zero_rate("limiters: { a: 0/s }")]
#[case::no_rate("limiters: { a: { burst: 5 } }")]
#[case::zero_burst("limiters: { a: { rate: 5/s, burst: 0 } }")]
#[case::bad_mode("limiters: { a: { rate: 5/s, mode: maybe } }")]
#[case::tls_without_files("tls: {}")]
#[case::no_switch("proxy_protocol: maybe")]
#[case::client_without_unit("client: { header_timeout: 10 }")]
#[case::unknown_client_key("client: { timeout: 10s }")]
#[case::bad_size("limits: { header_bytes: 32 kilo }")]
#[case::no_headers("limits: { headers: 0 }")]
#[case::empty_body("limits: { body: 0 }")]
#[case::read_without_a_token("admin: { read: token }")]
#[case::token_with_a_space("admin: { token: 'a b' }")]
#[case::unknown_access("admin: { token: a, read: closed }")]
#[case::spaced_name("redact: ['a b']")]
#[case::named_resolver("resolver: [dns.internal]")]
#[case::key_without_braces("limiters: { a: { rate: 5/s, key: client_ip } }")]
#[case::unknown_part("limiters: { a: { rate: 5/s, key: '{tenant}' } }")]
#[case::no_rates("limiters: { a: [] }")]
#[case::burst_of_a_window("limiters: { a: { algorithm: sliding_window, rate: 5/s, burst: 5 } }")]
#[case::margin_of_a_bucket("limiters: { a: { rate: 5/s, margin: 1s } }")]
#[case::rate_of_concurrency("limiters: { a: { algorithm: concurrency, max: 4, rate: 5/s } }")]
#[case::concurrency_without_max("limiters: { a: { algorithm: concurrency } }")]
#[case::warm_up_without_time("limiters: { a: { algorithm: warm_up, rate: 5/s } }")]
#[case::cold_factor(
    "limiters: { a: { algorithm: warm_up, rate: 5/s, warm_up: 4s, cold_factor: 1 } }"
)]
#[case::scope("limiters: { a: { rate: 5/s, scope: world } }")]
#[case::no_network("trusted_proxies: [proxy.internal]")]
#[case::bad_name("limiters: { 'a b': 5/s }")]
#[case::no_unit("drain_timeout: 10")]
#[case::bad_store("store: mongodb://a")]
#[case::store_without_url("store: { prefix: a }")]
#[case::no_workers("workers: 0")]
#[case::two_forms("upstreams: { a: http://a }")]
fn schema_and_parser_refuse_the_same_files(#[case] text: &str) {
    let text = format!("upstream: http://a\nroutes: [{{ suffix: \"*\" }}]\n{text}\n");
    assert_eq!(verdicts(&text), (false, false));
}

#[rstest]
#[case::client(
    "client: { header_timeout: 10s, idle_timeout: 75s, body_timeout: 30s, max_connections: 0 }"
)]
#[case::limits("limits: { header_bytes: 32KiB, headers: 100, body: none, uri: 512 }")]
#[case::sizes("limits: { body: 10 MB, uri: 8kB, retry_bodies: 0 }")]
#[case::nothing("client:\nlimits:\nredact:\nresolver:\ntls:\nproxy_protocol:")]
#[case::names("redact: [token, 'a[b]', '${SECRET}']")]
#[case::resolver("resolver: [10.0.0.2, '10.0.0.2:5353', 'fd00::1', '[fd00::2]:53']")]
#[case::admin("admin: { listen: 0.0.0.0:81, token: '${SECRET}', read: token }")]
#[case::proxies("trusted_proxies: [10.0.0.0/8]\nproxy_protocol: on")]
fn schema_and_parser_accept_the_same_files(#[case] text: &str) {
    let text = format!("upstream: http://a\nroutes: [{{ suffix: \"*\" }}]\n{text}\n");
    assert_eq!(verdicts(&text), (true, true));
}

#[rstest]
#[case::urls("urls: [http://a, http://b]", true)]
#[case::switches(
    "url: http://a, http2: true, preserve_host: off, forwarded: on, pool_size: 0",
    true
)]
#[case::both("url: http://a, urls: [http://b]", false)]
#[case::no_urls("urls: []", false)]
#[case::nowhere("http2: true", false)]
#[case::no_switch("url: http://a, http2: h2c", false)]
#[case::large_pool("url: http://a, pool_size: 100001", false)]
#[case::headers(
    "url: http://a, headers: { request: { set: { a: 1, b: '${SECRET}' }, add: { c: [d, e] }, remove: [f] }, response: }",
    true
)]
#[case::framing("url: http://a, headers: { request: { set: { Content-Length: 1 } } }", false)]
#[case::value_list("url: http://a, headers: { request: { set: { a: [b] } } }", false)]
#[case::no_value("url: http://a, headers: { request: { set: { a: ~ } } }", false)]
#[case::direction("url: http://a, headers: { set: { a: b } }", false)]
#[case::no_name("url: http://a, headers: { response: { remove: ['a b'] } }", false)]
#[case::throttle_switch("url: http://a, throttle: off", true)]
#[case::throttle_of_nothing("url: http://a, throttle: ~", true)]
#[case::throttle_word("url: http://a, throttle: sometimes", false)]
#[case::throttle_list("url: http://a, throttle: [429]", false)]
#[case::throttle(
    "url: http://a, throttle: { when: [429, '503 with retry-after', '200 with json /e=A'], pauses: all, default_pause: 2s, max_pause: 5min, retry: { attempts: 1, max_body: 0 }, learn: off }",
    true
)]
#[case::style("url: http://a, throttle: { style: shopify-graphql }", true)]
#[case::no_style("url: http://a, throttle: { style: gitlab }", false)]
#[case::no_condition("url: http://a, throttle: { when: [] }", false)]
#[case::every_success("url: http://a, throttle: { when: [200] }", false)]
#[case::no_status("url: http://a, throttle: { when: [retry-after] }", false)]
#[case::no_list("url: http://a, throttle: { when: 429 }", false)]
#[case::pauses_nothing("url: http://a, throttle: { pauses: [] }", false)]
#[case::learn("url: http://a, throttle: { learn: everything }", false)]
#[case::attempts("url: http://a, throttle: { retry: { attempts: 0 } }", false)]
#[case::retry("url: http://a, throttle: { retry: 3 }", false)]
fn schema_and_parser_agree_on_upstreams(#[case] upstream: &str, #[case] good: bool) {
    let text = format!("upstreams: {{ v: {{ {upstream} }} }}\nroutes: [{{ suffix: \"*\" }}]\n");
    assert_eq!(verdicts(&text), (good, good));
}
