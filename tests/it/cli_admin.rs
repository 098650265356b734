//! The commands that ask a running gateway, as an operator types them.

use crate::support::{
    Gateway, Redis, Upstream, eventually, free_port, get, paceway, paceway_in, reply,
};
use serde_json::{Value, json};
use std::{fs, path::Path};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command against the admin side of a gateway; returns its exit code, stdout and stderr.
fn ask(gateway: &Gateway, args: &[&str]) -> (Option<i32>, String, String) {
    let admin = gateway.admin.to_string();
    let output = paceway(&[args, &["--admin", &admin]].concat());
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn config(upstream: &Upstream, more: &str) -> String {
    format!(
        "upstream: {}\nlimiters:\n  account: 500/min\n  shop: {{ rate: [5/s, 60/min], key: '{{header.x-shop}}' }}\n\
         routes: [{{ suffix: '*', limiters: [shop, account], max_wait: 2s }}]\n{more}",
        upstream.url()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_every_limiter() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let (code, out, err) = ask(&gateway, &["status"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].starts_with("gateway    ") && lines[0].ends_with(", ready"), "{out}");
    let row = |name: &str| {
        let row = lines.iter().find(|line| line.starts_with(name)).expect("a row");
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("LIMITER"), "LIMITER RATE MODE LEVEL WAITING NEXT SLOT NOTES");
    assert!(row("account").starts_with("account 500/min enforce 500 of 500 0 0"), "{out}");
    let shop = row("shop");
    assert!(shop.starts_with("shop 5/s, 60/min enforce - 0 - for each {header.x-shop}"), "{out}");
    assert!(!out.contains('\u{1b}'), "colours where no terminal is: {out}");

    let (code, out, err) = ask(&gateway, &["status", "--json"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let said: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!([&said["ready"], &said["limiting"]], [true, true]);
    assert_eq!(said["limiters"].as_array().map(Vec::len), Some(2));
    assert!(said["config"]["hash"].is_string(), "{said}");
    let (code, out, _) = ask(&gateway, &["health", "--json"]);
    let said: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &said["ready"]), (Some(0), &Value::Bool(true)));
}

/// An operator who asks the wrong address, without a token or with a wrong one, reads what to do.
#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_remedy() {
    let upstream = Upstream::ok().await;
    let admin = free_port();
    let more = format!("admin: {{ listen: '127.0.0.1:{admin}', token: hunter2, read: token }}\n");
    let gateway = Gateway::start(&config(&upstream, &more)).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("a file");
        path.to_str().expect("a readable path").to_owned()
    };
    let (right, wrong, empty) =
        (file("right", "hunter2\n"), file("wrong", "hunter3"), file("empty", "\n"));
    let none = dir.path().join("none");
    let none = none.to_str().expect("a readable path");
    let (code, _, err) = ask(&gateway, &["status", "--token", &right]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for (args, code, expected) in [
        (&["status"][..], 1, "wants its token: name the file with it"),
        (&["status", "--token", &wrong], 1, "the token in the file of --token is wrong"),
        (&["status", "--token", &empty], 2, "must hold the token and nothing else"),
        (&["status", "--token", none], 2, "cannot read"),
    ] {
        let said = ask(&gateway, args);
        assert_eq!((said.0, said.1.as_str()), (Some(code), ""), "{said:?}");
        assert!(said.2.starts_with("error: ") && said.2.contains(expected), "{said:?}");
        assert!(!said.2.contains("hunter"), "{said:?}");
    }
    let closed = format!("127.0.0.1:{}", free_port());
    for (address, code, expected) in [
        (gateway.listen.to_string(), 1, "is the address for calls (`listen`)"),
        (upstream.address().to_string(), 1, "is not the admin side of Paceway"),
        (closed, 1, "is the gateway running"),
        ("127.0.0.1".into(), 2, "no address with a port"),
    ] {
        let output = paceway(&["status", "--admin", &address]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), String::new()));
        assert!(text(&output.stderr).contains(expected), "{output:?}");
    }
    for args in [&["status"][..], &["top"], &["reload"], &["resume", "account"]] {
        let closed = format!("127.0.0.1:{}", free_port());
        let output = paceway(&[args, &["--json", "--admin", &closed]].concat());
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(output.status.code(), Some(1));
        let why = said["error"].as_str().expect("a reason");
        assert!(why.starts_with("nothing answers on"), "{why}");
    }
}

/// A pause that the upstream has asked for is no override, so that `resume` does not end it.
#[tokio::test(flavor = "multi_thread")]
async fn resume_reports_a_pause_of_the_upstream() {
    let after = [("Retry-After", "60")];
    let upstream = Upstream::start(move |_| reply("429 Too Many Requests", &after, "")).await;
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let (_, out, _) = ask(&gateway, &["resume", "account"]);
    assert_eq!(out, "account: no override was set; now 500/min, mode enforce, level 500 of 500\n");
    assert_eq!(gateway.get("/").await.status, 429);
    let (code, out, err) = ask(&gateway, &["resume", "account"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let reason = "because the upstream answered 429; `DELETE /limiters/account` ends that";
    assert!(out.contains("it is paused until 20") && out.contains(reason), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rate_of_a_limiter_has_its_level() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(&upstream, "limiters: { account: [5/h, 20/day], shop: { rate: [5/h, 20/day], key: '{header.x-shop}' } }\n\
         routes: [{ suffix: '*', limiters: [account, shop], max_wait: 0 }]\n")
    .await;
    for _ in 0..2 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    let (_, out, _) = ask(&gateway, &["status"]);
    let row = out.lines().find(|line| line.starts_with("account")).expect("a row");
    assert!(row.contains("5/h, 20/d") && row.contains("3 of 5, 18 of 20"), "{out}");
    let state = gateway.limiter("account").await;
    assert_eq!((&state["level"], &state["limit"]), (&3.into(), &5.into()));
    let levels = state["levels"].as_array().expect("a list");
    let shown: Vec<_> =
        levels.iter().map(|one| (&one["rate"], &one["level"], &one["limit"])).collect();
    let [hour, day] = ["5/h", "20/d"].map(Value::from);
    assert_eq!(shown, [(&hour, &3.into(), &5.into()), (&day, &18.into(), &20.into())]);
    // Each key has levels of its own.
    let key = get(gateway.admin, "/limiters/shop/keys/-").await.json();
    assert_eq!(key["levels"][1]["level"], 18, "{key}");
    assert!(gateway.limiter("shop").await["levels"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_names_the_admin_side() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let admin = gateway.admin.to_string();
    let run = |args: &[&str], named: &str| {
        let output = paceway_in(Path::new("."), args, &[("PACEWAY_ADMIN", named)]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = run(&["status"], &admin);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with(&format!("gateway    {admin}, ready")), "{out}");
    // An option says it for one command.
    let closed = format!("127.0.0.1:{}", free_port());
    assert_eq!(run(&["status", "--admin", &admin], &closed).0, Some(0));
    let (code, _, err) = run(&["health"], "nowhere");
    assert!(code == Some(2) && err.contains("PACEWAY_ADMIN is no address"), "{err}");
    // Commands that ask no gateway do not read it.
    assert_eq!(run(&["schema"], "nowhere").0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_prints_the_values_in_force() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let end = ["--for", "10min", "--reason", "try"];
    assert_eq!(ask(&gateway, &[&["set", "shop", "rate=1/s,9/min"][..], &end].concat()).0, Some(0));
    let (_, out, _) = ask(&gateway, &["resume", "shop"]);
    assert_eq!(out, "shop: the override has ended; now 5/s, 60/min, mode enforce\n");
    assert_eq!(ask(&gateway, &[&["set", "limiting=off"][..], &end].concat()).0, Some(0));
    let (_, out, _) = ask(&gateway, &["resume", "limiting"]);
    assert_eq!(out, "limiting: the override has ended; now on\n");
    // No line of the log names a limiter that is none.
    let events = gateway.events();
    assert!(events.iter().all(|event| event["limiter"] != ""), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn top_shows_a_key_with_its_own_rate() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { shop: { rate: 5/day, key: '{header.x-shop}', rates: { acme: 100/day } } }\n\
         routes: [{ suffix: '*', limiters: [shop], max_wait: 0 }]\n",
    )
    .await;
    for shop in ["acme", "acme", "bolt"] {
        let answer = gateway.ask("/", &[("X-Shop", shop)]).await.answer().await;
        assert_eq!(answer.expect("an answer").status, 200);
    }
    let (code, out, err) = ask(&gateway, &["top", "--once", "--sort", "used"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let rows: Vec<Vec<_>> =
        out.lines().skip(3).map(|line| line.split_whitespace().take(6).collect()).collect();
    // A key of a greater rate has used a smaller part of it, although it has made more calls.
    let expected =
        [["shop", "bolt", "5/d", "4", "of", "5"], ["shop", "acme", "100/d", "98", "of", "100"]];
    assert_eq!(rows, expected, "{out}");
    let (_, out, _) = ask(&gateway, &["top", "--json", "--sort", "used", "--limit", "1"]);
    let said: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(said["rows"][0]["key"], "bolt", "{said}");
    let page = gateway.page("/limiters/shop/keys?sort=used&limit=1").await.json();
    assert_eq!((&page["keys"][0]["key"], &page["keys"][0]["limit"]), (&json!("bolt"), &json!(5)));
}

#[tokio::test(flavor = "multi_thread")]
async fn top_shows_the_keys_that_use_most() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters:\n  account: 500/day\n  shop: { rate: 5/day, key: '{header.x-shop}' }\n\
         routes: [{ suffix: '*', limiters: [shop, account], max_wait: 0 }]\n",
    )
    .await;
    for shop in ["acme", "bolt", "acme", "acme"] {
        let answer = gateway.ask("/", &[("X-Shop", shop)]).await.answer().await;
        assert_eq!(answer.expect("an answer").status, 200);
    }
    let (code, out, err) = ask(&gateway, &["top", "--once", "--sort", "used"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let rows: Vec<Vec<_>> =
        out.lines().skip(3).map(|line| line.split_whitespace().take(5).collect()).collect();
    let expected = [
        ["shop", "acme", "5/d", "2", "of"],
        ["shop", "bolt", "5/d", "4", "of"],
        ["account", "-", "500/d", "496", "of"],
    ];
    assert_eq!(rows, expected, "{out}");
    let (code, out, _) = ask(&gateway, &["top", "--json", "--sort", "used", "--limit", "1"]);
    let said: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, said["rows"].as_array().map(Vec::len)), (Some(0), Some(1)), "{said}");
    assert_eq!([&said["rows"][0]["key"], &said["sort"]], ["acme", "used"]);
}

/// Two gateways share what an operator changes on one of them.
#[tokio::test(flavor = "multi_thread")]
async fn changes_take_effect_on_all_gateways() {
    let (upstream, redis) = (Upstream::ok().await, Redis::start());
    let yaml = config(&upstream, &format!("store: \"{}\"\n", redis.url()));
    let [one, other] = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    let end = ["--for", "10min", "--reason", "vendor asked"];
    let until = async |name: &'static str, expected: fn(&Value) -> bool| {
        eventually("the other gateway shows the change", async || {
            expected(&other.limiter(name).await).then_some(())
        })
        .await;
    };
    let (code, out, err) = ask(&one, &[&["pause", "account"][..], &end].concat());
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(
        out.starts_with("account: override: pause, until ") && out.ends_with("vendor asked\n"),
        "{out}"
    );
    until("account", |limiter| limiter["override"]["pause"] == true).await;
    assert_eq!(other.get("/").await.status, 429);
    let (_, out, _) = ask(&other, &["status"]);
    assert!(out.contains("override: pause, until "), "{out}");
    let (code, out, err) = ask(&other, &["resume", "account"]);
    assert_eq!(
        (code, &*out, &*err),
        (
            Some(0),
            "account: the override has ended; now 500/min, mode enforce, level 500 of 500\n",
            ""
        )
    );
    let (_, out, _) = ask(&other, &["resume", "account"]);
    assert!(out.contains("no override was set"), "{out}");

    let set = [&["set", "shop", "rate=1/s,20/min", "mode=observe"][..], &end].concat();
    let (code, out, err) = ask(&one, &set);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("shop: override: rate 1/s, 20/min, mode observe, until "), "{out}");
    until("shop", |limiter| limiter["mode"] == "observe").await;
    assert_eq!(ask(&one, &[&["set", "limiting=off"][..], &end].concat()).0, Some(0));
    until("account", |_| true).await;
    eventually("limiting is off", async || {
        let (_, out, _) = ask(&other, &["status"]);
        out.contains("limiting   off: every request is forwarded").then_some(())
    })
    .await;
    assert_eq!(ask(&other, &["resume", "limiting", "--json"]).1, "{\n  \"removed\": true\n}\n");

    for (args, code, expected) in [
        (
            &["pause", "acount"][..],
            1,
            "there is no such limiter; did you mean `account`? there are: account, shop",
        ),
        (&["set", "account", "rate=5/fortnight"], 1, "has the unknown unit `fortnight`"),
        (&["set", "account", "rate=0/s"], 1, "at least 1"),
        (&["set", "account"], 2, "as in `paceway set search rate=2/s`"),
        (&["set", "account", "burst=5"], 2, "`burst=5` is neither rate=RATE nor mode=MODE"),
        (&["set", "account", "rate="], 2, "`rate=` is neither"),
        (&["set", "rate=2/s"], 2, "write a limiter and its values"),
    ] {
        let said = ask(&one, &[args, &end].concat());
        assert_eq!((said.0, said.1.as_str()), (Some(code), ""), "{said:?}");
        assert!(said.2.starts_with("error: ") && said.2.contains(expected), "{said:?}");
    }
    let json = ask(&one, &[&["pause", "acount", "--json"][..], &end].concat());
    let said: Value = serde_json::from_str(&json.1).expect("JSON");
    assert_eq!(json.0, Some(1));
    assert!(
        said["error"].as_str().is_some_and(|why| json.2 == format!("error: {why}\n")),
        "{json:?}"
    );
    let (code, _, err) = ask(&one, &["pause", "account"]);
    assert!(code == Some(2) && err.contains("--for <TIME>") && err.contains("--reason"), "{err}");

    // Without the store nothing is changed, and the limiters are shown without their keys.
    drop(redis);
    let (code, _, err) = ask(&one, &[&["pause", "account"][..], &end].concat());
    assert!(code == Some(1) && err.contains("the store keeps the overrides"), "{err}");
    let (code, out, err) = ask(&one, &["top"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("its keys are not listed: the store"), "{out}");
}
