//! The normal form of a path is its own normal form, and every disguise of the path has the same one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceway::path::{Suffix, normal};

fuzz_target!(|data: &[u8]| {
    // The first bytes choose the disguises.
    let Some((choices, rest)) = data.split_at_checked(4) else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let once = normal(text).into_owned();
    assert!(once.starts_with(b"/") && !once.windows(2).any(|two| two == b"//"));
    assert!(once.len() == 1 || !once.ends_with(b"/"));
    if let Ok(form) = std::str::from_utf8(&once) {
        assert_eq!(normal(form), once, "not its own normal form");
        suffix(form, &once);
    }
    // The disguise is put before a `?` or `#`, which end the path.
    if text.starts_with('/') {
        let disguised = disguise(text, choices);
        assert_eq!(
            String::from_utf8_lossy(&normal(&disguised)),
            String::from_utf8_lossy(&once),
            "{text:?} as {disguised:?}"
        );
    }
});

/// Checks that a path's own normal form, taken as a suffix of a route, matches the path.
fn suffix(form: &str, path: &[u8]) {
    if form.contains(['*', '?', '#']) {
        return;
    }
    match Suffix::parse(form) {
        Ok(Suffix::Segments(bytes)) => assert_eq!(&*bytes, path),
        other => panic!("{form:?} is {other:?}"),
    }
}

/// Spells the same path in another way, which common origins serve alike.
fn disguise(path: &str, choices: &[u8]) -> String {
    let mut out = String::new();
    let mut choices = choices.iter().cycle();
    let mut next = || choices.next().copied().unwrap_or_default();
    for segment in path[1..].split('/') {
        out.push_str(match next() % 6 {
            0 => "//",
            1 => "/./",
            2 => "/x/../",
            3 => "\\",
            4 => "/%2e/",
            _ => "/",
        });
        let how = next();
        for c in segment.chars() {
            let unreserved = c.is_ascii_alphanumeric() || "-._~".contains(c);
            // A letter after a `%` may be a part of an escape; escaping it would break that escape.
            if unreserved && how & 1 == 1 && !segment.contains('%') {
                out.push_str(&format!("%{:02x}", c as u32));
            } else {
                out.push(c);
            }
        }
        if how & 2 == 2 && !segment.contains('\\') {
            out.push_str(";v=1");
        }
    }
    if next() & 1 == 1 {
        out.push('/');
    }
    out
}
