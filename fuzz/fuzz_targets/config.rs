//! The configuration: any text is read or refused with places inside of it. No error shows a variable's content where
//! it may be a secret; it shows a rate, a number or one of our own words, so that they can be corrected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceway::config::{Config, ConfigError};
use std::path::Path;

/// The content of every variable and file that the fuzzed configuration can name.
const SECRET: &str = "hunter2";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // The fuzzer must not read other files than ours.
    if text.contains(SECRET)
        || text.contains("..")
        || text.contains("/dev")
        || text.contains("/proc")
    {
        return;
    }
    let parsed = Config::parse(text, "fuzz.yaml", Path::new("/nonexistent"), &variable);
    match parsed {
        Ok(config) => accepted(&config),
        Err(error) => refused(text, &error),
    }
});

fn variable(name: &str) -> Option<String> {
    Some(match name {
        "PORT" => "8080".into(),
        "PLAIN" => SECRET.into(),
        "RATE" => format!("5/{SECRET}"),
        "SPAN" => format!("5{SECRET}"),
        "URL" => format!("http://{SECRET}@a/"),
        "REDIS" => format!("redis://:{SECRET}@"),
        "TICK" => format!("a`{SECRET}"),
        "TICKS" => format!("`{SECRET}` {{{{x}}}} `"),
        "PART" => format!("{{{SECRET}}}"),
        "LINES" => format!("{SECRET}\r\n{SECRET}"),
        "EMPTY" => String::new(),
        _ => return None,
    })
}

fn accepted(config: &Config) {
    assert!(!config.routes.is_empty() && !config.upstreams.is_empty());
    for route in &config.routes {
        assert!(route.upstream < config.upstreams.len());
        assert!(route.max_wait <= route.max_wait_cap);
        for charge in &route.limiters {
            assert!(!config.limiters[charge.limiter].algorithms.is_empty());
        }
    }
    assert!(config.limits.uri < config.limits.header_bytes);
    assert!(!config.proxy_protocol || !config.trusted_proxies.is_empty());
    for upstream in &config.upstreams {
        assert!(!upstream.targets.is_empty());
        for rules in [&upstream.headers.request, &upstream.headers.response] {
            for (_, value) in rules.set.iter().chain(&rules.add) {
                assert!(value.is_sensitive() || !contains(value.as_bytes(), SECRET.as_bytes()));
            }
        }
    }
    let _ = config.warnings();
    let _ = config.summary();
}

fn refused(text: &str, error: &ConfigError) {
    assert!(!error.mistakes.is_empty());
    assert!(error.mistakes.is_sorted_by_key(|mistake| mistake.place), "{error}");
    // All characters that end a line in YAML, old or new.
    let lines = text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count();
    for mistake in &error.mistakes {
        let place = mistake.place.expect("a place");
        assert!((1..=lines + 1).contains(&place.line), "{place:?} of {lines}: {error}");
        assert!((1..=text.chars().count() + 2).contains(&place.column), "{place:?}: {error}");
        assert!(!mistake.reason.is_empty());
        let is_shown = mistake.reason.contains(SECRET) || mistake.path.contains(SECRET);
        assert!(!is_shown || !may_be_secret(&mistake.path), "{error}");
    }
}

/// Returns whether a password, a private key or a private name can be written at a place.
fn may_be_secret(path: &str) -> bool {
    // The short form of a limiter is a rate, whatever its name.
    if path.strip_prefix("limiters.").is_some_and(|name| !name.contains('.')) {
        return false;
    }
    let path = path.trim_end_matches(|c: char| c == ']' || c == '[' || c.is_ascii_digit());
    let places =
        ["upstream", "store", "url", "cert", "key", "client_ca", "ca", "suffix", "name", "host"];
    let key = path.rsplit('.').next().unwrap_or_default();
    places.contains(&key) || path.contains(".headers.") || path.starts_with("redact")
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
