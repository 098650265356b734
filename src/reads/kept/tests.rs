//! Kept answers: their room, and what a 304 makes of them.

use super::*;
use crate::reads::Fingerprint;
use http::{HeaderValue, header::SET_COOKIE};
use rstest::rstest;

const MEMORY: usize = 64 << 10;

fn identity(i: usize) -> Identity {
    Fingerprint::new([&i.to_be_bytes()[..]]).end()
}

fn keep(answers: &Arc<KeptAnswers>, i: usize, length: usize) -> bool {
    let head = Response::builder().header(ETAG, "\"1\"").header("x-left", "9");
    let head = head.body(()).expect("a head");
    let mut keeping =
        answers.begin(identity(i), &HeaderMap::new(), &head).expect("room for a head");
    let has_room = keeping.add(&vec![0; length]);
    if has_room {
        keeping.end();
    }
    has_room
}

fn get(answers: &KeptAnswers, i: usize) -> Option<Arc<KeptAnswer>> {
    answers.get(identity(i), &HeaderMap::new())
}

#[test]
fn the_bytes_stay_within_the_memory() {
    let answers = KeptAnswers::new(MEMORY);
    assert!(!keep(&answers, 0, MEMORY / 8 + 1));
    for i in 1..100 {
        assert!(keep(&answers, i, MEMORY / 8 - i));
    }
    let kept: Vec<_> = (0..100).filter(|i| get(&answers, *i).is_some()).collect();
    assert!(kept.len() >= 6 && kept[0] > 90, "{kept:?}");
    // A reader of an answer that has left keeps its bytes, and they count.
    let read = get(&answers, 99).expect("an answer").body();
    let left = answers.bound.left();
    answers.forget(identity(99));
    assert!(answers.bound.left() < left + MEMORY / 16);
    drop(read);
    assert!(answers.bound.left() > left + MEMORY / 16);
}

#[test]
fn nothing_is_kept_while_readers_have_all_the_memory() {
    let answers = KeptAnswers::new(MEMORY);
    let mut readers = Vec::new();
    while keep(&answers, readers.len(), MEMORY / 8) {
        readers.push(get(&answers, readers.len()).expect("an answer").body());
        assert!(readers.len() < 9);
    }
    readers.clear();
    assert!(keep(&answers, 0, MEMORY / 8));
}

#[rstest]
#[case::confirmed(&[("etag", "W/\"1\""), ("x-left", "8"), ("x-new", "1")], true)]
#[case::silent(&[], true)]
#[case::another(&[("etag", "\"2\"")], false)]
#[case::no_store(&[("cache-control", "no-store")], false)]
#[case::varies(&[("vary", "x-tenant")], false)]
fn a_304_confirms_an_answer(#[case] fields: &[(&'static str, &'static str)], #[case] stays: bool) {
    let answers = KeptAnswers::new(MEMORY);
    assert!(keep(&answers, 1, 10));
    let kept = get(&answers, 1).expect("an answer");
    let fields = fields.iter().map(|(name, value)| {
        (http::HeaderName::from_static(name), HeaderValue::from_static(value))
    });
    let mut confirmation = HeaderMap::from_iter(fields);
    confirmation.insert(SET_COOKIE, HeaderValue::from_static("a=1"));
    confirmation.insert("content-length", HeaderValue::from_static("99"));
    let own = answers.confirm(identity(1), &kept, &confirmation);
    assert_eq!(own.status(), 200);
    // The fields of a 304 about another answer are not given out with this one.
    let is_another = confirmation.get("etag").is_some_and(|tag| tag == "\"2\"");
    assert_eq!(own.headers().contains_key(SET_COOKIE), !is_another);
    assert!(!own.headers().contains_key("content-length"));
    assert_ne!(own.headers().get("etag").map(HeaderValue::as_bytes), Some(&b"\"2\""[..]));
    let now = get(&answers, 1);
    assert_eq!(now.is_some(), stays);
    if let Some(now) = now {
        assert_eq!(
            (&*now.body(), now.head.headers().contains_key(SET_COOKIE)),
            (&[0; 10][..], false)
        );
        for (name, value) in confirmation.iter().filter(|(name, _)| name.as_str().starts_with("x-"))
        {
            assert_eq!(now.head.headers().get(name), Some(value));
        }
    }
}
