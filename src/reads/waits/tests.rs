//! Groups of identical reads, without requests.

use super::*;

fn identity(of: &str) -> Identity {
    super::super::Fingerprint::new([of.as_bytes()]).end()
}

fn join(waits: &Arc<SharedWaits>, of: &str) -> Joined {
    waits.join(identity(of), &HeaderMap::new())
}

fn first(waits: &Arc<SharedWaits>) -> Box<Lead> {
    match join(waits, "a") {
        Joined::First(lead) => lead,
        Joined::Follower(_) | Joined::Alone => panic!("another one is first"),
    }
}

fn follower(waits: &Arc<SharedWaits>) -> Follower {
    match join(waits, "a") {
        Joined::First(_) | Joined::Alone => panic!("no other one is first"),
        Joined::Follower(follower) => follower,
    }
}

#[test]
fn others_join_until_the_call_is_sent() {
    let waits = Arc::<SharedWaits>::default();
    let one = first(&waits);
    assert!(!one.has_followers());
    let mut follower = follower(&waits);
    assert!(one.has_followers());
    assert!(matches!(join(&waits, "b"), Joined::First(_)));
    one.sends();
    assert!(matches!(follower.phase(), GroupPhase::IsSent));
    let second = first(&waits);
    // The end of the first leaves the second group in its place.
    drop(one);
    assert!(matches!(follower.phase(), GroupPhase::IsOver(_)));
    assert!(matches!(join(&waits, "a"), Joined::Follower(_)));
    drop(second);
    assert!(waits.table.lock().groups.is_empty());
}

#[test]
fn followers_get_the_answer_without_the_id_of_the_first() {
    let waits = Arc::<SharedWaits>::default();
    let mut one = first(&waits);
    let mut follower = follower(&waits);
    let head = Response::builder().header("x-request-id", "own").body(()).expect("a head");
    assert!(one.hears(&head, b"own", false));
    let mut body = one.buffer();
    assert!(body.extend(b"it", MOST_SHARED));
    drop(one.answers(body));
    let GroupPhase::Answered(answer) = follower.phase() else { panic!("no answer") };
    assert_eq!((&*answer.body, answer.head.headers().len()), (&b"it"[..], 0));
    // The bytes count until no reader has them.
    let left = || waits.bound.left();
    assert!(left() < ALL_SHARED);
    drop((answer, follower));
    assert_eq!(left(), ALL_SHARED);
}

#[test]
fn an_answer_of_its_own_is_no_failure() {
    for (status, is_own) in [(200, true), (500, false)] {
        let waits = Arc::<SharedWaits>::default();
        let mut one = first(&waits);
        let mut follower = follower(&waits);
        let head = Response::builder().status(status).header("set-cookie", "a=1");
        assert!(!one.hears(&head.body(()).expect("a head"), b"", true));
        drop(one);
        assert_eq!(matches!(follower.phase(), GroupPhase::IsItsOwn), is_own);
    }
}

#[tokio::test(start_paused = true)]
async fn reads_ask_alone_for_a_minute_after_an_answer_that_others_could_not_have() {
    let waits = Arc::<SharedWaits>::default();
    let (one, _follower) = (first(&waits), follower(&waits));
    one.keeps_to_itself();
    assert!(matches!(join(&waits, "a"), Joined::Alone));
    assert!(matches!(join(&waits, "b"), Joined::First(_)));
    tokio::time::advance(ALONE_FOR).await;
    // No other read waits for this answer, which therefore tells nothing.
    first(&waits).keeps_to_itself();
    assert!(matches!(join(&waits, "a"), Joined::First(_)));
    assert!(waits.table.lock().alone.is_empty());
}

#[test]
fn the_table_of_reads_that_ask_alone_is_bounded() {
    let mut table = WaitTable::default();
    for i in 0..=MOST_ALONE {
        table.set_alone(identity(&i.to_string()));
    }
    assert_eq!(table.alone.len(), MOST_ALONE);
    assert!(!table.is_alone(identity("0")) && table.is_alone(identity("1")));
}

/// The first of them to ask again may be sent before another one knows of the failure.
#[test]
fn followers_of_a_read_without_an_answer_ask_again_as_one() {
    let waits = Arc::<SharedWaits>::default();
    let (one, mut followers) = (first(&waits), [(); 3].map(|()| follower(&waits)));
    one.sends();
    drop(one);
    let mut leads = Vec::new();
    for follower in &mut followers {
        let GroupPhase::IsOver(next) = follower.phase() else { panic!("not over") };
        match waits.join_next(identity("a"), next, &HeaderMap::new()) {
            Joined::First(lead) => {
                lead.sends();
                leads.push(lead);
            }
            Joined::Follower(mut follower) => {
                assert!(matches!(follower.phase(), GroupPhase::IsSent))
            }
            Joined::Alone => panic!("it asks alone"),
        }
    }
    assert_eq!(leads.len(), 1);
    drop(leads);
    assert!(waits.table.lock().groups.is_empty());
}
