use super::{covering::KNOWN_WITHIN, table::MAX_PAUSES, *};
use crate::{
    algorithm::{Algorithm, TokenBucket, fair::Turn},
    store::Check,
};
use std::time::Duration;
use tokio::time::{advance, timeout};

const SECOND: Micros = 1_000_000;

fn check(key: &str) -> Check {
    Check::new(key, Algorithm::TokenBucket(TokenBucket::new(1, SECOND, 1).unwrap()))
}

/// A slot that was granted by a decision of that instant.
fn slot(at: Instant, asked: PauseVersion) -> GrantedSlot {
    GrantedSlot { at, asked, decided: at, is_behind: false }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_shorter_pause_changes_nothing() {
    let (pauses, now) = (Pauses::default(), Instant::now());
    pauses.learn("a", 6 * SECOND, 429);
    let version = pauses.version();
    pauses.learn("a", 2 * SECOND, 503);
    let known = pauses.get("a").unwrap();
    assert_eq!((known.until, known.status, pauses.version()), (now + seconds(6), 429, version));
    pauses.learn("a", 7 * SECOND, 503);
    let known = pauses.get("a").unwrap();
    assert_eq!((known.until, known.status), (now + seconds(7), 503));
    assert!(pauses.version() > version);
}

#[tokio::test(start_paused = true)]
async fn a_later_status_is_recorded() {
    let pauses = Pauses::default();
    pauses.learn("a", 6 * SECOND, 0);
    let version = pauses.version();
    pauses.learn("a", 5 * SECOND, 429);
    let known = pauses.get("a").unwrap();
    assert_eq!((known.left(), known.status, pauses.version()), (6 * SECOND, 429, version));
}

#[tokio::test(start_paused = true)]
async fn an_expired_or_ended_pause_is_removed() {
    let pauses = Pauses::default();
    assert!(pauses.is_empty());
    pauses.learn("a", SECOND, 429);
    pauses.learn("b", 2 * SECOND, 429);
    pauses.learn("c", 3 * SECOND, 429);
    pauses.end("b");
    assert_eq!(pauses.of(&[check("b")]), None);
    advance(seconds(1)).await;
    assert!(matches!(&pauses.all()[..], [(key, _)] if &**key == "c"));
    advance(seconds(2)).await;
    assert_eq!(pauses.of(&[check("c")]), None);
    assert!(pauses.is_empty());
}

#[tokio::test(start_paused = true)]
async fn numbers_without_sense_are_no_pause_or_a_long_one() {
    let pauses = Pauses::default();
    pauses.learn("a", -1, 429);
    pauses.learn("a", 0, 429);
    assert!(pauses.is_empty());
    pauses.learn("a", Micros::MAX, 429);
    assert!(!pauses.is_empty());
}

#[tokio::test(start_paused = true)]
async fn limiters_that_observe_are_not_paused() {
    let (pauses, now) = (Pauses::default(), Instant::now());
    pauses.learn("a", SECOND, 429);
    let observed = Check { enforce: false, ..check("a") };
    assert_eq!(pauses.of(std::slice::from_ref(&observed)), None);
    assert_eq!(pauses.covering(&[observed], slot(now, PauseVersion(0))), None);
    assert_eq!(pauses.of(&[check("b"), check("a")]), Some(now + seconds(1)));
}

/// The message that a pause has ended came on another connection than an answer from before its end. The pause was known again,
/// and was written to the store again as one that the store had lost.
#[tokio::test(start_paused = true)]
async fn an_answer_from_before_the_end_of_a_pause_does_not_bring_it_back() {
    let (pauses, asked) = (Pauses::default(), Instant::now());
    pauses.learn_since("a", asked, SECOND, 0);
    assert!(pauses.get("a").is_some());
    advance(seconds(1) / 4).await;
    pauses.end("a");
    pauses.learn_since("a", asked, SECOND, 0);
    assert_eq!(pauses.get("a"), None);
    advance(seconds(1) / 4).await;
    pauses.learn_since("a", Instant::now(), SECOND, 0);
    assert!(pauses.get("a").is_some(), "a new one");
}

#[tokio::test(start_paused = true)]
async fn the_table_is_bounded_and_drops_what_ends_first() {
    let pauses = Pauses::default();
    for i in 0..=MAX_PAUSES {
        pauses.learn(&i.to_string(), (1 + i as i64) * SECOND, 429);
    }
    assert_eq!(pauses.all().len(), MAX_PAUSES);
    assert_eq!((pauses.get("0"), pauses.get("1").is_some()), (None, true));
}

/// A grant that the store made before the pause counts no longer; one that it made after the pause is as good as the store's
/// clock, unless it lies so far within the pause that the store must have lost that.
#[tokio::test(start_paused = true)]
async fn a_grant_is_covered_by_a_pause_that_came_later() {
    let (pauses, now, checks) = (Pauses::default(), Instant::now(), [check("a"), check("b")]);
    let before = pauses.version();
    pauses.learn("b", 2 * SECOND, 429);
    let after = pauses.version();
    let covering = |millis, asked, is_behind| {
        let at = now + Duration::from_millis(millis);
        let covering = pauses.covering(&checks, GrantedSlot { is_behind, ..slot(at, asked) });
        covering.map(|covering| (covering.index, covering.is_lost))
    };
    assert_eq!(covering(0, before, false), Some((1, false)));
    assert_eq!(covering(1999, before, true), Some((1, false)));
    assert_eq!(covering(2000, before, false), None);
    assert_eq!(covering(1950, after, false), None);
    assert_eq!(covering(1850, after, false), Some((1, true)));
    assert_eq!(covering(1850, after, true), None);
    let at = now + Duration::from_millis(1950);
    assert!(
        pauses
            .covering(&checks, GrantedSlot { decided: now, ..slot(at, after) })
            .is_some_and(|it| it.is_lost)
    );
}

/// A pause that the store seems to have lost is written again, by one call each 100 ms and not before the message of its end
/// had the time to come.
/// This process has received the refusal, and its message to the store is on the way: a decision of the store that was
/// asked meanwhile may be older than the pause, even if the pause ends within 100 ms.
#[tokio::test(start_paused = true)]
async fn a_store_without_the_pause_yet_does_not_end_it() {
    let (pauses, checks) = (Pauses::default(), [check("a")]);
    let end = Instant::now() + KNOWN_WITHIN;
    pauses.learn_first(&check("a"), Pause::for_micros(100_000, 429));
    let asked = pauses.version();
    let covers = |asked| {
        let now = Instant::now();
        pauses.covering(&checks, slot(now, asked)).map(|covering| covering.until)
    };
    assert_eq!(covers(asked), Some(end));
    advance(KNOWN_WITHIN / 2).await;
    // The store knows of another pause, which ends sooner.
    pauses.learn("a", 20_000, 429);
    assert_eq!(covers(pauses.version()), Some(end));
    pauses.learn("a", 50_000, 429);
    assert_eq!((covers(asked), covers(pauses.version())), (Some(end), None));
}

/// A store that has lost its states has lost the pause, too.
#[tokio::test(start_paused = true)]
async fn a_lost_pause_is_restored_by_one_call() {
    let (pauses, now) = (Pauses::default(), Instant::now());
    pauses.learn("a", SECOND, 429);
    pauses.lost_states();
    let doubt = || pauses.doubt("a", pauses.version());
    assert_eq!(doubt(), Doubt::Wait(now + KNOWN_WITHIN));
    advance(KNOWN_WITHIN / 2).await;
    assert_eq!(doubt(), Doubt::Wait(now + KNOWN_WITHIN));
    advance(KNOWN_WITHIN / 2).await;
    assert_eq!(doubt(), Doubt::Restore);
    assert_eq!(doubt(), Doubt::Wait(now + 2 * KNOWN_WITHIN));
    // The store knows of it again, and from now on its word counts.
    pauses.learn("a", SECOND, 0);
    assert_eq!(doubt(), Doubt::Ask);
    assert_eq!((pauses.get("a"), doubt()), (None, Doubt::Ask));
}

/// A gateway that learns of the end of a pause late, or never, wrote the pause to the store again. A pause of which the store does
/// not know yet cannot have been ended; and a question from before a pause says nothing about it.
#[tokio::test(start_paused = true)]
async fn a_pause_that_the_store_has_ended_is_not_restored() {
    let (pauses, before) = (Pauses::default(), PauseVersion(0));
    pauses.learn("ended", 60 * SECOND, 429);
    pauses.learn_first(&check("first"), Pause::for_micros(60 * SECOND, 429));
    assert_eq!(pauses.doubt("ended", before), Doubt::Ask);
    assert!(pauses.get("ended").is_some());
    assert_eq!(pauses.doubt("ended", pauses.version()), Doubt::Ask);
    assert_eq!(pauses.get("ended"), None);
    assert!(matches!(pauses.doubt("first", pauses.version()), Doubt::Wait(_)));
}

/// `learn: off`: an outage begins within the pause, and the store of this process may not lower the rate either.
#[tokio::test(start_paused = true)]
async fn a_pause_that_keeps_the_rate_keeps_it_in_every_store() {
    let (pauses, own) = (Pauses::default(), check("a"));
    pauses.learn_first(&own, Pause::keeping_rate(60 * SECOND, 429));
    assert_eq!(pauses.get("a").map(|known| known.pause().unit(&own)), Some(0));
    pauses.learn("a", 60 * SECOND, 429);
    assert_eq!(pauses.get("a").map(|known| known.pause().unit(&own)), Some(0));
    pauses.learn_first(&own, Pause::for_micros(61 * SECOND, 429));
    assert!(pauses.get("a").is_some_and(|known| known.pause().unit(&own) > 0));
}

/// A pause wakes those of 10,000 waiting calls whose instants it covers, and no others.
#[tokio::test(start_paused = true)]
async fn a_pause_wakes_the_calls_that_it_covers() {
    let (pauses, now) = (Arc::new(Pauses::default()), Instant::now());
    let mut calls = tokio::task::JoinSet::new();
    for i in 0..10_000_u64 {
        let (pauses, at) = (pauses.clone(), now + seconds(1 + i % 10));
        let checks = [check("shared"), check(if i % 2 == 0 { "even" } else { "odd" })];
        calls.spawn(async move {
            pauses
                .covered(&checks, GrantedSlot { decided: now, ..slot(at, PauseVersion(0)) }, None)
                .await;
            (i, at)
        });
    }
    tokio::task::yield_now().await;
    pauses.learn("even", 5 * SECOND + 1, 429);
    let mut woken = Vec::new();
    while let Ok(Some(call)) = timeout(Duration::from_millis(1), calls.join_next()).await {
        woken.push(call.unwrap());
    }
    assert!(woken.iter().all(|(i, at)| i % 2 == 0 && *at <= now + seconds(5)));
    assert_eq!(woken.len(), 3000);
    calls.shutdown().await;
    assert!(pauses.waiting.is_empty(), "a call has left its place");
}

#[tokio::test(start_paused = true)]
async fn begins_and_ends_are_reported_once() {
    let (pauses, now) = (Arc::new(Pauses::default()), Instant::now());
    let mut events = pauses.events();
    pauses.learn("a", SECOND, 429);
    pauses.learn("a", SECOND / 2, 429);
    pauses.learn("a", 2 * SECOND, 503);
    pauses.learn("b", SECOND, 0);
    pauses.end("b");
    pauses.end("b");
    let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
    let until = now + seconds(1);
    let grown = now + seconds(2);
    assert_eq!(events.next().await, PauseEvent::Began { key: a.clone(), until, status: 429 });
    assert_eq!(events.next().await, PauseEvent::Grew { key: a.clone(), until: grown, status: 503 });
    assert_eq!(events.next().await, PauseEvent::Began { key: b.clone(), until, status: 0 });
    assert_eq!(events.next().await, PauseEvent::Ended { key: b, is_over: false });
    // The end comes without another call of the table.
    assert_eq!(events.next().await, PauseEvent::Ended { key: a, is_over: true });
    assert_eq!(Instant::now(), grown);
}

/// Nothing remains for 2 s, and no call waits: a slot within that time that was asked for before is none, one after it is, and one
/// that was asked for later counts already. A call that waits for its turn has asked long ago.
#[tokio::test(start_paused = true)]
async fn an_empty_count_takes_back_the_slots_that_were_asked_for() {
    let (pauses, now, checks) = (Pauses::default(), Instant::now(), [check("a")]);
    let turn = [check("a").with_turn(Turn::of_nobody())];
    let before = pauses.version();
    pauses.learn_count("a", 2 * SECOND);
    let asked = pauses.version();
    let is_taken_back = |checks: &[Check], millis, asked| {
        pauses.covering(checks, slot(now + Duration::from_millis(millis), asked)).is_some()
    };
    assert!(is_taken_back(&checks, 1999, before));
    assert!(!is_taken_back(&checks, 2000, before) && !is_taken_back(&checks, 1999, asked));
    assert!(!is_taken_back(&turn, 1999, before));
}
