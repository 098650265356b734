//! JSON in the bodies of requests: a document is read alike however it arrives in pieces, and what is accepted has the
//! values that a reader of whole documents finds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceway::json::{JsonPointer, JsonScanner};
use paceway_fuzz::{expand, pieces};
use std::sync::{Arc, LazyLock};

static POINTERS: LazyLock<Arc<[JsonPointer]>> = LazyLock::new(|| {
    ["/n", "/a/n", "/a/0", "/0/n"].map(|text| JsonPointer::parse(text).expect("a pointer")).into()
});

/// The values of a document in pieces, unless it is refused.
fn read(pieces: &[&[u8]]) -> Option<Vec<Option<String>>> {
    let mut scanner = JsonScanner::new(&POINTERS);
    let (mut known, mut values) = (scanner.is_known(), scanner.values());
    for piece in pieces {
        scanner.feed(piece).ok()?;
        let now = scanner.values();
        for (place, pointer) in POINTERS.iter().enumerate() {
            assert!(values.is_unseen(place) || values.get(pointer) == now.get(pointer));
        }
        assert!(!known || scanner.is_known(), "what is known stays known");
        (known, values) = (scanner.is_known(), now);
    }
    scanner.end().ok()?;
    assert!(scanner.is_known());
    let values = scanner.values();
    Some(POINTERS.iter().map(|pointer| values.get(pointer).map(str::to_owned)).collect())
}

fuzz_target!(|data: &[u8]| {
    let Some((cuts, text)) = data.split_first_chunk::<3>() else { return };
    let text = expand(text);
    let whole = read(&[&text]);
    assert_eq!(whole, read(&pieces(&text, cuts)));
    if let Some(values) = whole.filter(|_| !text.is_empty()) {
        assert!(std::str::from_utf8(&text).is_ok());
        let sought: Vec<_> = POINTERS.iter().collect();
        assert_eq!(values, JsonPointer::find_all(&sought, &text).to_vec());
    }
});
