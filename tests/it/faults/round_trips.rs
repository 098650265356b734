//! A store at a distance: three gateways, each with a link of its own, whose round trips are near `store.timeout` or above
//! it, for all or for one, from the start or later. The sum of what they grant stays within the law.

use super::{
    FEW, Policy,
    link::{Link, Weather},
    stage::{BURST, RATE, Seen, Stage},
    table::over_the_law,
};
use crate::support::Redis;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The weather of each link, before and after a second under load.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    before: [Weather; 3],
    after: [Weather; 3],
    /// The store is emptied then, and stalls before all gateways are in its set again.
    is_flushed: bool,
    /// From so much later on the law is looked at, where the others must notice first that one gateway decides alone.
    noticed: Duration,
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A round trip of 60 ms, above the time-out of 50 ms.
const SLOW: Weather = Weather::Slow(ms(30));
/// Round trips of 30 to 70 ms, evenly distributed: half of it each way.
const JITTER: Weather = Weather::Uneven(ms(15), ms(35));
const FAIR: Weather = Weather::Fair;

const SCENARIOS: [(&str, Scenario); 6] = [
    ("60 ms for all", Scenario::constant([SLOW; 3])),
    ("60 ms for one", Scenario::constant([SLOW, FAIR, FAIR])),
    (
        "60 ms for one, later",
        Scenario { after: [SLOW, FAIR, FAIR], ..Scenario::constant([FAIR; 3]) },
    ),
    ("30 to 70 ms", Scenario::constant([JITTER; 3])),
    ("FLUSHALL, then a stall", Scenario { is_flushed: true, ..Scenario::constant([FAIR; 3]) }),
    (
        "one is cut off",
        Scenario {
            after: [Weather::Swallows, FAIR, FAIR],
            noticed: ms(2500),
            ..Scenario::constant([FAIR; 3])
        },
    ),
];

// === impl Scenario ===

impl Scenario {
    const fn constant(weather: [Weather; 3]) -> Self {
        Self { before: weather, after: weather, is_flushed: false, noticed: Duration::ZERO }
    }

    /// Runs the scenario; returns the answers, and how long the gateways were under load.
    async fn play(self) -> (Vec<Seen>, Duration) {
        let redis = Redis::start();
        let mut links = Vec::new();
        for weather in self.before {
            let link = Link::before(redis.port()).await;
            link.set(weather);
            links.push(link);
        }
        let stores: Vec<_> =
            links.iter().map(|link| format!("url: \"redis://127.0.0.1:{}\"", link.port)).collect();
        let mut stage = Stage::of([&stores[0], &stores[1], &stores[2]]).await;
        if self.before == [SLOW; 3] {
            for gateway in &stage.gateways {
                let is_told = |event: &Value| event["message"].as_str().is_some_and(is_slow);
                assert_eq!(gateway.events().into_iter().filter(is_told).count(), 1, "the warning");
                let timeout = gateway.metric("paceway_store_timeout_seconds", &[]).await;
                let round_trip = gateway.metric("paceway_store_round_trip_seconds", &[]).await;
                assert!(round_trip >= 0.06 && timeout > 0.05, "{round_trip} s, {timeout} s");
            }
        }
        let begun = Instant::now();
        stage.begin_with(Policy::Share);
        sleep(ms(1000)).await;
        let judged = match self.noticed.is_zero() {
            true => begun,
            false => Instant::now() + self.noticed,
        };
        for (link, weather) in links.iter().zip(self.after) {
            link.set(weather);
        }
        if self.is_flushed {
            redis.command(&["FLUSHALL"]);
            sleep(ms(300)).await;
            redis.freeze();
            sleep(ms(2500)).await;
            redis.thaw();
        } else {
            sleep(ms(3000) + self.noticed).await;
        }
        stage.end().await;
        let seen = stage.limited(Policy::Share).into_iter().filter(|it| it.sent >= judged);
        (seen.collect(), judged.elapsed())
    }
}

fn is_slow(message: &str) -> bool {
    message.starts_with("the store is slow")
}

/// All at one time, so that they cost the time of one.
#[tokio::test(flavor = "multi_thread")]
async fn the_law_holds_whatever_the_round_trip() {
    let [a, b, c, d, e, f] = SCENARIOS.map(|(_, scenario)| scenario.play());
    let (a, b, c, d, e, f) = tokio::join!(a, b, c, d, e, f);
    for ((name, _), (seen, span)) in SCENARIOS.into_iter().zip([a, b, c, d, e, f]) {
        let others: Vec<_> = seen.iter().filter(|it| ![200, 429].contains(&it.status)).collect();
        assert!(others.is_empty(), "{name}: {others:?}");
        let passed = seen.iter().filter(|it| it.status == 200).count() as f64;
        let (over, used) = (over_the_law(&seen), passed / (RATE * span.as_secs_f64()));
        assert!(over <= FEW + BURST / 3.0, "{name}: {over:.1} more than the law allows");
        assert!(used >= 0.4, "{name}: {used:.2} of the rate is used");
    }
}
