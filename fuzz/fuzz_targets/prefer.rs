//! `Prefer: wait=`: whatever it says, nobody waits longer than the cap.
#![no_main]

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use paceway::proxy::budget;
use std::time::Duration;

fuzz_target!(|data: &[u8]| {
    let Some((times, fields)) = data.split_at_checked(4) else { return };
    let seconds = |at: usize| {
        Duration::from_millis(u64::from(u16::from_be_bytes([times[at], times[at + 1]])))
    };
    let (max_wait, more) = (seconds(0), seconds(2));
    let cap = max_wait + more;
    let mut headers = HeaderMap::new();
    // Several fields of the name, as a client may send them.
    for field in fields.split(|byte| *byte == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(field) else { return };
        headers.append("prefer", value);
    }
    let wait = budget(max_wait, cap, &headers);
    assert!(wait <= cap, "{wait:?} of {cap:?}");
    // What it prefers is whole seconds or the cap; without it the route's own.
    assert!(wait == max_wait || wait == cap || wait.subsec_nanos() == 0, "{wait:?}");
    // A preference is the caller's alone: without the header it is the route's.
    headers.remove("prefer");
    assert_eq!(budget(max_wait, cap, &headers), max_wait);
});
