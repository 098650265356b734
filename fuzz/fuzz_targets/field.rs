//! The list of a `Forwarded` field (RFC 7239): a valid list stays valid with an element of ours after it, and an
//! invalid one stays invalid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceway::upstream::forwarded::is_list;

const OWN: &[u8] = b"for=192.0.2.1;host=api.example;proto=https";

fuzz_target!(|data: &[u8]| {
    let appended = [data, b", ", OWN].concat();
    assert_eq!(is_list(data), is_list(&appended), "{:?}", String::from_utf8_lossy(data));
    let Some(middle) = data.iter().position(|byte| *byte == b',') else { return };
    let (first, second) = (&data[..middle], &data[middle + 1..]);
    if is_list(first) && is_list(second) {
        assert!(is_list(data), "{:?}", String::from_utf8_lossy(data));
    }
});
