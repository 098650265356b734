//! The accounts of an upstream as operators see them, and the switch by which they park one: pages, commands and the dashboard.

use crate::support::{
    Answer, Browser, Call, Gateway, Redis, Reply, Upstream, eventually, paceway, reply, request,
};
use rstest::rstest;
use serde_json::{Value, json};

/// The credentials of the accounts; no page may show them.
const SECRET: &str = "hunter2";

/// Two accounts with credentials, and a third one at `spare` for later.
fn config(upstream: &Upstream, spare: &Upstream, limiters: &str, more: &str) -> String {
    format!(
        "upstreams:\n  vendor:\n    url: {}\n    park_for: 10min\n    accounts:\n\
         \x20     - {{ name: bot-1, headers: {{ authorization: '{SECRET} bot-1' }} }}\n\
         \x20     - {{ name: bot-2, quota: org, headers: {{ authorization: '{SECRET} bot-2' }} }}\n\
         \x20     - {{ name: spare, url: '{}/v2', headers: {{ authorization: '{SECRET} spare' }}, after: 2s }}\n\
         \x20 plain: {{ url: {0} }}\n\
         limiters:\n  each: {{ rate: 10/hour, key: '{{account.quota}}' }}\n\
         \x20 shop: {{ rate: 100/hour, key: '{{account}}:{{header.x-shop}}' }}\n\
         routes:\n- {{ name: vendor, suffix: '*', upstream: vendor, limiters: [{limiters}], max_wait: 1s }}\n\
         - {{ name: plain, suffix: /plain, upstream: plain }}\n{more}\n",
        upstream.url(),
        spare.url(),
    )
}

/// The account that a call was sent with.
fn account(call: &Call) -> String {
    let credentials = call.head.get("authorization").unwrap_or_default();
    credentials.trim_start_matches(SECRET).trim().to_owned()
}

/// Sends a call for one shop.
async fn ask(gateway: &Gateway) -> Answer {
    let mut conn = gateway.ask("/", &[("X-Shop", "acme")]).await;
    conn.answer().await.expect("an answer")
}

/// The reason of a refusal.
fn detail(answer: &Answer) -> String {
    answer.json()["detail"].as_str().expect("a detail").to_owned()
}

async fn page(gateway: &Gateway) -> Value {
    let answer = gateway.page("/upstreams/vendor/accounts").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(!answer.text().contains(SECRET), "{}", answer.text());
    answer.json()
}

/// An account on its page.
fn named<'v>(page: &'v Value, name: &str) -> &'v Value {
    let all = page["accounts"].as_array().expect("accounts");
    all.iter().find(|account| account["name"] == name).expect("the account")
}

/// Waits until an account has this state on the page.
async fn until_state(gateway: &Gateway, name: &str, state: &str) -> Value {
    eventually(&format!("{name} is {state}"), async || {
        let page = page(gateway).await;
        let own = named(&page, name).clone();
        (own["state"] == state).then_some(own)
    })
    .await
}

/// Changes whether `bot-1` is parked.
async fn change(gateway: &Gateway, method: &str, body: &str, fields: &[(&str, &str)]) -> Answer {
    change_of(gateway, method, "/upstreams/vendor/accounts/bot-1/park", body, fields).await
}

async fn change_of(
    gateway: &Gateway,
    method: &str,
    target: &str,
    body: &str,
    fields: &[(&str, &str)],
) -> Answer {
    let length = body.len().to_string();
    let fields = [fields, &[("Content-Length", length.as_str())]].concat();
    gateway.admin_request(format!("{}{body}", request(method, target, &fields))).await
}

/// Runs a command against the admin side of a gateway; returns what it prints.
fn run(gateway: &Gateway, args: &[&str]) -> String {
    let admin = gateway.admin.to_string();
    let output = paceway(&[args, &["--admin", &admin]].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_the_rest_of_each_account(#[values(false, true)] is_redis: bool) {
    let redis = is_redis.then(Redis::start);
    let store =
        redis.as_ref().map(|redis| format!("store: {{ url: \"{}\", timeout: 5s }}", redis.url()));
    let (upstream, spare) = (Upstream::ok().await, Upstream::ok().await);
    let yaml = config(&upstream, &spare, "each, shop", &store.unwrap_or_default());
    let gateway = Gateway::start(&yaml).await;
    for _ in 0..6 {
        assert_eq!(ask(&gateway).await.status, 200);
    }
    let page = page(&gateway).await;
    let counted = |name: &str| upstream.calls().iter().filter(|call| account(call) == name).count();
    let mut parts = 0.0;
    for (name, quota) in [("bot-1", "bot-1"), ("bot-2", "org"), ("spare", "spare")] {
        let own = named(&page, name);
        let sent = counted(name);
        assert_eq!((&own["state"], &own["quota"]), (&json!("open"), &json!(quota)), "{page}");
        assert_eq!((&own["requests"], &own["requests_last_hour"]), (&json!(sent), &json!(sent)));
        let levels = own["limiters"].as_array().expect("limiters");
        let [level] = &levels[..] else { panic!("one limiter has one key for the account: {own}") };
        assert_eq!((&level["limiter"], &level["key"]), (&json!("each"), &json!(quota)));
        assert_eq!((&level["limit"], &level["level"]), (&json!(10), &json!(10 - sent)), "{own}");
        assert_eq!(level["next_slot_s"], 0.0);
        assert_eq!(own["after_s"], if name == "spare" { 2.0 } else { 0.0 });
        let url = (name == "spare").then(|| format!("{}/v2", spare.url()));
        assert_eq!(own["url"], json!(url), "{own}");
        parts += own["part_of_last_hour"].as_f64().expect("a part");
    }
    assert!((parts - 1.0).abs() < 0.01, "{page}");
    assert_eq!(counted("bot-1"), 3, "the account with most left is taken");

    let answer = gateway.page("/upstreams/vendors/accounts").await;
    let why = detail(&answer);
    assert_eq!(answer.status, 404, "{why}");
    assert!(
        why.contains("did you mean `vendor`?") && why.ends_with("there are: vendor, plain"),
        "{why}"
    );
    let answer = gateway.page("/upstreams/plain/accounts").await;
    assert_eq!((answer.status, detail(&answer).contains("has no accounts")), (400, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_an_operator_parks_rests_on_all_gateways() {
    let (redis, upstream, spare) =
        (Redis::that_is_heard(), Upstream::ok().await, Upstream::ok().await);
    let store = format!("store: {{ url: \"{}\", timeout: 5s }}", redis.url());
    let yaml = config(&upstream, &spare, "each", &store);
    let (first, second) = (Gateway::start(&yaml).await, Gateway::start(&yaml).await);
    let answer = change(&first, "PUT", "{\"for\": \"1h\"}", &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let said = answer.json();
    assert_eq!((&said["upstream"], &said["account"]), (&json!("vendor"), &json!("bot-1")));
    for gateway in [&first, &second] {
        let own = until_state(gateway, "bot-1", "parked").await;
        let left = own["parked_s"].as_f64().expect("a time");
        assert!((3500.0..=3600.0).contains(&left), "{own}");
        assert_eq!(own["parked_reason"], "an operator has parked it");
        for _ in 0..2 {
            assert_eq!(ask(gateway).await.status, 200);
        }
        let status = run(gateway, &["status"]);
        let line = status.lines().find(|line| line.starts_with("parked ")).expect("a line");
        assert!(line.contains("bot-1 of vendor: parked until 20"), "{line}");
    }
    let took: Vec<_> = upstream.calls().iter().map(account).collect();
    assert_eq!(took, ["bot-2"; 4]);
    let lines = first.events();
    let change_line = |message: &str| {
        lines.iter().any(|line| {
            line["message"] == message && line["account"] == "bot-1" && line["upstream"] == "vendor"
        })
    };
    assert!(change_line("an operator parks an account"), "{lines:?}");

    // A start while it is parked, too.
    let third = Gateway::start(&yaml).await;
    until_state(&third, "bot-1", "parked").await;

    let answer = change(&second, "DELETE", "", &[]).await;
    assert_eq!((answer.status, &answer.json()["unparked"]), (200, &json!(true)));
    assert_eq!(named(&page(&second).await, "bot-1")["state"], "open");
    for gateway in [&first, &second, &third] {
        eventually("bot-1 is used again", async || {
            let before = upstream.calls().len();
            assert_eq!(ask(gateway).await.status, 200);
            (account(&upstream.calls()[before]) == "bot-1").then_some(())
        })
        .await;
        until_state(gateway, "bot-1", "open").await;
        assert!(!run(gateway, &["status"]).contains("parked"));
    }
    let answer = change(&second, "DELETE", "", &[]).await;
    assert_eq!((answer.status, &answer.json()["unparked"]), (200, &json!(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_without_sense_names_the_remedy() {
    let (upstream, spare) = (Upstream::ok().await, Upstream::ok().await);
    let gateway = Gateway::start(&config(&upstream, &spare, "each", "")).await;
    for (body, status, expected) in [
        ("{\"for\": \"25h\"}", 400, "`for` must be at most 1d"),
        ("{\"for\": \"0s\"}", 400, "`for` must be at least 1ms"),
        ("{\"for\": \"soon\"}", 400, "write how long it lasts"),
        ("{\"until\": \"1h\"}", 422, "the body is no change such as {\"for\": \"1h\"}"),
        ("[]", 422, "the body is no change"),
    ] {
        let answer = change(&gateway, "PUT", body, &[]).await;
        let why = detail(&answer);
        assert_eq!(answer.status, status, "{why}");
        assert!(why.contains(expected), "{why}");
    }
    for method in ["PUT", "DELETE"] {
        for (target, status, expected) in [
            (
                "/upstreams/vendor/accounts/bot-3/park",
                404,
                "there is no such account; did you mean",
            ),
            ("/upstreams/vendor%2Fspare/accounts/spare/park", 404, "there is no such upstream"),
            ("/upstreams/plain/accounts/bot-1/park", 400, "has no accounts"),
        ] {
            let answer = change_of(&gateway, method, target, "", &[]).await;
            let why = detail(&answer);
            assert_eq!(answer.status, status, "{why}");
            assert!(why.contains(expected), "{why}");
        }
    }
    assert_eq!(named(&page(&gateway).await, "bot-1")["state"], "open", "nothing was changed");
    // Without a body it is parked for as long as its upstream says.
    assert_eq!(change(&gateway, "PUT", "", &[]).await.status, 200);
    let own = until_state(&gateway, "bot-1", "parked").await;
    assert!(own["parked_s"].as_f64().is_some_and(|left| (500.0..=600.0).contains(&left)), "{own}");
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_parked_with_the_token_alone() {
    let (upstream, spare) = (Upstream::ok().await, Upstream::ok().await);
    let admin = crate::support::free_port();
    let more = format!("admin: {{ listen: '127.0.0.1:{admin}', token: sesame, read: token }}");
    let gateway = Gateway::start(&config(&upstream, &spare, "each", &more)).await;
    assert_eq!(gateway.page("/upstreams/vendor/accounts").await.status, 401);
    for method in ["PUT", "DELETE"] {
        assert_eq!(change(&gateway, method, "", &[]).await.status, 401);
        let wrong = [("Authorization", "Bearer other")];
        assert_eq!(change(&gateway, method, "", &wrong).await.status, 401);
    }
    let dir = tempfile::tempdir().expect("a folder");
    let token = dir.path().join("token");
    std::fs::write(&token, "sesame\n").expect("a file");
    let token = token.to_str().expect("a path");
    let said = run(&gateway, &["park", "vendor", "bot-1", "--for", "1h", "--token", token]);
    assert!(said.starts_with("bot-1 of vendor: parked until 20"), "{said}");
    assert!(said.ends_with(": an operator has parked it\n"), "{said}");
    assert_eq!(ask(&gateway).await.field("paceway-account"), Some("bot-2"));
    let said = run(&gateway, &["unpark", "vendor", "bot-1", "--token", token]);
    assert_eq!(said, "bot-1 of vendor: it is used again\n");
    let said = run(&gateway, &["unpark", "vendor", "bot-1", "--token", token]);
    assert_eq!(said, "bot-1 of vendor: it was not parked\n");
    let said = run(&gateway, &["park", "vendor", "bot-1", "--json", "--token", token]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&said["account"], &said["state"]), (&json!("bot-1"), &json!("parked")));
    let output = paceway(&[
        "unpark",
        "vendor",
        "bot-9",
        "--token",
        token,
        "--admin",
        &gateway.admin.to_string(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// A refusal pauses the keys of one account, also those that name a shop besides.
#[rstest]
#[case::its_own_key("each")]
#[case::a_key_of_a_shop("shop")]
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_account_is_shown_with_the_time_left(#[case] limiter: &str) {
    let upstream = Upstream::start(|call| match account(call).as_str() {
        "bot-1" => reply("429 Too Many Requests", &[("Retry-After", "300")], ""),
        _ => Reply::ok(),
    })
    .await;
    let spare = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream, &spare, limiter, "")).await;
    eventually("bot-1 is asked", async || {
        ask(&gateway).await;
        upstream.calls().iter().any(|call| account(call) == "bot-1").then_some(())
    })
    .await;
    let own = until_state(&gateway, "bot-1", "paused").await;
    assert!(own["paused_s"].as_f64().is_some_and(|left| (200.0..=300.0).contains(&left)), "{own}");
    let page = page(&gateway).await;
    assert_eq!(named(&page, "bot-2")["state"], "open", "{page}");
    assert!(named(&page, "bot-2").get("paused_s").is_none(), "{page}");
}

/// The vendor rejects the credentials of an account: the pages say why, and that it is tried after the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_account_is_parked_and_then_tried() {
    let upstream = Upstream::start(|call| match account(call).as_str() {
        "bot-1" => reply("401 Unauthorized", &[], ""),
        _ => Reply::ok(),
    })
    .await;
    let spare = Upstream::ok().await;
    let yaml = config(&upstream, &spare, "each", "").replace("park_for: 10min", "park_for: 3s");
    let gateway = Gateway::start(&yaml).await;
    eventually("bot-1 is asked", async || {
        assert_eq!(ask(&gateway).await.status, 200, "the call takes another account");
        upstream.calls().iter().any(|call| account(call) == "bot-1").then_some(())
    })
    .await;
    let own = until_state(&gateway, "bot-1", "parked").await;
    assert_eq!(own["parked_reason"], "the upstream answered 401");
    let limiters = gateway.page("/limiters").await.json();
    assert_eq!(limiters["parked"][0]["account"], "bot-1", "{limiters}");
    until_state(&gateway, "bot-1", "tried").await;
    let status = run(&gateway, &["status"]);
    assert!(status.contains("bot-1 of vendor: was parked; the next call tries it"), "{status}");
    // After new credentials an operator ends the park at once.
    assert_eq!(change(&gateway, "DELETE", "", &[]).await.json()["unparked"], true);
    assert_eq!(named(&page(&gateway).await, "bot-1")["state"], "open");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_shows_accounts_that_rest_first() {
    let (upstream, spare) = (Upstream::ok().await, Upstream::ok().await);
    let gateway = Gateway::start(&config(&upstream, &spare, "each", "")).await;
    assert_eq!(
        change_of(&gateway, "PUT", "/upstreams/vendor/accounts/bot-2/park", "", &[]).await.status,
        200
    );
    assert_eq!(ask(&gateway).await.field("paceway-account"), Some("bot-1"));
    for path in ["/status", "/upstreams"] {
        let said = gateway.page(path).await;
        assert!(!said.text().contains(SECRET));
        let said = said.json();
        let upstreams = said["upstreams"].as_array().expect("upstreams");
        let own = |name: &str| upstreams.iter().find(|own| own["name"] == name).expect("one");
        assert_eq!(named(own("vendor"), "bot-2")["state"], "parked", "{said}");
        assert_eq!(named(own("vendor"), "bot-1")["requests"], 1, "{said}");
        assert!(own("plain").get("accounts").is_none(), "{said}");
    }
    let browser = Browser::start().await;
    browser.open(&format!("http://{}/", gateway.admin)).await;
    let rows = "return document.querySelectorAll('#account-rows tr').length === 3 && [...document.querySelectorAll('#account-rows tr')].map((row) => [...row.cells].map((cell) => cell.textContent))";
    let rows = browser.until("three accounts", rows, json!([])).await;
    assert_eq!(rows[1], json!(["vendor", "bot-1", "1", "open"]), "{rows}");
    let first = rows[0].as_array().expect("cells");
    assert_eq!(first[..3], [json!("vendor"), json!("bot-2"), json!("0")], "{rows}");
    let state = first[3].as_str().expect("a state");
    assert!(
        state.starts_with("parked, ") && state.ends_with("left: an operator has parked it"),
        "{state}"
    );
    let errors = browser.errors().await;
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_names_the_accounts_with_their_keys() {
    let (upstream, spare) = (Upstream::ok().await, Upstream::ok().await);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("paceway.yaml");
    std::fs::write(&file, config(&upstream, &spare, "each, shop", "")).expect("a file");
    let file = file.to_str().expect("a path");
    let explain = |more: &[&str]| {
        let args = [&["explain", file, "GET", "/", "-H", "x-shop: acme"], more].concat();
        let output = paceway(&args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let text = explain(&[]);
    assert!(!text.contains(SECRET), "{text}");
    let lines: Vec<_> =
        text.lines().skip_while(|line| !line.starts_with("accounts")).take(3).collect();
    assert_eq!(
        lines,
        [
            "accounts   bot-1: key bot-1 of each, key bot-1:acme of shop",
            "           bot-2: key org of each, key bot-2:acme of shop",
            &format!(
                "           spare: key spare of each, key spare:acme of shop, to {}/v2, where other slots come more than 2s later",
                spare.url()
            ),
        ]
    );
    assert!(text.contains("key bot-1, kept as paceway:"), "{text}");
    let said: Value = serde_json::from_str(&explain(&["--json"])).expect("JSON");
    let own = &said["accounts"][1];
    assert_eq!((&own["name"], &own["quota"]), (&json!("bot-2"), &json!("org")));
    assert_eq!(own["keys"], json!({ "each": "org", "shop": "bot-2:acme" }));
    assert!(!said.to_string().contains(SECRET), "{said}");
    let plain = paceway(&["explain", file, "GET", "/plain"]);
    assert!(!String::from_utf8_lossy(&plain.stdout).contains("accounts"), "{plain:?}");
}
