//! The answers of upstreams: whatever their headers and bodies say, a pause has its bounds, and an answer without a header
//! of a quota says nothing. Conditions of `when` are read as they are shown.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use libfuzzer_sys::fuzz_target;
use paceway::{
    Rate,
    throttle::{Condition, Heard, MIN_PAUSE, Style, ThrottleRules, Timestamp},
    upstream::headers::HeaderFlags,
};
use std::{sync::LazyLock, time::Duration};

/// The statuses that the first byte of the input chooses from.
const STATUSES: [u16; 8] = [429, 200, 403, 503, 402, 500, 529, 204];

static RULES: LazyLock<Vec<ThrottleRules>> = LazyLock::new(|| {
    Style::NAMED.iter().map(|(_, style)| ThrottleRules::new(*style, None)).collect()
});

// A byte for the status and one for the style; then lines of a head, an empty line, and a body. A first byte of `w` is
// followed by a condition.
fuzz_target!(|data: &[u8]| {
    let Some(([first, style], rest)) = data.split_first_chunk() else { return };
    if *first == b'w' {
        if let Ok(text) = std::str::from_utf8(rest) {
            condition(text);
        }
        return;
    }
    let status = STATUSES[usize::from(*first) % STATUSES.len()];
    let (style, check) = (usize::from(*style) % RULES.len(), usize::from(*style) / RULES.len());
    let (head, body) = match rest.windows(2).position(|pair| pair == b"\n\n") {
        Some(end) => (&rest[..end], Some(&rest[end + 2..])),
        None => (rest, None),
    };
    let Some(headers) = fields(head) else { return };
    let status = StatusCode::from_u16(status).expect("a status");
    answer(&RULES[style], status, &headers, body);
    if check % 4 == 0 {
        answer_from_a_cache(&RULES[style], status, headers, body);
    }
});

fn fields(head: &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for line in head.split(|byte| *byte == b'\n') {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        headers.append(name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?);
    }
    Some(headers)
}

fn now() -> Timestamp {
    Timestamp::from_second(1_613_462_400).expect("a time")
}

fn answer(rules: &ThrottleRules, status: StatusCode, headers: &HeaderMap, body: Option<&[u8]>) {
    let now = now();
    let _ = rules.needs_body(status, headers);
    let heard = rules.hear(status, headers, body, now);
    if let Some(refusal) = heard.refusal {
        let pauses = [0, 1, 2, 9, u32::MAX].map(|in_a_row| rules.pause(&refusal, in_a_row));
        assert!(pauses.is_sorted(), "{pauses:?}");
        for pause in pauses {
            assert!((MIN_PAUSE..=rules.max_pause).contains(&pause), "{pause:?}");
        }
    }
    let rate = Rate { count: 5000, period: Duration::from_secs(3600) };
    let least = heard.quotas.iter().map(|quota| quota.remaining).min();
    let report = heard.remaining("account", &rate, 100, true);
    let remaining = report.map(|report| report.remaining);
    assert!(remaining.is_none_or(|remaining| least.is_some_and(|least| least <= remaining)));
    if !rules.concerns(status, HeaderFlags::of(headers)) {
        // Such an answer is not read at all, so there must be nothing in its head.
        assert_eq!(rules.hear(status, headers, None, now), Heard::default());
    }
}

fn answer_from_a_cache(
    rules: &ThrottleRules,
    status: StatusCode,
    mut headers: HeaderMap,
    body: Option<&[u8]>,
) {
    headers.insert("age", HeaderValue::from_static("1"));
    assert_eq!(rules.hear(status, &headers, body, now()), Heard::default());
}

fn condition(text: &str) {
    match Condition::parse(text) {
        Ok(condition) => {
            let shown = condition.to_string();
            assert_eq!(Condition::parse(&shown).as_ref(), Ok(&condition), "{shown}");
            assert!(condition.covers(&condition));
            let _ = (condition.never(), condition.likely_header());
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
}
