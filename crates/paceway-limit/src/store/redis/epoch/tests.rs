use super::*;
use rstest::rstest;
use tokio::time::advance;

fn epochs() -> Arc<Epochs> {
    Epochs::new("shop", Counter::noop())
}

/// The script reports the epoch `reported` to a call on `lane`; returns what the call had expected.
fn reported(epochs: &Epochs, lane: &str, epoch: &str) -> String {
    let expected = epochs.expected(lane);
    epochs.learn(lane, expected, Epoch::parse(epoch.as_bytes()).expect("an epoch"));
    expected.word()
}

fn says(epochs: &Epochs, lane: &str) -> String {
    epochs.expected(lane).word()
}

#[rstest]
#[case::of_one_server("", "shop:marker")]
#[case::of_a_hash_tag("account", "shop:{account}:marker")]
fn an_epoch_key_has_a_name_per_prefix_and_lane(#[case] lane: &str, #[case] name: &str) {
    assert_eq!(epochs().key(lane), name);
}

#[rstest]
#[case::empty("")]
#[case::another_kind("X1700000000000000")]
#[case::no_instant("L")]
#[case::not_a_number("L17e14")]
#[case::a_sign("L+1700000000000000")]
#[case::too_long("L17000000000000000")]
#[case::half_a_step("L1700000000000000/5")]
#[case::a_step_and_more("L1700000000000000/5/6/7")]
#[case::an_empty_step("L1700000000000000//6")]
fn refuses_texts_that_are_no_epoch(#[case] text: &str) {
    assert_eq!(Epoch::parse(text.as_bytes()), None);
}

/// Connections of several workers report the same master.
#[test]
fn a_new_master_raises_one_doubt() {
    let epochs = epochs();
    let said = ["a:1", "a:1", "b:1", "b:1", "a:1"].map(|master| epochs.is_another(master));
    assert_eq!(said, [false, false, true, false, true]);
}

fn run(id: &str) -> ServerRun {
    ServerRun { id: id.into(), promoted_at: None, evicted: 0 }
}

#[test]
fn a_promoted_replica_raises_one_doubt() {
    let epochs = epochs();
    reported(&epochs, "", "N5");
    let promoted = |at| ServerRun { promoted_at: Some(at), ..run("one") };
    for (run, says_then) in [
        (run("one"), "N5"),
        (promoted(7), "N5?"),
        (promoted(7), "L9"),
        // A server without replicas forgets after an hour which one it had followed.
        (run("one"), "L9"),
        (promoted(8), "L9?"),
    ] {
        epochs.meet("", &run, |_| true);
        assert_eq!(says(&epochs, ""), says_then);
        if says_then == "N5?" {
            reported(&epochs, "", "L9");
        }
    }
}

/// An unknown replica has taken over the slots of a node that is lost.
#[test]
fn a_new_promoted_server_raises_a_doubt() {
    let epochs = epochs();
    reported(&epochs, "a", "N5");
    epochs.meet("10.0.0.2:6379", &run("two"), |_| true);
    assert_eq!(says(&epochs, "a"), "N5", "a slot may move to a server that is new");
    let promoted = ServerRun { promoted_at: Some(7), ..run("three") };
    epochs.meet("10.0.0.3:6379", &promoted, |_| true);
    assert_eq!(says(&epochs, "a"), "N5?");
}

#[test]
fn a_call_sends_the_last_epoch_of_its_lane() {
    let epochs = epochs();
    assert_eq!(reported(&epochs, "", "N5"), "", "nothing is known at first");
    assert_eq!(reported(&epochs, "", "L7"), "N5");
    assert_eq!((says(&epochs, ""), says(&epochs, "a")), ("L7".into(), String::new()));
}

#[test]
fn a_restarted_server_is_doubted_until_a_doubting_call_succeeds() {
    let epochs = epochs();
    epochs.meet("", &run("one"), |_| true);
    reported(&epochs, "", "N5");
    epochs.meet("", &run("one"), |_| true);
    assert_eq!(says(&epochs, ""), "N5", "the same run");
    let before = epochs.expected("");
    epochs.meet("", &run("two"), |_| true);
    epochs.learn("", before, Epoch { lost: true, at: 7, set_back: None });
    assert_eq!(says(&epochs, ""), "L7?", "an answer from before it settles nothing");
    assert_eq!(reported(&epochs, "", "L9"), "L7?");
    assert_eq!(says(&epochs, ""), "L9");
}

#[test]
fn a_doubt_concerns_only_the_lanes_of_its_server() {
    let epochs = epochs();
    for lane in ["a", "b"] {
        reported(&epochs, lane, "N5");
    }
    for id in ["one", "two"] {
        epochs.meet("10.0.0.1:6379", &run(id), |lane| lane == "a");
        epochs.meet("10.0.0.2:6379", &run("three"), |lane| lane == "b");
    }
    assert_eq!((says(&epochs, "a"), says(&epochs, "b")), ("N5?".into(), "N5".into()));
}

#[tokio::test(start_paused = true)]
async fn a_call_renews_the_epoch_once_a_day() {
    let epochs = epochs();
    reported(&epochs, "", "N5");
    for _ in 0..3 {
        assert_eq!(says(&epochs, ""), "N5");
        advance(RENEWED).await;
        assert_eq!(says(&epochs, ""), "N5+");
    }
}

/// Two gateways ask each second, and the first to see the evicted keys reports the loss: it is one loss.
#[tokio::test(start_paused = true)]
async fn the_first_gateway_to_see_evictions_raises_the_doubt() {
    let [one, other] = [epochs(), epochs()];
    let evicting = |evicted| ServerRun { evicted, ..run("one") };
    for epochs in [&one, &other] {
        epochs.meet("", &evicting(3), |_| true);
        reported(epochs, "", "N5");
        epochs.look("", &evicting(3), |_| true);
        assert_eq!(says(epochs, ""), "N5");
    }
    advance(Duration::from_secs(1)).await;
    one.look("", &evicting(4), |_| true);
    assert_eq!(reported(&one, "", "L7"), "N5?");
    assert_eq!(reported(&other, "", "L7"), "N5");
    other.look("", &evicting(4), |_| true);
    advance(AGAIN).await;
    for epochs in [&one, &other] {
        epochs.look("", &evicting(4), |_| true);
        assert_eq!(says(epochs, ""), "L7");
    }
}

/// A server that evicts keys all the time costs one loss in 10 s.
#[tokio::test(start_paused = true)]
async fn later_evictions_are_another_loss() {
    let (epochs, mut losses) = (epochs(), 0);
    epochs.meet("", &run("one"), |_| true);
    reported(&epochs, "", "N5");
    for second in 1..=60 {
        advance(Duration::from_secs(1)).await;
        epochs.look("", &ServerRun { evicted: second, ..run("one") }, |_| true);
        if says(&epochs, "").ends_with('?') {
            losses += 1;
            reported(&epochs, "", &format!("L{second}"));
        }
    }
    assert_eq!(losses, 6);
}

#[test]
fn evictions_of_an_earlier_run_raise_no_doubt() {
    let epochs = epochs();
    epochs.look("", &ServerRun { evicted: 9, ..run("one") }, |_| true);
    assert!(!epochs.knows(""), "only a connection says which run there is");
    epochs.meet("", &run("two"), |_| true);
    reported(&epochs, "", "N5");
    epochs.look("", &ServerRun { evicted: 9, ..run("one") }, |_| true);
    assert_eq!((says(&epochs, "").as_str(), epochs.knows("")), ("N5", true));
}

/// The store's clock was set back by 60 s: calls expect that, and no state was lost by it. It follows the server's again by a
/// hundredth of the time that passes.
#[test]
fn a_clock_that_was_set_back_counts_as_no_loss() {
    let epochs = epochs();
    reported(&epochs, "", "L5");
    let losses = epochs.reported.found();
    assert_eq!(epochs.expected("").seen, 0);
    epochs.see("", 100);
    epochs.see("", 90);
    assert_eq!((epochs.expected("").seen, says(&epochs, "")), (100, "L5".into()));
    reported(&epochs, "", "L5/60000000/1000");
    assert_eq!(says(&epochs, ""), "L5/60000000/1000");
    assert!(!losses.has_changed().expect("a sender"));
    assert_eq!(epochs.see_server(1_000), 60_001_000);
    assert_eq!(epochs.see_server(100_001_000), 159_001_000);
    assert_eq!(epochs.expected("").seen, 159_001_000);
    assert_eq!(epochs.see_server(10_000_000_000), 10_000_000_000);
}
