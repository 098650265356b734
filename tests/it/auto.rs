//! Limiters that learn their rate or their margin: two gateways share it, a wave of refusals counts once, and a restart keeps it.

use crate::support::{
    Conn, Gateway, Redis, Reply, Said, Upstream, connected_store, eventually, get, reply, request,
};
use paceway::{
    algorithm::auto_margin::LearnedMargin,
    store::{Backend, NoteChange, memory::MemoryStore, redis::RedisUrl},
};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::task::AbortHandle;

/// As many requests of one wave are refused, each 300 ms after it arrived: no gateway knows of the first refusal when the
/// others are sent.
const WAVE: i64 = 5;
const LATE: Duration = Duration::from_millis(300);

fn config(redis: &Redis, upstream: &Upstream) -> String {
    format!(
        "store: {{ url: \"{}\", timeout: 2s }}\nupstream: {}\n\
         limiters: {{ unknown: {{ rate: auto, start: 50/s, min: 1/s, max: 500/s }} }}\n\
         routes: [{{ suffix: \"*\", limiters: [unknown], max_wait: 500ms }}]\n",
        redis.url(),
        upstream.url()
    )
}

/// Callers that use more than the quota, until the handles are aborted.
fn callers(gateways: &[SocketAddr]) -> Vec<AbortHandle> {
    let addresses = gateways.iter().cycle().take(48).copied();
    let callers = addresses.map(|address| {
        tokio::spawn(async move {
            loop {
                get(address, "/search").await;
            }
        })
    });
    callers.map(|task| task.abort_handle()).collect()
}

async fn shown(gateway: &Gateway) -> f64 {
    gateway.limiter("unknown").await["rate_per_second"].as_f64().expect("a rate")
}

#[tokio::test]
async fn gateways_share_a_rate_that_falls_once_for_each_wave_and_survives_a_restart() {
    let redis = Redis::start();
    let refusals = Arc::new(AtomicI64::new(0));
    let left = refusals.clone();
    let upstream = Upstream::start(move |_| {
        match left.fetch_update(SeqCst, SeqCst, |left| (left > 0).then_some(left - 1)) {
            Ok(_) => reply("429 Too Many Requests", &[("retry-after", "1")], "").after(LATE),
            Err(_) => Reply::ok(),
        }
    })
    .await;
    let yaml = config(&redis, &upstream);
    let mut gateways = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    for gateway in &gateways {
        assert_eq!(shown(gateway).await, 50.0, "begins with `start`");
    }

    let callers = callers(&gateways.each_ref().map(|gateway| gateway.listen));
    let grown = eventually("the rate grows while it is used", async || {
        Some(shown(&gateways[0]).await).filter(|rate| *rate > 60.0)
    })
    .await;
    let other = shown(&gateways[1]).await;
    assert!(other >= grown, "the other gateway has it, too: {other} after {grown}");
    let state = gateways[0].limiter("unknown").await;
    assert!(state.get("working_reason").is_none(), "nothing was refused: {state}");

    refusals.store(WAVE, SeqCst);
    eventually("the whole wave is refused, and the pause has ended", async || {
        let state = gateways[0].limiter("unknown").await;
        let is_over = refusals.load(SeqCst) == 0 && state.get("paused_ms").is_none();
        (is_over && state.get("working_reason").is_some()).then_some(())
    })
    .await;
    callers.iter().for_each(AbortHandle::abort);
    let fallen = shown(&gateways[0]).await;
    // The rate flowed for a second to a value a tenth lower. Five refusals that count would leave a quarter of it.
    assert!(fallen > 0.7 * grown, "one wave counts once: {fallen} after {grown}");
    let state = gateways[1].limiter("unknown").await;
    assert_eq!(state["working_reason"], "the upstream answered 429");

    let metric = gateways[0].metric("paceway_limiter_rate", &[("limiter", "unknown")]).await;
    // A working rate does not fall by itself.
    assert!(metric >= 0.99 * fallen, "{metric} and {fallen}");
    for gateway in &mut gateways {
        gateway.signal("TERM");
        gateway.end().await;
    }
    let again = Gateway::start(&yaml).await;
    let rate = shown(&again).await;
    assert!(rate >= 0.99 * fallen && rate != 50.0, "it continues where it was: {rate}, {fallen}");

    // A reset by an operator begins with `start` again.
    let mut admin = Conn::to(again.admin).await.expect("connect");
    admin.send(request("DELETE", "/limiters/unknown", &[])).await.expect("send");
    assert_eq!(admin.answer().await.expect("an answer").status, 200);
    assert_eq!(shown(&again).await, 50.0);
}

async fn margin(gateway: &Gateway) -> f64 {
    gateway.limiter("strict").await["margin_ms"].as_f64().expect("a margin")
}

/// Waits until every gateway shows the same margin, which is above 0, and returns it.
async fn shared_margin(gateways: &[Gateway]) -> f64 {
    eventually("all gateways show the same margin", async || {
        let first = margin(&gateways[0]).await;
        for gateway in gateways {
            if margin(gateway).await != first {
                return None;
            }
        }
        (first > 0.0).then_some(first)
    })
    .await
}

/// The upstream refuses a call while the limiter has no permit left: the limiter kept its window, so the delay is the reason.
#[tokio::test]
async fn gateways_share_a_margin_that_grows_at_a_refusal_and_survives_a_restart() {
    let redis = Redis::start();
    let refusals = Arc::new(AtomicI64::new(0));
    let left = refusals.clone();
    let upstream = Upstream::start(move |_| {
        match left.fetch_update(SeqCst, SeqCst, |left| (left > 0).then_some(left - 1)) {
            Ok(_) => reply("429 Too Many Requests", &[("retry-after", "0.1")], ""),
            Err(_) => Reply::ok(),
        }
    })
    .await;
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 2s }}\nupstream: {}\n\
         limiters: {{ strict: {{ algorithm: sliding_window, rate: 50/s, margin: auto }} }}\n\
         routes: [{{ suffix: \"*\", limiters: [strict], max_wait: 500ms }}]\n",
        redis.url(),
        upstream.url()
    );
    let mut gateways = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    assert_eq!(margin(&gateways[0]).await, 0.0, "begins without a margin");
    let callers = callers(&gateways.each_ref().map(|gateway| gateway.listen));
    eventually("the limiter is saturated", async || {
        (gateways[0].limiter("strict").await["level"] == 0).then_some(())
    })
    .await;
    // A refusal counts if requests were held since the last report.
    let grown = eventually("the margin grows", async || {
        refusals.store(1, SeqCst);
        (margin(&gateways[0]).await > 0.0).then_some(())
    });
    grown.await;
    refusals.store(0, SeqCst);
    callers.iter().for_each(AbortHandle::abort);
    shared_margin(&gateways).await;
    for gateway in &mut gateways {
        gateway.signal("TERM");
        gateway.end().await;
    }
    let Said::Bytes(Some(text)) = redis.command(&["GET", "paceway:{strict}:A:strict"]) else {
        panic!("no record")
    };
    let learned = LearnedMargin::parse(std::str::from_utf8(&text).expect("text")).expect("one");
    let again = [Gateway::start(&yaml).await];
    let shown = shared_margin(&again).await;
    assert!((shown - learned.margin as f64 / 1e3).abs() < 1e-6, "it continues where it was");
    let reset = request("DELETE", "/limiters/strict", &[]);
    assert_eq!(again[0].admin_request(reset).await.status, 200);
    assert_eq!(margin(&again[0]).await, 0.0);
}

async fn a_writer_that_has_not_read_the_text_changes_nothing(store: &dyn Backend) {
    let key: Arc<str> = "paceway:{note}:A:note".into();
    let change = |expected: Option<&str>, text: &str| {
        Some(NoteChange { expected: expected.map(Into::into), text: text.into() })
    };
    for (change, expected) in [
        (None, None),
        (change(Some("one"), "two"), None),
        (change(None, "one"), Some("one")),
        (change(None, "two"), Some("one")),
        (change(Some("one"), "two"), Some("two")),
        (None, Some("two")),
    ] {
        let note = store.exchange(key.clone(), change.clone()).await.expect("an answer");
        assert_eq!(note.text.as_deref(), expected, "{change:?}");
        assert!(note.now > 1_000_000_000_000_000, "the store's clock");
    }
}

#[tokio::test]
async fn a_record_is_replaced_only_by_a_writer_that_has_read_it() {
    a_writer_that_has_not_read_the_text_changes_nothing(&MemoryStore::default()).await;
    let redis = Redis::start();
    let url = RedisUrl::parse(&redis.url()).expect("a URL");
    let store = connected_store(&url).await;
    a_writer_that_has_not_read_the_text_changes_nothing(&store).await;
    let Said::Number(left) = redis.command(&["PTTL", "paceway:{note}:A:note"]) else {
        panic!("no number")
    };
    assert!(left > 29 * 24 * 3_600_000, "{left} ms");
}
