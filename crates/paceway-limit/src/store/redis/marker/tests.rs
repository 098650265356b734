use super::*;
use rstest::rstest;
use tokio::time::advance;

fn markers() -> Arc<Markers> {
    Markers::new("shop", Counter::noop())
}

/// A call on `lane` is told `marker`; returns what it had said.
fn told(markers: &Markers, lane: &str, marker: &str) -> String {
    let expected = markers.expected(lane);
    markers.learn(lane, expected, Marker::parse(marker.as_bytes()).expect("a marker"));
    expected.to_string()
}

fn says(markers: &Markers, lane: &str) -> String {
    markers.expected(lane).to_string()
}

#[rstest]
#[case::of_one_server("", "shop:marker")]
#[case::of_a_hash_tag("account", "shop:{account}:marker")]
fn the_name_of_a_marker(#[case] lane: &str, #[case] name: &str) {
    assert_eq!(markers().key(lane), name);
}

#[rstest]
#[case::empty("")]
#[case::another_kind("X1700000000000000")]
#[case::no_instant("L")]
#[case::not_a_number("L17e14")]
#[case::a_sign("L+1700000000000000")]
#[case::too_long("L17000000000000000")]
fn what_is_no_marker(#[case] text: &str) {
    assert_eq!(Marker::parse(text.as_bytes()), None);
}

/// Whichever connections lead there.
#[test]
fn another_master_is_another_one_once() {
    let markers = markers();
    let said = ["a:1", "a:1", "b:1", "b:1", "a:1"].map(|master| markers.is_another(master));
    assert_eq!(said, [false, false, true, false, true]);
}

fn run(id: &str) -> Run {
    Run { id: id.into(), promoted_at: None, evicted: 0 }
}

#[test]
fn who_takes_the_place_of_another_is_a_doubt_once() {
    let markers = markers();
    told(&markers, "", "N5");
    let promoted = |at| Run { promoted_at: Some(at), ..run("one") };
    for (run, says_then) in [
        (run("one"), "N5"),
        (promoted(7), "N5?"),
        (promoted(7), "L9"),
        // What it followed is forgotten after an hour without replicas.
        (run("one"), "L9"),
        (promoted(8), "L9?"),
    ] {
        markers.meet("", &run, |_| true);
        assert_eq!(says(&markers, ""), says_then);
        if says_then == "N5?" {
            told(&markers, "", "L9");
        }
    }
}

/// A replica that nobody knew has the slots of a node that is lost.
#[test]
fn a_server_that_is_new_and_was_promoted_is_a_doubt() {
    let markers = markers();
    told(&markers, "a", "N5");
    markers.meet("10.0.0.2:6379", &run("two"), |_| true);
    assert_eq!(says(&markers, "a"), "N5", "a slot may move to a server that is new");
    let promoted = Run { promoted_at: Some(7), ..run("three") };
    markers.meet("10.0.0.3:6379", &promoted, |_| true);
    assert_eq!(says(&markers, "a"), "N5?");
}

#[test]
fn a_call_says_what_the_last_one_was_told_of_its_lane() {
    let markers = markers();
    assert_eq!(told(&markers, "", "N5"), "", "nothing is known at first");
    assert_eq!(told(&markers, "", "L7"), "N5");
    assert_eq!((says(&markers, ""), says(&markers, "a")), ("L7".into(), String::new()));
}

#[test]
fn another_run_of_a_server_is_a_doubt_until_a_call_that_said_so_is_answered() {
    let markers = markers();
    markers.meet("", &run("one"), |_| true);
    told(&markers, "", "N5");
    markers.meet("", &run("one"), |_| true);
    assert_eq!(says(&markers, ""), "N5", "the same run");
    let before = markers.expected("");
    markers.meet("", &run("two"), |_| true);
    markers.learn("", before, Marker { lost: true, at: 7 });
    assert_eq!(says(&markers, ""), "L7?", "an answer from before it settles nothing");
    assert_eq!(told(&markers, "", "L9"), "L7?");
    assert_eq!(says(&markers, ""), "L9");
}

#[test]
fn a_doubt_is_of_the_lanes_that_are_there() {
    let markers = markers();
    for lane in ["a", "b"] {
        told(&markers, lane, "N5");
    }
    for id in ["one", "two"] {
        markers.meet("10.0.0.1:6379", &run(id), |lane| lane == "a");
        markers.meet("10.0.0.2:6379", &run("three"), |lane| lane == "b");
    }
    assert_eq!((says(&markers, "a"), says(&markers, "b")), ("N5?".into(), "N5".into()));
}

#[tokio::test(start_paused = true)]
async fn once_a_day_a_call_says_that_the_marker_is_to_live_longer() {
    let markers = markers();
    told(&markers, "", "N5");
    for _ in 0..3 {
        assert_eq!(says(&markers, ""), "N5");
        advance(RENEWED).await;
        assert_eq!(says(&markers, ""), "N5+");
    }
}

/// Seen each second by each of two gateways, of which one is first: it is one loss.
#[tokio::test(start_paused = true)]
async fn evicted_keys_are_a_doubt_of_who_sees_them_first() {
    let [one, other] = [markers(), markers()];
    let evicting = |evicted| Run { evicted, ..run("one") };
    for markers in [&one, &other] {
        markers.meet("", &evicting(3), |_| true);
        told(markers, "", "N5");
        markers.look("", &evicting(3), |_| true);
        assert_eq!(says(markers, ""), "N5");
    }
    advance(Duration::from_secs(1)).await;
    one.look("", &evicting(4), |_| true);
    assert_eq!(told(&one, "", "L7"), "N5?");
    assert_eq!(told(&other, "", "L7"), "N5");
    other.look("", &evicting(4), |_| true);
    advance(AGAIN).await;
    for markers in [&one, &other] {
        markers.look("", &evicting(4), |_| true);
        assert_eq!(says(markers, ""), "L7");
    }
}

/// A server that evicts all the time.
#[tokio::test(start_paused = true)]
async fn evicted_keys_are_another_loss_after_a_while() {
    let (markers, mut losses) = (markers(), 0);
    markers.meet("", &run("one"), |_| true);
    told(&markers, "", "N5");
    for second in 1..=60 {
        advance(Duration::from_secs(1)).await;
        markers.look("", &Run { evicted: second, ..run("one") }, |_| true);
        if says(&markers, "").ends_with('?') {
            losses += 1;
            told(&markers, "", &format!("L{second}"));
        }
    }
    assert_eq!(losses, 6);
}

#[test]
fn what_another_run_has_evicted_says_nothing_of_this_one() {
    let markers = markers();
    markers.look("", &Run { evicted: 9, ..run("one") }, |_| true);
    assert!(!markers.knows(""), "only a connection says which run there is");
    markers.meet("", &run("two"), |_| true);
    told(&markers, "", "N5");
    markers.look("", &Run { evicted: 9, ..run("one") }, |_| true);
    assert_eq!((says(&markers, "").as_str(), markers.knows("")), ("N5", true));
}
