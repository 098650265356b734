//! The commands that ask a running gateway, as an operator types them.

use crate::support::{Gateway, Upstream, free_port, paceway, reply};
use serde_json::Value;
use std::fs;

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
async fn errors_say_what_to_do() {
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
}

#[tokio::test(flavor = "multi_thread")]
async fn top_shows_the_keys_that_use_most() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "upstream: {}\nlimiters:\n  account: 500/day\n  shop: {{ rate: 5/day, key: '{{header.x-shop}}' }}\n\
         routes: [{{ suffix: '*', limiters: [shop, account], max_wait: 0 }}]\n",
        upstream.url()
    ))
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

/// The requests of the commands that change something, as the admin side reads them.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_sent_as_the_admin_side_reads_them() {
    let admin = Upstream::start(|call| match &*call.target {
        "/readyz" => reply("200 OK", &[("Paceway-Origin", "admin")], "{\"ready\":true}"),
        "/limiters/none/override" => {
            reply("404 Not Found", &[], "{\"detail\":\"there is no such limiter\"}")
        }
        _ => reply("200 OK", &[], "{\"until\":\"2026-11-24T10:00:00Z\"}"),
    })
    .await;
    let address = admin.address().to_string();
    let run = |args: &[&str]| {
        let output = paceway(&[args, &["--admin", &address]].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let end = ["--for", "10m", "--reason", "vendor asked"];
    let body = |value: &str| format!("{{\"for\":\"10m\",\"reason\":\"vendor asked\",{value}}}");
    for (args, method, target, expected) in [
        (&["pause", "search"][..], "PUT", "/limiters/search/override", "\"pause\":true"),
        (&["set", "search", "rate=2/s"], "PUT", "/limiters/search/override", "\"rate\":\"2/s\""),
        (
            &["set", "a.b", "mode=observe", "rate=2/s"],
            "PUT",
            "/limiters/a.b/override",
            "\"mode\":\"observe\",\"rate\":\"2/s\"",
        ),
        (&["set", "limiting=off"], "PUT", "/limiting", "\"limiting\":\"off\""),
        (&["resume", "search"], "DELETE", "/limiters/search/override", ""),
        (&["resume", "limiting"], "DELETE", "/limiting", ""),
    ] {
        let is_change = method == "PUT";
        let (code, out, err) = run(&[args, if is_change { &end[..] } else { &[] }].concat());
        assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}");
        assert!(out.contains("until 2026-11-24T10:00:00Z: vendor asked") == is_change, "{out}");
        let call = admin.calls().pop().expect("a call");
        assert_eq!((&*call.method, &*call.target), (method, target), "{args:?}");
        if is_change {
            let sent: Value = serde_json::from_slice(&call.body).expect("JSON");
            let expected: Value = serde_json::from_str(&body(expected)).expect("JSON");
            assert_eq!(sent, expected, "{args:?}");
        }
    }
    let (code, out, err) = run(&[&["pause", "none"][..], &end].concat());
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (Some(1), "", "error: there is no such limiter")
    );
    for args in [
        &["pause", "search"][..],
        &["set", "search"],
        &["set", "search", "burst=5"],
        &["set", "search", "rate="],
        &["set", "rate=2/s"],
    ] {
        let end = if args[0] == "set" { &end[..] } else { &[] };
        let (code, out, err) = run(&[args, end].concat());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {err}");
        assert!(err.starts_with("error: "), "{err}");
    }
}
