//! Windows of the calendar at the real binary: when they end, what survives, and what operators see.

use crate::support::{Gateway, Redis, Upstream, eventually, faketime, paceway};
use jiff::{Timestamp, ToSpan, civil::date, tz::TimeZone};

fn yaml(store: &str, upstream: &Upstream, limiter: &str) -> String {
    format!(
        "upstream: {}\nstore: {store}\nlimiters: {{ vendor: {limiter} }}\n\
         routes: [{{ suffix: '*', limiters: [vendor], max_wait: 0 }}]\n",
        upstream.url()
    )
}

/// Asks once; the seconds of `Retry-After` of a refusal.
async fn ask(gateway: &Gateway) -> Result<(), i64> {
    let answer = gateway.get("/call").await;
    if answer.status == 200 {
        return Ok(());
    }
    assert_eq!(answer.status, 429);
    Err(answer.field("retry-after").and_then(|text| text.parse().ok()).expect("a time"))
}

/// The seconds until the 15th of a month begins in India.
fn until_the_15th() -> i64 {
    let zone = TimeZone::get("Asia/Kolkata").expect("a zone");
    let now = Timestamp::now();
    let today = zone.to_datetime(now).date();
    let this = date(today.year(), today.month(), 15);
    let next = if today < this { this } else { this.checked_add(1.month()).expect("a month") };
    zone.to_timestamp(next.at(0, 0, 0, 0)).expect("an instant").as_second() - now.as_second()
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_share_a_month_over_restarts_and_reloads() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let store = format!("{{ url: '{}', timeout: 10s, on_failure: reject }}", redis.url());
    let of = |count: u32| {
        let limiter = "algorithm: fixed_window, resets: 'day 15 00:00 Asia/Kolkata'";
        yaml(&store, &upstream, &format!("{{ {limiter}, rate: {count}/month }}"))
    };
    let [first, mut second] = [Gateway::start(&of(2)).await, Gateway::start(&of(2)).await];
    ask(&first).await.expect("granted");
    ask(&second).await.expect("granted");
    for gateway in [&first, &second] {
        let wait = ask(gateway).await.expect_err("used up");
        assert!((wait - until_the_15th()).abs() <= 2, "{wait}");
    }
    let page = first.limiter("vendor").await;
    assert_eq!((&page["rate"], &page["algorithm"]), (&"2/month".into(), &"fixed_window".into()));
    assert_eq!(page["resets"], "day 15 00:00 Asia/Kolkata");
    let next = page["next_reset"].as_str().expect("a reset");
    assert!(next.ends_with("-15 00:00 Asia/Kolkata"), "{next}");
    second.signal("TERM");
    second.end().await;
    let third = Gateway::start(&of(2)).await;
    ask(&third).await.expect_err("still used up");
    third.rewrite(&of(3));
    assert_eq!(third.reload().await.status, 200);
    ask(&third).await.expect("one more");
    ask(&third).await.expect_err("used up again");
}

/// Midnight in Los Angeles after the day of 23 hours, in the memory of a gateway.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_ends_at_midnight_of_its_zone() {
    let upstream = Upstream::ok().await;
    let midnight: Timestamp = "2026-03-09T07:00:00Z".parse().expect("an instant");
    let shift = midnight.as_second() - 15 - Timestamp::now().as_second();
    let limiter = "{ algorithm: fixed_window, rate: 2/day, resets: '00:00 America/Los_Angeles' }";
    let yaml = yaml("memory", &upstream, limiter);
    let gateway = Gateway::start_with(&yaml, &faketime(&format!("{shift:+}s"))).await;
    let reset = async || gateway.limiter("vendor").await["next_reset"].clone();
    assert_eq!(reset().await, "2026-03-09 00:00 America/Los_Angeles");
    ask(&gateway).await.expect("granted");
    ask(&gateway).await.expect("granted");
    assert!((1..=15).contains(&ask(&gateway).await.expect_err("used up")));
    eventually("the next day", async || ask(&gateway).await.ok()).await;
    ask(&gateway).await.expect("granted");
    let wait = ask(&gateway).await.expect_err("used up");
    assert!((86_300..=86_400).contains(&wait), "{wait}");
    eventually("the gateway renews its windows", async || {
        (reset().await == "2026-03-10 00:00 America/Los_Angeles").then_some(())
    })
    .await;
    assert!((86_300..=86_400).contains(&ask(&gateway).await.expect_err("used up")));
}

/// 4,320 permits for the 12 hours that are left: one in 10 s.
#[tokio::test(flavor = "multi_thread")]
async fn the_permits_of_a_day_flow_until_its_end() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let now = TimeZone::UTC.to_datetime(Timestamp::now());
    let time = format!("{:02}:{:02}", (now.hour() + 12) % 24, now.minute());
    let limiter = format!(
        "{{ algorithm: fixed_window, rate: 4320/day, resets: '{time} UTC', spread: even }}"
    );
    for store in ["memory".to_owned(), format!("{{ url: '{}', timeout: 10s }}", redis.url())] {
        let gateway = Gateway::start(&yaml(&store, &upstream, &limiter)).await;
        ask(&gateway).await.expect("granted");
        let wait = ask(&gateway).await.expect_err("a slot in 10 s");
        assert!((5..=11).contains(&wait), "{wait}");
        assert_eq!(gateway.limiter("vendor").await["spread"], "even");
        let file = gateway.file();
        let shown = paceway(&["explain", file.to_str().expect("a path"), "GET", "/call"]);
        let rule = format!("fixed_window 4320/d, resets {time} UTC, spread even (next 20");
        let shown = String::from_utf8_lossy(&shown.stdout);
        assert!(shown.contains(&rule), "{shown}");
    }
}
