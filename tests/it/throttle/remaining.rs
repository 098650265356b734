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

/// The upstream has refused a call, so that other programs use its quota. An answer that says that nothing remains pauses the
/// limiter before the next call is refused. Without a refusal our own calls have used the quota up.
#[rstest]
#[case::after_a_refusal(true, "upstream-throttled")]
#[case::alone(false, "quota-exceeded")]
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_used_up_by_other_programs_pauses_the_limiter(
    #[case] refuses: bool,
    #[case] code: &str,
) {
    let remaining = |left| reply("200 OK", &[("X-RateLimit-Remaining", left)], "ok");
    let first = if refuses { too_many("1") } else { remaining("5") };
    let upstream = scripted([first, remaining("3"), remaining("0")]).await;
    let limiters = "quota: { rate: 10/min }";
    let gateway = gateway_on(None, &upstream, ("", limiters, ", limiters: [quota]")).await;
    assert_eq!(gateway.get("/first").await.status, if refuses { 429 } else { 200 });
    // Ends the pause of the refusal.
    assert_eq!(gateway.admin_request(request("DELETE", "/limiters/quota", &[])).await.status, 200);
    for _ in 0..2 {
        assert_eq!(gateway.get("/next").await.status, 200);
    }
    let reason = "the upstream says that its quota is used up";
    eventually("the consequence", async || {
        let limiter = gateway.limiter("quota").await;
        match refuses {
            true => limiter["pause_reason"] == reason,
            // The store learns a further value 50 ms after the first one.
            false => limiter["level"] == 0,
        }
        .then_some(())
    })
    .await;
    let refused = gateway.get("/last").await;
    assert_eq!((refused.status, &refused.json()["code"]), (429, &code.into()));
    assert_eq!(upstream.calls().len(), 3);
}

/// An hour's window would stay full after the upstream has begun a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_is_not_filled_for_longer_than_the_upstreams() {
    let fields =
        [("X-RateLimit-Limit", "10"), ("X-RateLimit-Remaining", "1"), ("X-RateLimit-Reset", "5")];
    let upstream = scripted([reply("200 OK", &fields, "ok")]).await;
    let limiters = "quota: { algorithm: sliding_window, rate: 10/hour }";
    let gateway = gateway_on(None, &upstream, ("", limiters, ", limiters: [quota]")).await;
    for _ in 0..10 {
        assert_eq!(gateway.get("/next").await.status, 200);
    }
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
