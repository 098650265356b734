//! The texts that gateways share through the store: whatever another program wrote there, a text is read as it is written again, and
//! what is learned from it has its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceway::{key::CostModel, overrides::OverrideTable};

// The first byte says which text it is.
fuzz_target!(|data: &[u8]| {
    let Some((kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    match kind {
        b'o' => overrides(text),
        _ => costs(text),
    }
});

fn overrides(text: &str) {
    let Some(table) = OverrideTable::parse(text) else { return };
    assert_eq!(OverrideTable::parse(&table.text()).as_ref(), Some(&table));
    let now = table.first_end().unwrap_or_default();
    let left = table.clone().without_ended(now);
    assert!(left.len() < table.len() || table.is_empty());
    assert!(left.first_end().is_none_or(|end| end > now));
}

fn costs(text: &str) {
    let Some(mut model) = CostModel::parse(text) else { return };
    let again = CostModel::parse(&model.text()).expect("a text of our own");
    for bytes in [0, 1, 1_000, u64::MAX] {
        let reserve = model.reserve(bytes);
        assert!(reserve.is_none_or(|reserve| reserve >= 1), "{reserve:?}");
        model.observe(bytes, i64::MAX, again.known());
        model.observe(bytes, 0, again.known());
    }
    model.add(&again);
    assert!(CostModel::parse(&model.text()).is_some(), "{}", model.text());
}
