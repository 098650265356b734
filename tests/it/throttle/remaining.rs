//! Quotas whose rest the upstream reports: a limiter is lowered to it, and never raised.

use super::*;

/// The answers to 12 calls at once after one answer with these headers, of a limiter of 10/h.
async fn passed(throttle: &str, fields: &[(&str, &str)]) -> usize {
    let upstream = scripted([reply("200 OK", fields, "ok")]).await;
    let limiters = "quota: { rate: 10/hour }";
    let gateway = gateway_on(None, &upstream, (throttle, limiters, ", limiters: [quota]")).await;
    assert_eq!(gateway.get("/first").await.status, 200);
    let mut passed = 0;
    for _ in 0..12 {
        passed += usize::from(gateway.get("/next").await.status == 200);
    }
    passed
}

#[rstest]
#[case::less("", &[("X-RateLimit-Limit", "10"), ("X-RateLimit-Remaining", "3")], 3)]
#[case::nothing("", &[("X-RateLimit-Remaining", "0")], 0)]
#[case::draft("", &[("RateLimit-Policy", "\"a\";q=10;w=3600"), ("RateLimit", "\"a\";r=2;t=30")], 2)]
#[case::more("", &[("X-RateLimit-Limit", "100"), ("X-RateLimit-Remaining", "99")], 9)]
#[case::of_another_quota("", &[("X-RateLimit-Limit", "5000"), ("X-RateLimit-Remaining", "1")], 9)]
#[case::negative("", &[("X-RateLimit-Remaining", "-1")], 9)]
#[case::not_a_number("", &[("X-RateLimit-Remaining", "NaN")], 9)]
#[case::cached("", &[("X-RateLimit-Remaining", "3"), ("Age", "60")], 9)]
#[case::learning_is_off(", throttle: { learn: off }", &[("X-RateLimit-Remaining", "3")], 9)]
#[case::off(", throttle: off", &[("X-RateLimit-Remaining", "3")], 9)]
#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_is_lowered_to_the_remaining_quota(
    #[case] throttle: &str,
    #[case] fields: &[(&str, &str)],
    #[case] expected: usize,
) {
    assert_eq!(passed(throttle, fields).await, expected);
}

/// Other programs have used the quota up: nothing is left, until the permits of the limiter come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_used_up_by_other_programs_empties_the_limiter() {
    let remaining = |left| reply("200 OK", &[("X-RateLimit-Remaining", left)], "ok");
    let upstream = scripted([remaining("5"), remaining("3"), remaining("0")]).await;
    let limiters = "quota: { rate: 10/min }";
    let gateway = gateway_on(None, &upstream, ("", limiters, ", limiters: [quota]")).await;
    for _ in 0..3 {
        assert_eq!(gateway.get("/next").await.status, 200);
    }
    // The store learns a further value 50 ms after the first one.
    eventually("the level is lowered", async || {
        (gateway.limiter("quota").await["level"] == 0).then_some(())
    })
    .await;
    let refused = gateway.get("/last").await;
    assert_eq!((refused.status, &refused.json()["code"]), (429, &"quota-exceeded".into()));
    assert_eq!(upstream.calls().len(), 3);
}

/// "One remains, reset in 2 s" of 10 an hour: one passes until then. An hour's window would stay full after the upstream has
/// begun a new one, so the rule alone holds afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_is_not_filled_for_longer_than_that_of_the_upstream() {
    let fields =
        [("X-RateLimit-Limit", "10"), ("X-RateLimit-Remaining", "1"), ("X-RateLimit-Reset", "2")];
    let upstream =
        scripted([reply("200 OK", &fields, "ok"), reply("200 OK", &[], "nothing more")]).await;
    let limiters = "quota: { algorithm: sliding_window, rate: 10/hour }";
    let gateway = gateway_on(None, &upstream, ("", limiters, ", limiters: [quota]")).await;
    let began = Instant::now();
    for passes in [true, true, false] {
        let answer = gateway.get("/next").await;
        // A machine that takes 2 s for three requests shows nothing.
        assert!((answer.status == 200) == passes || began.elapsed() > Duration::from_secs(2));
    }
    let passes = async || (gateway.get("/next").await.status == 200).then_some(());
    eventually("the new window", passes).await;
    for _ in 3..10 {
        assert_eq!(gateway.get("/next").await.status, 200);
    }
    assert_eq!(gateway.get("/next").await.status, 429);
}

/// "5 remain, reset in 4 s": of 20 calls that may wait for 2 s, and of those that wait already, five are sent by then.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_more_calls_are_sent_than_remain_until_the_reset(
    #[values("token_bucket", "sliding_window", "fixed_window", "leaky_bucket")] algorithm: &str,
    #[values(false, true)] waits: bool,
) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let fields =
        [("X-RateLimit-Limit", "50"), ("X-RateLimit-Remaining", "5"), ("X-RateLimit-Reset", "8")];
    let first = reply("200 OK", &fields, "ok").behind(&gate);
    let upstream = scripted([first, reply("200 OK", &[], "nothing more")]).await;
    let rate = if waits { "50/10s, burst: 1" } else { "50/10s" };
    let shape = if waits { "token_bucket" } else { algorithm };
    let limiters = format!("quota: {{ algorithm: {shape}, rate: {rate} }}");
    let route = ", max_wait: 5s, limiters: [quota]";
    let gateway = gateway_on(None, &upstream, ("", &limiters, route)).await;
    let mut first = gateway.ask("/first", &[]).await;
    eventually("the first call", async || (upstream.calls().len() == 1).then_some(())).await;
    if !waits {
        gate.add_permits(1);
        assert_eq!(first.answer().await.expect("an answer").status, 200);
    }
    let (mut asked, began) = (Vec::new(), Instant::now());
    for _ in 0..20 {
        asked.push(gateway.ask("/next", &[]).await);
    }
    if waits {
        gate.add_permits(1);
        assert_eq!(first.answer().await.expect("an answer").status, 200);
    }
    // Slots are 200 ms apart. Those before the answer came were sent.
    let before = began.elapsed().as_millis().div_ceil(200) as usize;
    let mut passed = 0;
    for mut call in asked {
        passed += usize::from(call.answer().await.expect("an answer").status == 200);
    }
    assert!(passed == 5 || waits && passed <= before, "{passed} and {before}");
}

/// The answer to the first call comes after the one to the second. If both have the same key, it knows less. With other keys
/// it is the newest.
#[rstest]
#[case::of_the_same_key("a", 8)]
#[case::of_another_key("b", 2)]
#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_answer_changes_nothing(#[case] second: &str, #[case] left: usize) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let remaining = |left| reply("200 OK", &[("X-RateLimit-Remaining", left)], "ok");
    let upstream = scripted([remaining("2").behind(&gate), remaining("8")]).await;
    let status = async |gateway: &Gateway, target: &str, shop: &str| {
        let mut asked = gateway.ask(target, &[("X-Shop", shop)]).await;
        asked.answer().await.expect("an answer").status
    };
    let limiters = r#"quota: { rate: 10/hour, key: "{header.x-shop}" }"#;
    let gateway = gateway_on(None, &upstream, ("", limiters, ", limiters: [quota]")).await;
    let mut first = gateway.ask("/first", &[("X-Shop", "a")]).await;
    eventually("the first call", async || (upstream.calls().len() == 1).then_some(())).await;
    assert_eq!(status(&gateway, "/second", second).await, 200);
    gate.add_permits(1);
    assert_eq!(first.answer().await.expect("an answer").status, 200);
    let mut passed = 0;
    for _ in 0..12 {
        passed += usize::from(status(&gateway, "/next", "a").await == 200);
    }
    assert_eq!(passed, left);
}

/// An answer does not count the calls that were sent after its own: it says 5, and two more are under way. The cost of a call
/// is what counts.
#[rstest]
#[case::of_one_permit("quota", 3)]
#[case::of_two_permits("{ limiter: quota, cost: 2 }", 1)]
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_were_sent_later_are_deducted(#[case] limiter: &str, #[case] left: i64) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (first, last) = (gate.clone(), Arc::new(tokio::sync::Semaphore::new(0)));
    let remaining = |left| reply("200 OK", &[("X-RateLimit-Remaining", left)], "ok");
    let later = || remaining("0").behind(&last);
    let upstream =
        scripted([remaining("19"), remaining("5").behind(&first), later(), later()]).await;
    let limiters = "quota: { rate: 20/hour }";
    let route = format!(", limiters: [{limiter}]");
    let gateway = gateway_on(None, &upstream, ("", limiters, &route)).await;
    assert_eq!(gateway.get("/known").await.status, 200);
    let mut asked = Vec::new();
    for calls in 2..5 {
        asked.push(gateway.ask("/held", &[]).await);
        let is_sent = async || (upstream.calls().len() == calls).then_some(());
        eventually("it is sent", is_sent).await;
    }
    gate.add_permits(1);
    assert_eq!(asked[0].answer().await.expect("an answer").status, 200);
    eventually("the level is lowered", async || {
        (gateway.limiter("quota").await["level"] == left).then_some(())
    })
    .await;
}
