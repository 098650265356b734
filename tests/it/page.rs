//! The dashboard's screen in a real Chromium: nothing is wider than its place, what needs an operator comes first with its
//! reason and its end, and lists are searched, frozen and grouped.

use crate::support::{Browser, Conn, Gateway, Reply, Upstream, eventually, reply, request};
use serde_json::{Value, json};
use std::{fmt::Write, fs};

/// Elements whose content is wider than they are. One of a single pixel is for screen readers alone.
const TOO_WIDE: &str = r#"
    const wide = (node) => node.clientWidth > 1 && node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== "inline";
    const all = [document.documentElement, ...document.querySelectorAll("header *, main *")].filter(wide);
    return [innerWidth, document.documentElement.scrollWidth, all.map((node) => `${node.outerHTML.slice(0, 100)}: ${node.scrollWidth} in ${node.clientWidth}`)];"#;

/// The names of the limiters in the order of the page.
const NAMES: &str =
    "return [...document.querySelectorAll('#limiter-rows > li')].map((row) => row.dataset.limiter)";

/// Sets a control as its user does.
const SET: &str = r#"
    const node = document.getElementById(arguments[0]);
    node.value = arguments[1];
    node.dispatchEvent(new Event("input"));"#;

const AXE: &str = r#"
    return axe.run().then((said) => said.violations.map((one) => [one.id, one.nodes.map((node) => [node.html.slice(0, 200), node.failureSummary])]));"#;

/// As many limiters as a picture has, some with the longest names, and a route for the first ones.
fn many(upstream: &Upstream) -> String {
    let long = |letter: &str| letter.repeat(64);
    let mut yaml = format!(
        "upstream: {}\nlimiters:\n\
         \x20 {}: {{ rate: [5/s, 100/min] }}\n\
         \x20 {}: {{ rate: 2/hour, burst: 1, key: \"{{header.x-a-header-whose-name-is-rather-long-too}}\" }}\n",
        upstream.url(),
        long("m"),
        long("W"),
    );
    for i in 0..196 {
        writeln!(yaml, "  team-{i:03}: {}/s", i % 9 + 1).expect("a line");
    }
    yaml += "  lowered: 20/s\n  held: { rate: 2/hour, burst: 1 }\nroutes:\n";
    for (name, limiter) in [("m", long("m")), ("W", long("W"))] {
        let (path, route) = (name, long(&name.to_lowercase()));
        writeln!(
            yaml,
            "- {{ name: {route}, suffix: /{path}, limiters: [{limiter}], max_wait: 59min }}"
        )
        .expect("a line");
    }
    yaml += "- { name: lowered, suffix: /lowered, limiters: [lowered] }\n\
        - { name: held, suffix: /held, limiters: [held], max_wait: 59min }\n";
    yaml
}

/// Refuses the fourth call of `/lowered`, and passes everything else.
async fn vendor() -> Upstream {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    Upstream::start(move |call| {
        let is_fourth = call.target.starts_with("/lowered")
            && calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 3;
        if is_fourth {
            reply("429 Too Many Requests", &[("Retry-After", "600")], "")
        } else {
            Reply::ok()
        }
    })
    .await
}

async fn put(gateway: &Gateway, limiter: &str, body: &Value) {
    let body = body.to_string();
    let length = body.len().to_string();
    let fields = [("Content-Type", "application/json"), ("Content-Length", length.as_str())];
    let head = request("PUT", &format!("/limiters/{limiter}/override"), &fields);
    let answer = gateway.admin_request(format!("{head}{body}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// A browser that shows the gateway.
async fn open(gateway: &Gateway) -> Browser {
    let browser = Browser::start().await;
    browser.open(&format!("http://{}/", gateway.admin)).await;
    browser.until("a picture", "return document.documentElement.dataset.at", json!([])).await;
    browser
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_limiters_with_long_names_fit_every_width() {
    let upstream = vendor().await;
    let gateway = Gateway::start(&many(&upstream)).await;
    for _ in 0..4 {
        gateway.get("/lowered").await;
    }
    let reason = "the vendor is down, see the incident whose title someone wrote at night";
    put(&gateway, "team-150", &json!({ "pause": true, "for": "3h", "reason": reason })).await;
    put(&gateway, "team-120", &json!({ "rate": "1/s", "for": "3h", "reason": reason })).await;
    let key = "k".repeat(180);
    let mut waiting: Vec<Conn> = Vec::new();
    for path in ["/W", "/W", "/held", "/held"] {
        let fields = [("x-a-header-whose-name-is-rather-long-too", key.as_str())];
        waiting.push(gateway.ask(path, &fields).await);
    }
    let browser = open(&gateway).await;
    browser
        .until(
            "requests wait",
            "return document.querySelector('#summary [data-field=waiting]').dataset.value === '2'",
            json!([]),
        )
        .await;
    let names = browser
        .until("all limiters", &format!("{NAMES}.length === 200 && [...document.querySelectorAll('#limiter-rows > li')].map((row) => row.dataset.limiter)"), json!([]))
        .await;
    // Limiters that grant nothing come before those that grant less, and these before the rest in the order of the file.
    let first: Vec<_> = names.as_array().expect("a list").iter().take(5).collect();
    assert_eq!(
        first,
        ["team-150", "lowered", "team-120", &"m".repeat(64), &"W".repeat(64)],
        "{names}"
    );
    let texts = "return [...document.querySelectorAll('#limiter-rows > li')].slice(0, 3).map((row) => [...row.querySelectorAll('.note:not([hidden])')].map((note) => note.textContent))";
    let texts = browser.run(texts, json!([])).await;
    let expected = [
        &["Paused", "until", "an operator: the vendor is down"][..],
        &["Paused", "until", "the upstream answered 429"],
        &["Override", "rate 1/s", "until", "the vendor is down"],
    ];
    for (notes, words) in texts.as_array().expect("rows").iter().zip(expected) {
        let note = notes[0].as_str().expect("a note");
        let holds = words.iter().all(|word| note.contains(word)) && note.contains("why");
        assert!(holds, "{words:?} in {texts}");
    }
    let lowered = texts[1][1].as_str().expect("a note of the lowered rate");
    assert!(lowered.contains("instead of 20/s") && lowered.contains("until"), "{lowered}");
    assert!(lowered.contains("why the upstream answered 429"), "{lowered}");
    let bars = "return [...document.querySelectorAll(`[data-limiter^='mmm'] [role=meter]`)].map((bar) => bar.getAttribute('aria-valuemax'))";
    assert_eq!(browser.run(bars, json!([])).await, json!(["5", "100"]));
    let axe = fs::read_to_string("target/clients/node_modules/axe-core/axe.min.js");
    let axe = axe.expect("axe-core, which `make test` installs");
    for width in [1400_u32, 1000, 390] {
        browser.resize(width, 900).await;
        for theme in ["light", "dark"] {
            let script = "document.documentElement.dataset.theme = arguments[0]";
            browser.run(script, json!([theme])).await;
            let found = browser.run(TOO_WIDE, json!([])).await;
            // A scroll bar takes a part of the window.
            assert_eq!((&found[0], &found[2]), (&json!(width), &json!([])), "{theme} {width}");
            assert!(
                found[1].as_u64().is_some_and(|content| content <= u64::from(width)),
                "{found}"
            );
            let found = browser.run(&format!("{axe};{AXE}"), json!([])).await;
            assert_eq!(found, json!([]), "{theme} {width}");
        }
    }
    assert_eq!(browser.errors().await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn limiters_are_searched_and_filtered() {
    let upstream = vendor().await;
    let gateway = Gateway::start(&many(&upstream)).await;
    put(&gateway, "team-150", &json!({ "pause": true, "for": "3h", "reason": "a test" })).await;
    let browser = open(&gateway).await;
    let shown = async |what: &str, wanted: Value| {
        let script = format!(
            "const all = {}; return JSON.stringify(all) === arguments[0]",
            NAMES.trim_start_matches("return ")
        );
        browser.until(what, &script, json!([wanted.to_string()])).await;
    };
    browser.run(SET, json!(["filter", "team 19 3/s"])).await;
    shown("words of the name and of the rate", json!(["team-119", "team-191"])).await;
    browser.run(SET, json!(["filter", "a-header-whose"])).await;
    shown("a part of the key", json!(["W".repeat(64)])).await;
    browser.run(SET, json!(["filter", "nothing"])).await;
    let empty = "return !document.getElementById('no-match').hidden";
    browser.until("no limiter", empty, json!([])).await;
    browser.run("document.getElementById('show-all').click()", json!([])).await;
    browser.until("all again", &format!("{NAMES}.length === 200"), json!([])).await;
    browser.run(SET, json!(["filter-state", "lowered"])).await;
    shown("the paused one", json!(["team-150"])).await;
    let note = "return document.querySelector('[data-field=limiters-note]').textContent";
    assert_eq!(browser.run(note, json!([])).await, "1 shown of 200 limiters");
    // Its menu, with the keyboard: the focus comes back to where it was.
    let menu = "const open = document.querySelector('[data-limiter=team-150] .open'); open.focus(); open.click(); return true";
    browser.run(menu, json!([])).await;
    let focus = "return document.activeElement.dataset.action === arguments[0]";
    browser.until("the first action", focus, json!(["pause"])).await;
    let down = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true, cancelable: true }))";
    browser.run(down, json!([])).await;
    browser.until("the second action", focus, json!(["observe"])).await;
    browser.run("document.activeElement.click()", json!([])).await;
    let dialog = "return document.getElementById('change').open && !document.querySelector('.menu:popover-open')";
    browser.until("the dialog in place of the menu", dialog, json!([])).await;
    browser.run("document.getElementById('change-cancel').click()", json!([])).await;
    let back = "return document.activeElement.matches('[data-limiter=team-150] .open')";
    browser.until("the focus", back, json!([])).await;
    assert_eq!(browser.errors().await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_searched_grouped_and_frozen() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { few: 1/hour, held: { rate: 2/hour, burst: 1 } }\n\
         routes:\n\
         - { name: few, suffix: /few, limiters: [few] }\n\
         - { name: held, suffix: /held, limiters: [held], max_wait: 59min }\n",
    )
    .await;
    for expected in [200, 429, 429] {
        assert_eq!(gateway.get("/few").await.status, expected);
    }
    let mut conns = vec![gateway.ask("/held", &[]).await];
    conns.push(gateway.ask("/held", &[]).await);
    let browser = open(&gateway).await;
    let rows = "return [...document.querySelectorAll('#request-rows tr')].map((row) => row.dataset.group ?? row.querySelector('th').textContent).sort().join(' ') === arguments[0]";
    browser.until("three requests", rows, json!(["few few held"])).await;
    browser.run(SET, json!(["request-decision", "held"])).await;
    browser.until("the held one", rows, json!(["held"])).await;
    browser.run(SET, json!(["request-decision", ""])).await;
    browser.run(SET, json!(["request-filter", "FEW within"])).await;
    browser.until("words of the route and the reason", rows, json!(["few few"])).await;
    browser.run(SET, json!(["request-filter", ""])).await;
    browser.run(SET, json!(["request-group", "limiter"])).await;
    browser.until("two groups", rows, json!(["few held"])).await;
    let sum = "return document.querySelector('[data-group=few] [data-field=sum]').textContent";
    let sum = browser.run(sum, json!([])).await;
    assert!(sum.as_str().is_some_and(|sum| sum.starts_with("2 requests, 0 held, 2 refused")));
    browser.run("document.querySelector('[data-group=few] button').click()", json!([])).await;
    browser.until("an open group", rows, json!(["few few few held"])).await;
    browser.run(SET, json!(["request-group", ""])).await;
    browser.run("document.getElementById('freeze').click()", json!([])).await;
    assert_eq!(gateway.get("/few").await.status, 429);
    let note = "return document.querySelector('[data-field=requests-note]').textContent.endsWith(arguments[0])";
    browser.until("a newer one is counted", note, json!([", 1 newer"])).await;
    assert_eq!(browser.run(rows, json!(["few few held"])).await, true);
    browser.run("document.getElementById('freeze').click()", json!([])).await;
    browser.until("it follows again", rows, json!(["few few few held"])).await;
    assert_eq!(browser.errors().await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_counts_requests_that_passed_waited_or_were_refused() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { few: 3/hour, soon: { rate: 30/min, burst: 1 } }\n\
         routes:\n\
         - { name: few, suffix: /few, limiters: [few] }\n\
         - { name: soon, suffix: /soon, limiters: [soon], max_wait: 10s }\n",
    )
    .await;
    let browser = open(&gateway).await;
    for expected in [200, 200, 200, 429, 429] {
        assert_eq!(gateway.get("/few").await.status, expected);
    }
    let mut conns = vec![gateway.ask("/soon", &[]).await, gateway.ask("/soon", &[]).await];
    for conn in &mut conns {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    let counted = "4 requests passed at once, 1 waited and 2 were refused";
    let said =
        "return document.getElementById('timeline-summary').textContent.includes(arguments[0])";
    browser.until("all are counted", said, json!([counted])).await;
    // The columns, one by one with the keyboard, add up to the same.
    let walk = r#"
        const plot = document.getElementById("plot");
        const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
        press("Home");
        const sums = [0, 0, 0];
        for (let left = -plot.getAttribute("aria-valuemin") + 1; left > 0; left--) {
            plot.getAttribute("aria-valuetext").match(/[\d.]+(?= (passed|waited|refused))/g).forEach((rate, i) => (sums[i] += Math.round(rate * 5)));
            press("ArrowRight");
        }
        return [sums, document.getElementById("tip").hidden, document.getElementById("plot-y").textContent];"#;
    let walked = browser.run(walk, json!([])).await;
    assert_eq!((&walked[0], &walked[1]), (&json!([4, 1, 2]), &json!(false)), "{walked}");
    let note = "return document.querySelector('[data-field=timeline-note]').textContent";
    let note = browser.run(note, json!([])).await;
    assert!(note.as_str().is_some_and(|note| note.starts_with("since the start")), "{note}");
    assert_eq!(browser.errors().await, Vec::<Value>::new());
    eventually("the points are those of the API", async || {
        let page = gateway.page("/routes").await.json();
        let all = page["routes"].as_array()?.iter();
        let refused: u64 = all.filter_map(|route| route["last_15_min"]["refused"].as_u64()).sum();
        (refused == 2).then_some(())
    })
    .await;
}
