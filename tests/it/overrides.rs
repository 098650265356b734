//! Overrides by operators, on real gateways over a real Redis and in one process.

use crate::support::{Conn, Gateway, Redis, Upstream, eventually, paceway, request};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

async fn call(gateway: &Gateway, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len().to_string();
    let mut conn = Conn::to(gateway.admin).await.expect("connect");
    let head = request(method, path, &[("Content-Length", &length)]);
    conn.send(head + &body).await.expect("send");
    let answer = conn.answer().await.expect("a whole answer");
    let text = answer.text();
    (answer.status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

async fn put(gateway: &Gateway, path: &str, body: Value) -> Value {
    let (status, said) = call(gateway, "PUT", path, &body).await;
    assert_eq!(status, 200, "{path} {body}: {said}");
    said
}

async fn delete(gateway: &Gateway, path: &str) {
    let (status, said) = call(gateway, "DELETE", path, &Value::Null).await;
    assert_eq!((status, &said), (200, &json!({ "removed": true })), "{path}");
}

fn config(store: &str, upstream: &Upstream) -> String {
    format!(
        "store: {store}\nupstream: {}\nlimiters:\n  a: {{ rate: 1000/s, burst: 1000 }}\n  list: [10/s, 500/min]\n  \
         keyed: {{ rate: 1000/s, key: \"{{header.x-shop}}\" }}\n  idle: {{ rate: 5/s, mode: off }}\n  \
         places: {{ algorithm: concurrency, max: 4 }}\nroutes:\n\
         - {{ suffix: /a, limiters: [a] }}\n- {{ suffix: /wait, limiters: [a], max_wait: 1h }}\n\
         - {{ suffix: /keyed, limiters: [keyed] }}\n- {{ suffix: /list, limiters: [list] }}\n\
         - {{ suffix: /idle, limiters: [idle] }}\n- {{ suffix: /places, limiters: [places] }}\n",
        upstream.url()
    )
}

/// Waits until each gateway shows the limiter as `is_it` wants.
async fn all_show(gateways: &[&Gateway], name: &str, is_it: impl Fn(&Value) -> bool) {
    for gateway in gateways {
        eventually("every gateway follows", async || {
            is_it(&gateway.limiter(name).await).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_holds_for_the_fleet_through_kills_and_outages() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&format!("{{ url: \"{}\", timeout: 2s }}", redis.url()), &upstream);
    let mut first = Gateway::start(&yaml).await;
    let (second, third) = (Gateway::start(&yaml).await, Gateway::start(&yaml).await);
    let reason = "vendor asked";
    let rate = json!({ "rate": "3/h", "for": "1h", "reason": reason });
    let said = put(&first, "/limiters/keyed/override", rate).await;
    assert_eq!(
        (&said["override"]["rate"], &said["override"]["by"]),
        (&json!("3/h"), &json!("127.0.0.1"))
    );
    all_show(&[&first, &second, &third], "keyed", |limiter| {
        limiter["rate"] == "3/h" && limiter["override"]["reason"] == reason
    })
    .await;
    let ask = async |gateway: &Gateway, path: &str| {
        let mut conn = gateway.ask(path, &[("X-Shop", "acme")]).await;
        conn.answer().await.expect("an answer").status
    };
    let asked = [&second, &third, &first, &second];
    let mut answers = Vec::new();
    for gateway in asked {
        answers.push(ask(gateway, "/keyed").await);
    }
    assert_eq!(answers, [200, 200, 200, 429], "3/h for all of them together");

    // A pause of a limiter with one bucket, and of one with keys that have no state yet.
    let pause = json!({ "pause": true, "for": "1h", "reason": reason });
    put(&first, "/limiters/a/override", pause.clone()).await;
    put(&first, "/limiters/keyed/override", pause.clone()).await;
    for gateway in [&second, &third] {
        let refused = gateway.until_answered("/a", 429).await;
        let retry = refused.head.all("retry-after").join(" ").parse::<u64>().expect("seconds");
        assert!((3500..=3600).contains(&retry), "{retry}");
        assert_eq!(refused.head.all("paceway-origin").len(), 1);
        eventually("new keys are paused", async || {
            (ask(gateway, "/keyed").await == 429).then_some(())
        })
        .await;
        let shown = gateway.limiter("a").await;
        assert_eq!(shown["pause_reason"], json!(format!("an operator: {reason}")), "{shown}");
        assert!(shown["paused_ms"].as_f64() > Some(3_500_000.0), "{shown}");
        let (_, said) = call(gateway, "POST", "/limiters/a/acquire", &Value::Null).await;
        assert_eq!(said["limited"], true, "{said}");
    }
    let calls = upstream.calls().len();
    let mut waits = second.ask("/wait", &[]).await;
    second.until_waiting("/wait", 1).await;

    // The gateway that set it is gone; one that starts knows it before its first request.
    first.signal("KILL");
    first.end().await;
    let fourth = Gateway::start(&yaml).await;
    assert_eq!(fourth.get("/a").await.status, 429);
    assert_eq!(fourth.limiter("keyed").await["override"]["pause"], true);
    assert_eq!(upstream.calls().len(), calls, "the upstream has rest");

    delete(&third, "/limiters/a/override").await;
    assert_eq!(waits.answer().await.expect("an answer").status, 200, "it waited for the release");
    for gateway in [&second, &fourth] {
        gateway.until_answered("/a", 200).await;
        assert_eq!(gateway.limiter("a").await["override"], Value::Null);
        assert_eq!(ask(gateway, "/keyed").await, 429, "the other override stays");
    }

    // Without the store, a gateway keeps what it knows and changes nothing.
    put(&fourth, "/limiters/a/override", pause).await;
    all_show(&[&second, &third], "a", |limiter| limiter["override"]["pause"] == true).await;
    redis.kill();
    eventually("the store is away", async || {
        let (status, _) = call(&third, "DELETE", "/limiters/a/override", &Value::Null).await;
        (status == 503).then_some(())
    })
    .await;
    assert_eq!(third.get("/a").await.status, 429);
    assert_eq!(third.limiter("a").await["override"]["reason"], reason);

    // A store that comes back without its data gets the overrides back.
    redis.start_again();
    eventually("the table is there again", async || {
        redis.keys().iter().any(|key| key == "paceway:overrides").then_some(())
    })
    .await;
    let fifth = Gateway::start(&yaml).await;
    assert_eq!(fifth.limiter("a").await["override"]["reason"], reason);
    eventually("the store is asked again", async || {
        let (status, _) = call(&third, "DELETE", "/limiters/a/override", &Value::Null).await;
        (status == 200).then_some(())
    })
    .await;
    all_show(&[&second, &fourth, &fifth], "a", |limiter| limiter["override"].is_null()).await;

    // All of it, at once.
    put(&third, "/limiting", json!({ "limiting": "off", "for": "1h", "reason": reason })).await;
    eventually("nothing is limited", async || (ask(&second, "/keyed").await == 200).then_some(()))
        .await;
    let page = second.page("/limiters").await.json();
    assert_eq!(
        (&page["limiting"], &page["limiting_override"]["reason"]),
        (&json!(false), &json!(reason))
    );
    delete(&fourth, "/limiting").await;
    eventually("limits hold again", async || (ask(&second, "/keyed").await == 429).then_some(()))
        .await;
    // A rate and a pause of `keyed`, two pauses of `a`, and the switch.
    eventually("all of it is logged", async || {
        let lines = second.events();
        let line = |message: &str| lines.iter().filter(|line| line["message"] == message).count();
        let counts = (line("an override takes effect"), line("an override has ended"));
        (counts == (5, 3)).then_some(())
    })
    .await;
}

/// The frozen gateway writes the table that it knows into a store that has lost it, before the others do.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_override_does_not_come_back_from_a_gateway_that_was_frozen() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&format!("{{ url: \"{}\", timeout: 2s }}", redis.url()), &upstream);
    let (first, second) = (Gateway::start(&yaml).await, Gateway::start(&yaml).await);
    let frozen = Gateway::start(&yaml).await;
    for name in ["a", "keyed"] {
        let rate = json!({ "rate": "5/s", "for": "1h", "reason": "vendor asked" });
        put(&first, &format!("/limiters/{name}/override"), rate).await;
        all_show(&[&first, &second, &frozen], name, |limiter| limiter["rate"] == "5/s").await;
    }
    frozen.signal("STOP");
    delete(&first, "/limiters/a/override").await;
    all_show(&[&first, &second], "a", |limiter| limiter["override"].is_null()).await;
    first.signal("STOP");
    second.signal("STOP");
    redis.command(&["FLUSHALL"]);
    frozen.signal("CONT");
    eventually("the frozen gateway writes what it knows", async || {
        redis.keys().iter().any(|key| key == "paceway:overrides").then_some(())
    })
    .await;
    first.signal("CONT");
    second.signal("CONT");
    let all = [&frozen, &first, &second];
    all_show(&all, "a", |limiter| limiter["override"].is_null()).await;
    // The other override stays, and so does a store that the others have written first.
    all_show(&all, "keyed", |limiter| limiter["rate"] == "5/s").await;
    redis.command(&["FLUSHALL"]);
    eventually("the table is there again", async || {
        redis.keys().iter().any(|key| key == "paceway:overrides").then_some(())
    })
    .await;
    let fresh = Gateway::start(&yaml).await;
    assert_eq!(fresh.limiter("a").await["override"], Value::Null);
    assert_eq!(fresh.limiter("keyed").await["rate"], "5/s");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_expires_and_replaces_only_the_named_keys() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config("memory", &upstream)).await;
    let started = Instant::now();
    let change = json!({ "rate": "1/h", "mode": "observe", "for": "1s", "reason": "a try" });
    put(&gateway, "/limiters/a/override", change).await;
    let shown = gateway.limiter("a").await;
    assert_eq!(
        (&shown["rate"], &shown["mode"], &shown["burst"]),
        (&json!("1/h"), &json!("observe"), &json!(1000)),
        "{shown}"
    );
    all_show(&[&gateway], "a", |limiter| {
        limiter["rate"] == "1000/s" && limiter["mode"] == "enforce"
    })
    .await;
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(gateway.limiter("a").await["override"], Value::Null);

    // A request that waits through a pause is sent when it ends.
    let pause = json!({ "pause": true, "for": "500ms", "reason": "a try" });
    put(&gateway, "/limiters/a/override", pause).await;
    let asked = Instant::now();
    let answer = gateway.get("/wait").await;
    assert_eq!(answer.status, 200);
    assert!(answer.at.duration_since(asked) >= Duration::from_millis(400));

    let list = json!({ "rate": ["2/s", "50/min"], "for": "1h", "reason": "a try" });
    put(&gateway, "/limiters/list/override", list).await;
    assert_eq!(gateway.limiter("list").await["rate"], json!(["2/s", "50/min"]));
    // A pause replaces the override before it.
    put(&gateway, "/limiters/list/override", json!({ "pause": true, "for": "1h", "reason": "b" }))
        .await;
    assert_eq!(gateway.limiter("list").await["rate"], json!(["10/s", "500/min"]));
    put(
        &gateway,
        "/limiters/places/override",
        json!({ "pause": true, "for": "1h", "reason": "b" }),
    )
    .await;
    assert_eq!(gateway.get("/places").await.status, 429);
    delete(&gateway, "/limiters/places/override").await;
    assert_eq!(gateway.get("/places").await.status, 200);
    let (_, said) = call(&gateway, "DELETE", "/limiters/places/override", &Value::Null).await;
    assert_eq!(said, json!({ "removed": false }));
}

/// The upstream has refused nothing, and is not the place to look for the cause.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_by_an_operator_has_its_own_code_and_outcome() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config("memory", &upstream)).await;
    let pause = json!({ "pause": true, "for": "1h", "reason": "a try" });
    for (path, limiter) in
        [("/a", "a"), ("/list", "list"), ("/places", "places"), ("/keyed", "keyed")]
    {
        put(&gateway, &format!("/limiters/{limiter}/override"), pause.clone()).await;
        let refused = gateway.get(path).await;
        assert_eq!((refused.status, refused.problem().as_str()), (429, "paused"), "{refused:?}");
        let told = refused.json();
        assert_eq!(
            (&told["type"], &told["status"]),
            (&json!("urn:paceway:problem:paused"), &json!(429))
        );
        let detail = told["detail"].as_str().expect("a detail");
        assert!(detail.starts_with("an operator has paused the limiter"), "{detail}");
        assert!(refused.field("retry-after").is_some() && refused.field("ratelimit").is_some());
        assert_eq!(gateway.line(path).await["outcome"], "paused");
    }
    let count = gateway.metric("paceway_requests_total", &[("outcome", "paused")]).await;
    assert_eq!(count, 4.0);
    let (_, last) = call(&gateway, "GET", "/requests", &Value::Null).await;
    assert_eq!(last["requests"][0]["decision"], "paused", "{last}");
    let grpc = crate::grpc::answer(&gateway, crate::grpc::call("/a")).await;
    let fields = grpc.headers();
    assert_eq!(fields["grpc-status"], "8");
    assert!(fields["grpc-message"].to_str().is_ok_and(|said| said.starts_with("an operator")));
    assert_eq!(upstream.calls().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_override_is_refused_with_the_words_of_check() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config("memory", &upstream)).await;
    let rest = |mut change: Value| {
        change["for"] = "1h".into();
        change["reason"] = "a try".into();
        change
    };
    for (limiter, change, status, why) in [
        (
            "a",
            rest(json!({ "rate": "5/fortnight" })),
            422,
            "limiters.a.rate: `5/fortnight` has the unknown unit",
        ),
        ("a", rest(json!({ "rate": "fast" })), 422, "is not a rate"),
        (
            "a",
            rest(json!({ "mode": "of" })),
            422,
            "limiters.a.mode: `of` is not one of enforce, observe, off",
        ),
        ("places", rest(json!({ "rate": "2/s" })), 422, "belongs to the other algorithms"),
        ("list", rest(json!({ "rate": "2/s" })), 400, "this limiter has 2 rates, 10/s and 500/min"),
        ("idle", rest(json!({ "pause": true })), 400, "does not enforce"),
        ("a", rest(json!({ "speed": 1 })), 422, "unknown field `speed`"),
        ("a", rest(json!({})), 400, "name a change"),
        ("a", json!({ "pause": true, "reason": "a" }), 400, "`for` is missing"),
        ("a", json!({ "pause": true, "for": "10", "reason": "a" }), 400, "needs a unit"),
        ("a", json!({ "pause": true, "for": "400d", "reason": "a" }), 400, "366d"),
        ("a", json!({ "pause": true, "for": "1h" }), 400, "`reason` is missing"),
        ("a", json!({ "pause": true, "for": "1h", "reason": "a\nb" }), 400, "one line"),
        ("b", rest(json!({ "pause": true })), 404, "there is no such limiter"),
    ] {
        let path = format!("/limiters/{limiter}/override");
        let (said_status, said) = call(&gateway, "PUT", &path, &change).await;
        let detail = said["detail"].as_str().unwrap_or_default();
        assert_eq!(said_status, status, "{change}: {said}");
        assert!(detail.contains(why), "{change}: {detail}");
    }
    let wrong = json!({ "limiting": "maybe", "for": "1h", "reason": "a" });
    assert_eq!(call(&gateway, "PUT", "/limiting", &wrong).await.0, 400);
    let all = gateway.page("/limiters").await.json();
    let limiters = all["limiters"].as_array().expect("a list");
    assert!(limiters.iter().all(|limiter| limiter["override"].is_null()), "{all}");
    // It takes a moment until a page could show a late change.
    sleep(Duration::from_millis(600)).await;
    assert_eq!(gateway.get("/a").await.status, 200);
}

/// An override blocks no deployment: a new file takes effect, and what the override hides or cannot replace is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_takes_effect_while_overrides_hold() {
    let upstream = Upstream::ok().await;
    let file = |rate: &str, cost: u32| {
        format!(
            "watch: off\nupstream: {}\nlimiters: {{ a: {rate}, b: 10/s }}\n\
             routes: [{{ suffix: /a, limiters: [{{ limiter: a, cost: {cost} }}, b] }}]\n",
            upstream.url()
        )
    };
    let gateway = Gateway::start(&file("100/s", 1)).await;
    let change = |rate: &str| json!({ "rate": rate, "for": "1h", "reason": "vendor asked" });
    put(&gateway, "/limiters/a/override", change("2/s")).await;
    let reload = async |yaml: String| {
        gateway.rewrite(&yaml);
        let answer = gateway.reload().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    };

    // The override hides the new rate.
    let said = reload(file("200/s", 1)).await;
    assert_eq!((&said["changed"], &said["masked"]), (&json!(false), &json!(["a"])));
    assert_eq!(gateway.limiter("a").await["rate"], "2/s");
    assert_eq!(gateway.page("/readyz").await.json()["config"]["hash"], said["hash"]);

    // A cost that the override's rate could never pay: the file counts, and other overrides can be set.
    let said = reload(file("200/s", 5)).await;
    assert_eq!(said["changed"], true);
    let why = said["overrides_not_applied"][0]["why"].as_str().expect("a reason").to_owned();
    assert!(why.contains("a cost of 5 is more than `a` can ever give at once"), "{said}");
    let shown = gateway.limiter("a").await;
    assert_eq!((&shown["rate"], &shown["override"]["applied"]), (&json!("200/s"), &json!(false)));
    assert_eq!(shown["override"]["why"], why);
    let ready = gateway.page("/readyz").await.json();
    assert_eq!(ready["config"]["overrides_not_applied"][0]["limiter"], "a");
    put(&gateway, "/limiters/b/override", change("3/s")).await;
    assert_eq!(gateway.limiter("b").await["rate"], "3/s");
    let (status, said) = call(&gateway, "PUT", "/limiters/a/override", &change("4/s")).await;
    assert_eq!(status, 422, "{said}");
    let admin = gateway.admin.to_string();
    let output = paceway(&["reload", "--admin", &admin]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains(&format!("the override of a is not applied: {why}")), "{text}");

    let said = reload(file("200/s", 1)).await;
    assert_eq!((&said["changed"], &said["overrides_not_applied"]), (&json!(true), &json!([])));
    assert_eq!(gateway.limiter("a").await["rate"], "2/s", "it fits again");
}
