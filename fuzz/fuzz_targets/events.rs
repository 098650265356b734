//! Event streams: the data of events is read alike however the stream arrives in pieces, and its length has a bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceway::proxy::fuzzing::{MOST, events};
use paceway_fuzz::{expand, pieces};

fuzz_target!(|data: &[u8]| {
    let Some((cuts, text)) = data.split_first_chunk::<3>() else { return };
    // The longest line of data may be reached: the first `MANY` is repeated.
    let text = expand(text);
    let whole = events(&[&text]);
    assert_eq!(whole, events(&pieces(&text, cuts)));
    for event in &whole.data {
        assert!(!event.is_empty() && event.len() <= MOST, "{}", event.len());
        assert!(!event.contains(&b'\r'));
    }
    if let Some((last, before)) = whole.data.split_last() {
        let is_last = |event: &[u8]| event.trim_ascii() == b"[DONE]";
        assert!(!whole.is_done || is_last(last));
        assert!(!before.iter().any(|event| is_last(event)), "read after the last event");
    }
});
