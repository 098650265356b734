//! The limits in the file of each vendor, at twice the load that they allow, before a vendor that counts by its own rule. On
//! virtual time, so that an hour takes no hour.

use paceway::{
    Config,
    algorithm::Micros,
    plan::Plan,
    store::{Check, Checks, Entry, Reply, memory::MemoryStore},
};
use rstest::rstest;
use std::{collections::VecDeque, fs, path::Path};

const SECOND: Micros = 1_000_000;
const MINUTE: Micros = 60 * SECOND;
const HOUR: Micros = 60 * MINUTE;
const DAY: Micros = 24 * HOUR;
/// The instant of the store's clock at which a run begins.
const EPOCH: Micros = 1_000_000_000_000_000;
/// The shortest time from the gateway to the vendor, and by how much it varies.
const ON_THE_WAY: Micros = 20_000;
const JITTER: Micros = 30_000;

/// How a vendor counts.
enum Rule {
    /// At most so many in each window of this length. A window begins with the first call after the one before.
    Window(i64, Micros),
    /// At most so many in any interval of this length.
    Log(i64, Micros),
    /// A bucket of this size, into which so many permits flow in this time.
    Bucket(i64, i64, Micros),
}

/// A rule of the vendor with what it has counted.
struct Judge {
    rule: Rule,
    /// The permits that a call costs.
    cost: i64,
    calls: VecDeque<Micros>,
    began: Micros,
    used: i64,
    /// The permits in the bucket, times the period, and when they were that many.
    level: (i64, Micros),
}

/// A source of numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: Micros) -> Micros {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 16) as Micros % end
    }
}

impl Judge {
    fn new(rule: Rule, cost: i64) -> Self {
        let level = match rule {
            Rule::Bucket(size, _, period) => (size * period, Micros::MIN),
            _ => (0, 0),
        };
        Self { rule, cost, calls: VecDeque::new(), began: Micros::MIN, used: 0, level }
    }

    /// Counts a call that arrives; false if the vendor refuses it.
    fn takes(&mut self, now: Micros) -> bool {
        match self.rule {
            Rule::Window(count, period) => {
                if now >= self.began.saturating_add(period) {
                    (self.began, self.used) = (now, 0);
                }
                self.used += self.cost;
                self.used <= count
            }
            Rule::Log(count, period) => {
                while self.calls.front().is_some_and(|first| *first + period <= now) {
                    self.calls.pop_front();
                }
                self.calls.push_back(now);
                self.calls.len() as i64 * self.cost <= count
            }
            Rule::Bucket(size, count, period) => {
                let (level, since) = self.level;
                let grown = now.saturating_sub(since).min(size * period).saturating_mul(count);
                let level = level.saturating_add(grown).min(size * period) - self.cost * period;
                self.level = (level, now);
                level >= 0
            }
        }
    }

    /// The calls that the vendor takes within `span`, without those of a full bucket.
    fn most(&self, span: Micros) -> f64 {
        let (Rule::Window(count, period)
        | Rule::Log(count, period)
        | Rule::Bucket(_, count, period)) = self.rule;
        count as f64 * span as f64 / period as f64 / self.cost as f64
    }
}

/// The checks of a call of a route, each with its cost. Concurrency permits do not count here: no call takes time.
fn checks(plan: &Plan, route: &str, costs: &[(&str, i64)]) -> Checks {
    let route = plan.config.routes.iter().find(|own| own.name == route).expect("the route");
    let of = |charge: &paceway::config::Charge| {
        let limiter = &plan.limiters[charge.limiter];
        let name = &limiter.limiter.name;
        let cost = costs.iter().find(|(own, _)| own == name).map_or(1, |(_, cost)| *cost);
        let key = limiter.limiter.key.as_ref().map(|_| "one");
        limiter.checks(key, cost).filter(|check| !check.is_lease()).collect::<Vec<Check>>()
    };
    route.limiters.iter().flat_map(of).collect()
}

#[rstest]
#[case::github_reads("github", "reads", &[], 2 * HOUR, 0.99, vec![(Rule::Window(5000, HOUR), 1), (Rule::Log(900, MINUTE), 1)])]
#[case::github_writes("github", "writes", &[("points", 5)], 2 * HOUR,
    0.99, vec![(Rule::Window(5000, HOUR), 1), (Rule::Log(900, MINUTE), 5)])]
#[case::openai("openai", "chat", &[("tokens", 1000)], HOUR,
    0.99, vec![(Rule::Bucket(30_000, 30_000, MINUTE), 1000), (Rule::Bucket(500, 500, MINUTE), 1)])]
#[case::openai_small("openai", "others", &[], HOUR, 0.99, vec![(Rule::Bucket(500, 500, MINUTE), 1)])]
#[case::anthropic("anthropic", "messages", &[("input-tokens", 1000), ("output-tokens", 300)], HOUR,
    0.99, vec![(Rule::Bucket(8000, 8000, MINUTE), 300), (Rule::Bucket(30_000, 30_000, MINUTE), 1000),
         (Rule::Bucket(50, 50, MINUTE), 1)])]
#[case::bedrock("bedrock", "converse", &[("tokens", 4000)], HOUR,
    0.99, vec![(Rule::Log(200_000, MINUTE), 4000), (Rule::Window(200_000, MINUTE), 4000), (Rule::Log(200, MINUTE), 1)])]
#[case::google("google", "sheets", &[], HOUR, 0.99, vec![(Rule::Log(60, MINUTE), 1), (Rule::Window(60, MINUTE), 1)])]
#[case::amazon_orders("amazon-sp-api", "list-orders", &[], 10 * HOUR, 0.99, vec![(Rule::Bucket(20, 1, MINUTE), 1)])]
#[case::amazon_items("amazon-sp-api", "order-items", &[], HOUR, 0.99, vec![(Rule::Bucket(30, 1, 2 * SECOND), 1)])]
#[case::amazon_listings("amazon-sp-api", "listings", &[], HOUR, 0.99, vec![(Rule::Bucket(5, 5, SECOND), 1)])]
#[case::discord("discord", "messages", &[], HOUR, 0.96, vec![(Rule::Log(5, 5 * SECOND), 1), (Rule::Log(50, SECOND), 1)])]
#[case::discord_global("discord", "others", &[], 5 * MINUTE, 0.96, vec![(Rule::Log(50, SECOND), 1), (Rule::Window(50, SECOND), 1)])]
#[case::stripe("stripe", "api", &[], 5 * MINUTE, 0.96, vec![(Rule::Log(25, SECOND), 1), (Rule::Log(100, SECOND), 1)])]
#[case::slack("slack", "others", &[], HOUR, 0.99, vec![(Rule::Window(50, MINUTE), 1), (Rule::Log(50, MINUTE), 1)])]
#[case::slack_tier_2("slack", "tier2", &[], HOUR, 0.99, vec![(Rule::Window(20, MINUTE), 1)])]
#[case::shopify_rest("shopify-rest", "admin", &[], HOUR, 0.99, vec![(Rule::Bucket(40, 2, SECOND), 1)])]
#[case::shopify_graphql("shopify-graphql", "graphql", &[("points", 50)], HOUR,
    0.99, vec![(Rule::Bucket(2000, 100, SECOND), 50)])]
#[case::salesforce("salesforce", "api", &[], DAY + HOUR, 0.99, vec![(Rule::Log(100_000, DAY), 1)])]
fn a_whole_window_at_full_load_is_used_and_never_refused(
    #[case] vendor: &str,
    #[case] route: &str,
    #[case] costs: &[(&str, i64)],
    #[case] span: Micros,
    // A margin of 30 ms costs 3 % of a window of a second.
    #[case] least: f64,
    #[case] rules: Vec<(Rule, i64)>,
) {
    let used = used_part(&plan_of(vendor), route, costs, span, rules);
    assert!(used >= least, "{vendor} uses {used} of the quota");
}

/// The vendor has named another rate than the file. A store that begins empty has the burst, as the vendor does.
#[rstest]
#[case::faster("0.1", Rule::Bucket(20, 1, 10 * SECOND))]
#[case::slower("0.0083", Rule::Bucket(20, 1, 120 * SECOND))]
#[case::rounded_up("0.0167", Rule::Bucket(20, 1, MINUTE))]
fn a_whole_window_of_a_learned_rate_is_used_and_never_refused(
    #[case] header: &str,
    #[case] rule: Rule,
) {
    let plan = plan_of("amazon-sp-api");
    let limiter = plan.limiters.iter().find(|own| own.limiter.name == "list-orders");
    let upstream = &plan.config.upstreams[0].throttle.rules;
    let mut headers = http::HeaderMap::new();
    headers.insert("x-amzn-ratelimit-limit", header.parse().expect("a value"));
    let [quota] = &upstream.rates(&headers)[..] else { panic!("one rate") };
    limiter.and_then(|own| own.learned.as_ref()).expect("it learns").hear(None, quota.rate);
    let used = used_part(&plan, "list-orders", &[], 10 * HOUR, vec![(rule, 1)]);
    assert!(used >= 0.98, "{used} of the quota is used");
}

fn plan_of(vendor: &str) -> Plan {
    let file = format!("config/vendors/{vendor}.yaml");
    let text = fs::read_to_string(&file).expect("a file");
    let config = Config::parse(&text, &file, Path::new("."), &|_| None).expect("a config");
    Plan::new(config, false)
}

/// The part of a quota that calls at twice its rate use, none of which may be refused.
fn used_part(
    plan: &Plan,
    route: &str,
    costs: &[(&str, i64)],
    span: Micros,
    rules: Vec<(Rule, i64)>,
) -> f64 {
    let (checks, store) = (checks(plan, route, costs), MemoryStore::default());
    let budget = plan.config.routes.iter().find(|own| own.name == route).map(|own| own.max_wait);
    let budget = budget.map_or(0, |budget| budget.as_micros() as Micros);
    let mut judges: Vec<_> = rules.into_iter().map(|(rule, cost)| Judge::new(rule, cost)).collect();
    // The first of the rules is the one that binds.
    let most = judges[0].most(span);
    let mut random = Random(7);
    let mut asked: Vec<_> = (0..2 * most as usize).map(|_| random.below(span)).collect();
    asked.sort_unstable();
    let ask = [Entry::Reserve { checks: checks.clone(), budget, ticket: None }];
    let sent = asked.iter().filter_map(|at| match &store.run_at(EPOCH + at, &ask)[..] {
        [Reply::Decision(decision)] if decision.admitted => Some(at + decision.wait),
        _ => None,
    });
    let mut arrivals: Vec<_> =
        sent.filter(|at| *at < span).map(|at| at + ON_THE_WAY + random.below(JITTER)).collect();
    arrivals.sort_unstable();
    let refused = arrivals
        .iter()
        // Each judge counts the call, also after another one has refused it.
        .filter(|at| judges.iter_mut().map(|own| usize::from(!own.takes(**at))).sum::<usize>() > 0);
    assert_eq!(refused.count(), 0, "{route}: calls are refused");
    arrivals.len() as f64 / most
}
