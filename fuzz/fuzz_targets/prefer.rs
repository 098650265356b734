//! `Prefer: wait=`: whatever it says, no request waits longer than the cap.
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
    // A client may send several fields of the name.
    for field in fields.split(|byte| *byte == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(field) else { return };
        headers.append("prefer", value);
    }
    let wait = budget(max_wait, cap, &headers);
    assert!(wait <= cap, "{wait:?} of {cap:?}");
    // The wait is whole seconds or the cap; without a preference it is the route's own.
    assert!(wait == max_wait || wait == cap || wait.subsec_nanos() == 0, "{wait:?}");
    // Without the header, the wait is the route's.
    headers.remove("prefer");
    assert_eq!(budget(max_wait, cap, &headers), max_wait);
});
