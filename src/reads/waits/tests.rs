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
        Joined::Follower(_) => panic!("another one is first"),
    }
}

fn follower(waits: &Arc<SharedWaits>) -> Follower {
    match join(waits, "a") {
        Joined::First(_) => panic!("no other one is first"),
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
    assert!(matches!(follower.phase(), GroupPhase::IsOver));
    assert!(matches!(join(&waits, "a"), Joined::Follower(_)));
    drop(second);
    assert!(waits.groups.lock().is_empty());
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
    let waits = Arc::<SharedWaits>::default();
    for (status, is_own) in [(200, true), (500, false)] {
        let mut one = first(&waits);
        let mut follower = follower(&waits);
        let head = Response::builder().status(status).header("set-cookie", "a=1");
        assert!(!one.hears(&head.body(()).expect("a head"), b"", true));
        drop(one);
        assert_eq!(matches!(follower.phase(), GroupPhase::IsItsOwn), is_own);
    }
}
