//! The dashboard in a real Chromium: its figures are those of the API while load runs, every action does what it says, and
//! neither axe nor the console has anything to report.

use crate::support::{Browser, Conn, Gateway, Upstream, eventually, request};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, time::Duration};
use tokio::time::{Instant, sleep};

/// All figures of the page at one moment, with the instant of the picture that they are from.
const FIGURES: &str = r##"
    const exact = (node) => Object.fromEntries([...node.querySelectorAll("[data-field][data-value]")].map((own) => [own.dataset.field, own.dataset.value]));
    const all = (name) => Object.fromEntries([...document.querySelectorAll(`[data-${name}]`)].map((node) => [node.dataset[name], exact(node)]));
    return {
        at: document.documentElement.dataset.at ?? null,
        limiters: all("limiter"), routes: all("route"), upstreams: all("upstream"), keys: all("key"),
        summary: exact(document.getElementById("summary")),
        store: exact(document.getElementById("store-facts")), config: exact(document.getElementById("config-facts")),
        requests: [...document.querySelectorAll("[data-request]")].map((node) => node.dataset.request),
        charts: [...document.querySelectorAll("#routes path")].filter((path) => path.getAttribute("d")).length,
        medians: [...document.querySelectorAll("#routes path.low")].filter((low) => low.getAttribute("d")).map((low) => {
            const [below, above] = [low, low.parentNode.querySelector(".line:not(.low)")].map((path) => path.getAttribute("d").split("L").map((point) => Number(point.split(" ")[1])));
            return below.length === above.length && below.every((y, i) => y >= above[i]);
        }),
    };"##;

/// Presses a button of a limiter, fills the dialog in, and sends it.
const ACT: &str = r##"
    const [button, fields] = arguments;
    document.querySelector(button).click();
    const form = document.querySelector("#change form");
    for (const [name, value] of Object.entries(fields)) form.elements[name].value = value;
    document.getElementById("change-ok").click();
    return true;"##;

/// Takes the last action back.
const UNDO: &str = r##"
    const all = document.querySelectorAll("[data-action=undo]");
    if (all.length === 0 || document.getElementById("change").open) return false;
    all[all.length - 1].click();
    return true;"##;

/// The mistakes that axe finds.
const AXE: &str = r##"
    return axe.run().then((said) => said.violations.map((one) => [one.id, one.nodes.map((node) => [node.html.slice(0, 200), node.failureSummary])]));"##;

/// The figures of a picture as the page shows them.
fn expected(picture: &Value) -> Value {
    let text = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        // JavaScript writes whole numbers without a point.
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or_else(String::new, |number| number.to_string())
        }
        other => other.to_string(),
    };
    let rows = |list: &str, name: &str, fields: &[(&str, &str)]| -> Value {
        let row = |row: &Value| {
            let cells = fields
                .iter()
                .map(|(field, at)| (*field, text(row.pointer(at).unwrap_or(&Value::Null))));
            (text(&row[name]), cells.collect::<BTreeMap<_, _>>())
        };
        json!(picture[list].as_array().expect("a list").iter().map(row).collect::<BTreeMap<_, _>>())
    };
    json!({
        "limiters": rows("limiters", "name", &[
            ("level", "/level"), ("promised", "/promised"), ("waiting", "/waiting"), ("last_slot", "/last_slot_ms"),
        ]),
        "routes": rows("routes", "name", &[
            ("rate", "/per_second/requests"), ("waiting", "/waiting"), ("p50", "/p50_ms"), ("p99", "/p99_ms"),
            ("refused", "/last_15_min/refused"),
        ]),
        "upstreams": rows("upstreams", "name", &[
            ("rate", "/per_second/answers"), ("p50", "/p50_ms"), ("p99", "/p99_ms"), ("status_429", "/last_15_min/status_429"),
            ("status_5xx", "/last_15_min/status_5xx"), ("ejections", "/ejections_total"),
        ]),
        "keys": rows("keys", "key", &[("waiting", "/waiting"), ("last_slot", "/last_slot_ms")]),
        "summary": { "waiting": text(&picture["waiting"]) },
        "store": { "Store": "memory" },
        "config": { "Hash": text(&picture["config"]["hash"]) },
        "requests": picture["requests"].as_array().expect("requests").iter().map(|one| one["id"].clone()).collect::<Vec<_>>(),
    })
}

/// Keeps of `seen` what `wanted` names: the page shows more.
fn like(seen: &Value, wanted: &Value) -> Value {
    match (seen, wanted) {
        (Value::Object(seen), Value::Object(wanted)) => {
            let own = |(name, wanted): (&String, &Value)| {
                let seen = seen.get(name).map_or_else(|| json!(""), |seen| like(seen, wanted));
                (name.clone(), seen)
            };
            Value::Object(wanted.iter().map(own).collect())
        }
        _ => seen.clone(),
    }
}

const LIMITERS: &str = "limiters:\n\
    \x20 search: { rate: 5/s, burst: 5 }\n\
    \x20 shop: { rate: 1/s, burst: 1, key: \"{header.x-shop}\" }\n\
    \x20 quiet: { rate: 10/hour }\n\
    routes:\n\
    - { name: search, suffix: /search, limiters: [search], max_wait: 2s }\n\
    - { name: shop, suffix: /shop, limiters: [shop], max_wait: 30s }\n\
    - { name: quiet, suffix: /quiet, limiters: [quiet] }\n";

/// Calls the gateway until it is dropped: more than it allows.
fn load(gateway: &Gateway) -> tokio::task::JoinHandle<()> {
    let address = gateway.listen;
    tokio::spawn(async move {
        for i in 0.. {
            let (path, shop) = if i % 3 == 0 { ("/shop", i % 2) } else { ("/search", 0) };
            let shop = format!("shop-{shop}");
            tokio::spawn(async move {
                let mut conn = Conn::to(address).await.expect("connect");
                let fields = [("X-Shop", shop.as_str())];
                conn.send(request("GET", path, &fields)).await.expect("send");
                drop(conn.answer().await);
            });
            sleep(Duration::from_millis(80)).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_the_figures_of_the_api_under_load() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!("upstream: {}\n{LIMITERS}", upstream.url())).await;
    let load = load(&gateway);
    let browser = Browser::start().await;
    browser.open(&format!("http://{}/", gateway.admin)).await;
    let mut viewer = Conn::to(gateway.admin).await.expect("connect");
    viewer.send(request("GET", "/events", &[])).await.expect("send");
    viewer.head().await.expect("a head");
    // Every viewer gets the same pictures.
    let (mut pictures, mut compared) = (BTreeMap::new(), BTreeMap::new());
    let started = Instant::now();
    while compared.len() < 8 {
        assert!(started.elapsed() < Duration::from_secs(60), "only {compared:?}");
        let text = viewer.until("\n\n").await.expect("an event");
        let data = text.trim_end().split_once("\ndata: ").expect("data").1;
        let picture: Value = serde_json::from_str(data).expect("JSON");
        pictures.insert(picture["at"].as_str().expect("an instant").to_owned(), picture);
        let seen = browser.run(FIGURES, json!([])).await;
        let Some(picture) = seen["at"].as_str().and_then(|at| pictures.get(at)) else { continue };
        let wanted = expected(picture);
        assert_eq!(like(&seen, &wanted), wanted);
        let medians = seen["medians"].as_array().expect("a list");
        assert!(medians.iter().all(|below| below == true), "a median above the 99th percentile");
        let is_busy =
            picture["waiting"] != 0 && picture["keys"] != json!([]) && !medians.is_empty();
        if is_busy {
            compared.insert(seen["at"].as_str().map(str::to_owned), picture["tick"].clone());
        }
    }
    load.abort();
    let axe = fs::read_to_string("target/clients/node_modules/axe-core/axe.min.js");
    let axe = axe.expect("axe-core, which `make test` installs");
    for (theme, width) in [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)] {
        browser.resize(width, 900).await;
        browser.run("document.documentElement.dataset.theme = arguments[0]", json!([theme])).await;
        let found = browser.run(&format!("{axe};{AXE}"), json!([])).await;
        assert_eq!(found, json!([]), "{theme} {width}");
    }
    let wide = "return document.documentElement.scrollWidth <= window.innerWidth";
    assert_eq!(browser.run(wide, json!([])).await, true, "the page scrolls sideways on a phone");
    browser.run("document.querySelector('[data-action=pause]').click()", json!([])).await;
    let found = browser.run(&format!("{axe};{AXE}"), json!([])).await;
    assert_eq!(found, json!([]), "the dialog");
    assert_eq!(browser.errors().await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_action_of_the_page_works_and_is_undone() {
    let upstream = Upstream::ok().await;
    let yaml = format!("upstream: {}\n{LIMITERS}", upstream.url());
    let gateway = Gateway::start(&format!(
        "admin: {{ listen: 127.0.0.1:0, token: hunter2hunter2, read: token }}\n{yaml}"
    ))
    .await;
    let browser = Browser::start().await;
    browser.open(&format!("http://{}/", gateway.admin)).await;
    // It asks for the token, and takes only the right one.
    let enter = "const own = document.querySelector('#change-token input'); if (!document.getElementById('change').open) return false; own.value = arguments[0]; document.getElementById('change-ok').click(); return true;";
    browser.until("it asks for the token", enter, json!(["wrong"])).await;
    let said = "return document.getElementById('change-error').textContent";
    browser
        .until("the token is wrong", &format!("{said}.includes('not the token')"), json!([]))
        .await;
    browser.run(enter, json!(["hunter2hunter2"])).await;
    let ready = "return document.querySelector('.state.live') && !document.querySelector('[data-limiter=quiet] [data-action=pause]')?.disabled";
    browser.until("it is live", ready, json!([])).await;
    let limiter = async || -> Value {
        let fields = [("Authorization", "Bearer hunter2hunter2")];
        gateway.admin_request(request("GET", "/limiters/quiet", &fields)).await.json()
    };
    let comes = async |what: &str, is: &dyn Fn(&Value) -> bool| {
        eventually(what, async || Some(limiter().await).filter(|said| is(said))).await
    };
    let act = async |action: &str, fields: Value| {
        let button = format!("[data-limiter=quiet] [data-action={action}]");
        browser.until(action, "return !document.querySelector(arguments[0]).disabled && !document.querySelector(arguments[0]).closest('[hidden]')", json!([button])).await;
        browser.run(ACT, json!([button, fields])).await;
    };
    let undo = async || browser.until("an undo", UNDO, json!([])).await;
    let is_plain = |said: &Value| said["override"].is_null();
    // A pause, undone; the same again, resumed; the resumption, undone; and the end of that.
    let pause = json!({ "for": "10m", "reason": "vendor is down" });
    act("pause", pause.clone()).await;
    let said = comes("a pause", &|said| said["override"]["pause"] == true).await;
    assert_eq!(said["override"]["reason"], "vendor is down");
    assert!(
        said["override"]["by"].as_str().is_some_and(|by| by.ends_with("with the token")),
        "{said}"
    );
    undo().await;
    comes("no pause", &is_plain).await;
    act("pause", pause).await;
    comes("a pause", &|said| said["override"]["pause"] == true).await;
    act("resume", json!({ "reason": "vendor is back" })).await;
    comes("no pause", &is_plain).await;
    undo().await;
    let said = comes("the pause again", &|said| said["override"]["pause"] == true).await;
    assert!(said["override"]["left_ms"].as_f64().is_some_and(|left| left > 500_000.0), "{said}");
    // Another override replaces it, and the undo brings it back.
    act("observe", json!({ "for": "5m", "reason": "a look" })).await;
    comes("observes", &|said| said["mode"] == "observe" && said["override"]["pause"].is_null())
        .await;
    undo().await;
    comes("paused", &|said| said["override"]["pause"] == true && said["mode"] == "enforce").await;
    act("rate", json!({ "rate": "3/hour", "for": "5m", "reason": "vendor asked" })).await;
    comes("another rate", &|said| said["rate"] == "3/h").await;
    act("end", json!({ "reason": "enough" })).await;
    comes("the rate of the file", &|said| said["rate"] == "10/h" && is_plain(said)).await;
    // A mistake stays in the dialog.
    act("rate", json!({ "rate": "fast", "for": "5m", "reason": "a mistake" })).await;
    browser
        .until(
            "the mistake",
            "return document.getElementById('change-error').textContent.includes('rate')",
            json!([]),
        )
        .await;
    browser.run("document.getElementById('change-cancel').click()", json!([])).await;
    // A reset that is undone resets nothing; the next one does.
    assert_eq!(gateway.get("/quiet").await.status, 200);
    assert_eq!(limiter().await["level"], 9);
    act("reset", json!({ "reason": "too early" })).await;
    undo().await;
    act("reset", json!({ "reason": "it was a test" })).await;
    comes("a reset", &|said| said["level"] == 10).await;
    let resets = || {
        let lines = gateway.output().1;
        let own = lines.iter().filter(|line| line.contains("an operator resets a limiter"));
        own.filter_map(|line| line.split("\"reason\":\"").nth(1))
            .map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    eventually("one reset in the log", async || (resets() == ["it was a test"]).then_some(()))
        .await;
    // The whole gateway.
    browser.run(ACT, json!(["#reload", { "reason": "a new file" }])).await;
    browser
        .until(
            "a reload",
            "return document.querySelectorAll('#reload-rows tr').length === 1",
            json!([]),
        )
        .await;
    browser.run(ACT, json!(["#limiting", { "for": "5m", "reason": "a test" }])).await;
    let switched = "return document.getElementById('limiting').dataset.value === arguments[0]";
    browser.until("limiting is off", switched, json!(["false"])).await;
    undo().await;
    browser.until("limiting is on", switched, json!(["true"])).await;
    // The token is for this tab, and no page shows it.
    let kept = browser.run("return [document.documentElement.outerHTML.includes('hunter2'), Object.values(localStorage).includes('hunter2hunter2')]", json!([])).await;
    assert_eq!(kept, json!([false, false]));
}

/// A limiter with a bucket for each of 10,000 keys, of which some have waiting requests.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_keys_do_not_freeze_the_page() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { shop: { rate: 2/hour, burst: 1, key: \"{header.x-shop}\" } }\n\
         routes: [{ suffix: \"*\", limiters: [shop], max_wait: 59min }]\n",
    )
    .await;
    let mut conns: Vec<_> = Vec::new();
    for batch in 0..8 {
        let address = gateway.listen;
        conns.push(tokio::spawn(async move {
            let mut conn = Conn::to(address).await.expect("connect");
            for i in 0..1250 {
                let shop = format!("shop-{}", batch * 1250 + i);
                conn.send(request("GET", "/", &[("X-Shop", &shop)])).await.expect("send");
                assert_eq!(conn.answer().await.expect("an answer").status, 200);
            }
        }));
    }
    for conn in conns {
        conn.await.expect("a caller");
    }
    let mut waiting = Vec::new();
    for i in 0..300 {
        waiting.push(gateway.ask("/", &[("X-Shop", &format!("shop-{i}"))]).await);
    }
    let browser = Browser::start().await;
    browser.open(&format!("http://{}/", gateway.admin)).await;
    browser.until("all wait", "return document.querySelector('#summary [data-field=waiting]')?.dataset.value === '300'", json!([])).await;
    browser
        .run("document.querySelector('[data-limiter=shop] [data-action=keys]').click()", json!([]))
        .await;
    let listed = "return document.querySelectorAll('dialog[open] tbody tr').length === 100";
    browser.until("the keys are listed", listed, json!([])).await;
    // The work of the page does not grow with the keys: it has few elements, and reads little.
    let work = browser
        .run(
            "return [document.querySelectorAll('*').length, \
             Math.max(...performance.getEntriesByType('resource').map((it) => it.decodedBodySize))]",
            json!([]),
        )
        .await;
    let [elements, bytes] = [0, 1].map(|i| work[i].as_u64().expect("a number"));
    assert!(elements < 3_000 && bytes < 100_000, "{elements} elements, {bytes} bytes");
    assert_eq!(browser.errors().await, Vec::<Value>::new());
}
