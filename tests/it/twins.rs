//! One specification, two executions: the rules in this process and the script on a real Redis, step by step
//! on random sequences, on one virtual clock.

mod step;

use crate::support::{Redis, Said};
use metrics::Counter;
use paceway::{
    algorithm::{
        CalendarWindow, Concurrency, FixedWindow, Grant, LeakyBucket, Rule, SlidingWindow,
        TokenBucket, WarmUp, concurrency::Ticket, gate::Bounds, reserve::Part,
    },
    key::StateNames,
    store::{
        Alternative, Alternatives, Check, Checks, Entry, ForecastAsk, OnLoss, Reply,
        memory::MemoryStore,
        redis::{Epochs, RedisStore, RedisUrl},
    },
};
use proptest::{prelude::*, test_runner::TestRunner};
use rstest::rstest;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use step::{Step, What, bounds, step};

pub(crate) const T0: i64 = 1_700_000_000_000_000;
/// Deletes a state. Its gate stays, as it does in memory: a pause that is known does no harm.
const LOSE_STATE: &str = "
    local value = redis.call('GET', KEYS[1])
    if value and string.byte(value) == 86 then
      local holes = struct.unpack('<I2', value, 125)
      return redis.call('SET', KEYS[1], string.sub(value, 1, 126 + 16 * holes))
    end
    return redis.call('DEL', KEYS[1])";
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn token_bucket() -> BoxedStrategy<Rule> {
    let small = (1..50i64, 50..3_000_000i64, 3..9i64);
    let odd = prop_oneof![
        Just((7, 1_000_000, 7)),
        Just((80_000, 1_000_000, 80_000)),
        Just((1, 86_400_000_000, 3)),
        Just((123_457, 86_400_000_000, 123_457)),
        Just((999_983, 1_000_000, 10)),
    ];
    let any = prop_oneof![3 => small, 1 => odd];
    any.prop_map(|(count, period, burst)| {
        Rule::from(TokenBucket::new(count, period, burst).expect("a rule"))
    })
    .boxed()
}

pub(crate) fn sliding_window() -> BoxedStrategy<Rule> {
    let small = (3..9i64, 1_000..3_000_000i64, 0..50_000i64);
    // Long enough that a state is written in pieces.
    let long = (30..200i64, 1_000_000..90_000_000i64, Just(0));
    let odd = prop_oneof![
        Just((20_000, 60_000_000, 0)),
        Just((1_000_000, 86_400_000_000, 30_000)),
        Just((3, 86_400_000_000, 0)),
    ];
    let any = prop_oneof![3 => small, 3 => long, 1 => odd];
    any.prop_map(|(count, period, margin)| {
        Rule::from(SlidingWindow::new(count, period, margin).expect("a rule"))
    })
    .boxed()
}

fn concurrency() -> BoxedStrategy<Rule> {
    let rule = (1..4i64, prop_oneof![Just(60_000_000), 1_000..5_000_000i64]);
    rule.prop_map(|(max, lease)| Rule::from(Concurrency::new(max, lease).expect("a rule"))).boxed()
}

fn fixed_window() -> BoxedStrategy<Rule> {
    let period = prop_oneof![Just(1_000_000), Just(86_400_000_000), 1_000..5_000_000i64];
    let rule = (3..9i64, period);
    rule.prop_map(|(count, period)| Rule::from(FixedWindow::new(count, period).expect("a rule")))
        .boxed()
}

/// Windows from milliseconds to months, in which the sequence begins or which it meets, also some that differ a little.
fn calendar_window() -> BoxedStrategy<Rule> {
    let length = prop_oneof![
        Just(3_600_000_000i64),
        Just(86_400_000_000),
        Just(2_678_400_000_000),
        2_000..5_000_000i64,
    ];
    let count = prop_oneof![4 => 3..9i64, 1 => 9..1_000i64, 1 => Just(1_000_000_000)];
    let rule = (count, length, 8..12i64, -4..40i64, any::<bool>());
    rule.prop_map(|(count, length, second, since, is_even)| {
        let first = T0 - length * since / 16;
        let resets = [first, first + length, first + length + length * second / 10];
        let rule = CalendarWindow::new(count.min(length / 2), resets).expect("a rule");
        Rule::from(if is_even { rule.even() } else { rule })
    })
    .boxed()
}

fn any_rule() -> BoxedStrategy<Rule> {
    prop_oneof![token_bucket(), sliding_window(), fixed_window(), calendar_window(), concurrency()]
        .boxed()
}

#[rstest]
#[case::token_bucket(token_bucket(), 60)]
#[case::sliding_window(sliding_window(), 60)]
#[case::sliding_window_long(sliding_window(), 400)]
#[case::fixed_window(fixed_window(), 60)]
#[case::calendar_window(calendar_window(), 60)]
#[case::calendar_window_long(calendar_window(), 400)]
#[case::concurrency(concurrency(), 60)]
#[case::all_together(any_rule(), 60)]
fn memory_and_redis_agree_step_by_step(#[case] rule: BoxedStrategy<Rule>, #[case] steps: usize) {
    say_the_same(rule, steps);
}

/// A reset after a loss is not forgotten when a grant of before the loss is refunded to it.
#[tokio::test]
async fn a_refund_does_not_undo_a_reset_after_a_loss() {
    let redis = Redis::start();
    let rule = |count, period| Rule::from(TokenBucket::new(count, period, 3).expect("a rule"));
    // 50 µs and 374 µs a permit.
    let rules = [rule(20_000, 1_000_000), rule(20_000, 1_000_000), rule(500, 187_000)];
    let decide = |used, budget| What::Decide { used, observe: [false; 3], cost: 1, budget };
    let step = |after, what| Step { after, what };
    let steps = vec![
        step(0, decide([false, true, true], 0)),
        step(0, What::Lose { states: false }),
        step(0, decide([false; 3], 700_374)),
        step(0, What::Forget(2)),
        step(1, decide([false; 3], 700_049)),
        step(1, decide([false, true, false], 0)),
        step(0, What::GiveBack(0, 0)),
        step(0, decide([false, false, true], 0)),
    ];
    let kinds = (rules, [OnLoss::Close; 3], [None; 3]);
    compare(&redis, 0, kinds, steps).await.expect("the same");
}

/// The clock of the store is set back by 3 s after a loss.
#[rstest]
#[case::token_bucket(TokenBucket::new(40, 1_000_000, 10).map(Rule::from))]
#[case::sliding_window(SlidingWindow::new(10, 250_000, 0).map(Rule::from))]
#[case::fixed_window(FixedWindow::new(10, 250_000).map(Rule::from))]
#[case::calendar_window(CalendarWindow::new(10, [T0, T0 + 250_000, T0 + 500_000]).map(Rule::from))]
#[case::leaky_bucket(LeakyBucket::new(40, 1_000_000, 0, None).map(Rule::from))]
#[case::warm_up(WarmUp::new(40, 1_000_000, 1_000_000, 3.0).map(Rule::from))]
#[tokio::test]
async fn a_clock_that_is_set_back_after_a_loss_forgets_no_grant(#[case] rule: Option<Rule>) {
    let redis = Redis::start();
    let decide = |used| What::Decide { used, observe: [false; 3], cost: 1, budget: 60_000_000 };
    let step = |after, what| Step { after, what };
    let mut steps = vec![
        step(0, decide([true; 3])),
        step(0, What::Lose { states: true }),
        step(1_000, decide([true, false, false])),
        step(-3_000_000, decide([true; 3])),
    ];
    let asks = [[true, false, false], [false, true, false], [true; 3]];
    steps.extend(asks.iter().cycle().take(60).map(|used| step(1_000, decide(*used))));
    let rules = [rule.expect("a rule"); 3];
    let on_loss = [OnLoss::Close, OnLoss::Close, OnLoss::Trust];
    compare(&redis, 0, (rules, on_loss, [None; 3]), steps).await.expect("the same");
}

/// Runs random sequences of up to `steps` steps on limiters with such rules.
pub(crate) fn say_the_same(rule: BoxedStrategy<Rule>, steps: usize) {
    let redis = Redis::that_is_heard();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let case = AtomicU64::new(0);
    let cases = ProptestConfig::default().cases * 60 / u32::try_from(steps).expect("few");
    let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
    let rules = [rule.clone(), rule.clone(), rule.clone()];
    let on_loss = || prop_oneof![Just(OnLoss::Close), Just(OnLoss::Trust)];
    let on_loss = [on_loss(), on_loss(), on_loss()];
    let bounds = [bounds(), bounds(), bounds()];
    let strategy = ((rules, on_loss, bounds), prop::collection::vec(step(rule), 1..steps));
    let result = runner.run(&strategy, |(rules, steps)| {
        let case = case.fetch_add(1, Relaxed);
        runtime.block_on(compare(&redis, case, rules, steps))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

pub(crate) async fn connect(redis: &Redis) -> RedisStore {
    connect_as(redis, "paceway").await
}

/// As a gateway of its own, whose keys have this prefix.
pub(crate) async fn connect_as(redis: &Redis, prefix: &str) -> RedisStore {
    connect_to(&RedisUrl::parse(&redis.url()).expect("a URL"), prefix).await
}

/// The same for a case of many, in every fourth of which the server is sent the script.
pub(crate) async fn connect_for(redis: &Redis, case: u64, prefix: &str) -> RedisStore {
    match case % 4 {
        0 => connect_by_script(redis, prefix).await,
        _ => connect_as(redis, prefix).await,
    }
}

/// As a gateway whose server is sent the script.
pub(crate) async fn connect_by_script(redis: &Redis, prefix: &str) -> RedisStore {
    let url = RedisUrl::parse(&redis.url()).expect("a URL");
    connect_to(&url.without_functions(), prefix).await
}

async fn connect_to(url: &RedisUrl, prefix: &str) -> RedisStore {
    let store = RedisStore::open(url, &Epochs::new(prefix, Counter::noop())).expect("a store");
    store.connected(LIMIT).await.expect("a connection");
    store
}

/// The state of a sequence, on which its next step depends.
#[derive(Default)]
struct SoFar {
    granted: Vec<(Check, Grant)>,
    queued: Vec<(Checks, Ticket)>,
    tickets: i64,
    /// The store has been asked, so that there is something to lose.
    met: bool,
    /// Whether the server has lost it, and no call has met that yet.
    lost: bool,
    has_lost: bool,
}

impl SoFar {
    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket { gateway: 4_503_599_627_370_495, number: self.tickets, deadline: 0 }
    }
}

async fn compare(
    server: &Redis,
    case: u64,
    (mut rules, on_loss, bounds): ([Rule; 3], [OnLoss; 3], [Option<Bounds>; 3]),
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let memory = MemoryStore::default();
    // Each case has a clock of its own, and so an epoch of its own.
    let prefix = format!("twins{case}");
    let redis = &connect_for(server, case, &prefix).await;
    // As in a configuration, a key names the algorithm of its state.
    let key = |i: usize, rule: Rule| -> Arc<str> {
        StateNames::new(&prefix, &case.to_string(), rule.letter(), &i.to_string()).of(None).into()
    };
    let check = |rules: &[Rule; 3], i: usize, cost: i64, enforce: bool| Check {
        enforce,
        bounds: bounds[i].filter(|_| rules[i].lease().is_none()).map(Arc::new),
        ..Check::new(key(i, rules[i]), rules[i])
            .with_cost(cost.min(rules[i].capacity()))
            .with_horizon(rules[i].horizon(700_000, 3))
            .with_on_loss(on_loss[i])
    };
    let mut now = T0;
    let mut so_far = SoFar::default();
    let mut batch = Vec::new();
    for Step { after, what } in steps {
        let entry = match what {
            What::Decide { used, observe, cost, budget } => {
                let used = (0..3).filter(|i| used[*i] || used == [false; 3]);
                let checks: Checks = used.map(|i| check(&rules, i, cost, !observe[i])).collect();
                let ticket = checks.iter().any(Check::is_lease).then(|| so_far.ticket());
                Entry::Reserve { checks, budget, ticket }
            }
            What::Choose { used, afters, cost, budget } => {
                // Some ways share a limiter, and some have two.
                let way = |i: usize| Alternative {
                    id: 7 * i as u8,
                    checks: if used[i] {
                        [check(&rules, i, cost, true)].into()
                    } else {
                        [i, (i + 1) % 3].map(|i| check(&rules, i, cost, true)).into()
                    },
                    after: afters[i],
                };
                let among = Arc::new(Alternatives::new((0..3).map(way).collect()).expect("ways"));
                let ticket = among.all().iter().any(Check::is_lease).then(|| so_far.ticket());
                Entry::Choose { among, budget, ticket }
            }
            What::GiveBack(i, more) if i < so_far.granted.len() => {
                let last = so_far.granted.len() - 1;
                let (check, grant) = so_far.granted.swap_remove(last - i);
                let horizon = check.horizon + more;
                Entry::Refund { check: check.with_horizon(horizon), grant }
            }
            What::Settle(i, used, more) if i < so_far.granted.len() => {
                let (check, grant) = so_far.granted.swap_remove(i);
                let horizon = check.horizon + more;
                let check = check.with_horizon(horizon);
                let rate = check.algorithm.as_rate();
                match rate.and_then(|rate| rate.unused_part(grant, check.cost, used)) {
                    Some((grant, cost)) => Entry::Refund { check: check.with_cost(cost), grant },
                    None => continue,
                }
            }
            What::MoveUp(i, budget) if i < so_far.granted.len() => {
                let (check, grant) = so_far.granted.swap_remove(i);
                if check.is_lease() {
                    so_far.granted.push((check, grant));
                    continue;
                }
                let parts = [Part { at: 0, grant }].into_iter().collect();
                Entry::MoveUp { checks: [check].into(), budget, parts }
            }
            What::Charge(i, permits) if rules[i].lease().is_none() => {
                let piece = rules[i].as_rate().map_or(1, |rate| rate.piece());
                let cost = permits.min(piece);
                Entry::Charge { check: check(&rules, i, 1, false).with_cost(cost) }
            }
            What::Renew(i) if i < so_far.granted.len() => {
                let (check, grant) = so_far.granted[i].clone();
                match check.is_lease() {
                    true => Entry::Renew { check, grant },
                    false => continue,
                }
            }
            What::AskAgain(i) if i < so_far.queued.len() => {
                let (checks, ticket) = so_far.queued.swap_remove(i);
                Entry::Reserve { checks, budget: 1_000_000, ticket: Some(ticket) }
            }
            What::Forget(i) if i < 3 => Entry::Forget { check: check(&rules, i, 1, true) },
            What::GiveBack(..)
            | What::MoveUp(..)
            | What::Charge(..)
            | What::Settle(..)
            | What::Renew(_)
            | What::AskAgain(_)
            | What::Forget(_) => continue,
            What::Look(i) => Entry::Look { check: check(&rules, i, 1, true) },
            What::Pause(i, pause) => Entry::Pause { check: check(&rules, i, 1, true), pause },
            What::Lower(i, told) => Entry::Lower { check: check(&rules, i, 1, true), told },
            What::Change(i, rule) => {
                // An absent state is lost, and virtual time expires no key of a real server: a rule that remembers
                // longer would show that.
                if !so_far.has_lost {
                    rules[i] = rule;
                }
                continue;
            }
            What::Lose { states } => {
                run(redis, &memory, now, &mut batch, &mut so_far).await?;
                server.command(&["DEL", &format!("{prefix}:marker")]);
                // Those of places stay: what they say is true, if not all that is.
                for (i, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.lease().is_none())
                {
                    // In memory they stay as well, and a limiter that trusts the store believes them.
                    if states && on_loss[i] == OnLoss::Close {
                        server.command(&["EVAL", LOSE_STATE, "1", &key(i, *rule)]);
                    }
                }
                (so_far.lost, so_far.has_lost) = (so_far.met, true);
                // A state that was born at the very instant of the loss would be taken for younger.
                now += after.max(1);
                continue;
            }
        };
        // Steps without time between them go in one call, as group commit sends them.
        if after != 0 || batch.len() >= 4 {
            run(redis, &memory, now, &mut batch, &mut so_far).await?;
        }
        now += after;
        batch.push(entry);
    }
    run(redis, &memory, now, &mut batch, &mut so_far).await?;
    if so_far.lost {
        memory.lose(now);
    }
    let all: Checks = (0..3).map(|i| check(&rules, i, 1, true)).collect();
    let each = all.iter().map(|check| Checks::from([check.clone()]));
    for checks in each.chain([all.clone()]) {
        let rates: Checks = checks.iter().filter(|check| !check.is_lease()).cloned().collect();
        if !rates.is_empty() {
            forecast_alike(redis, &memory, now, &rates).await?;
        }
    }
    Ok(())
}

/// Copies of both stores promise the next calls the same instants.
async fn forecast_alike(
    redis: &RedisStore,
    memory: &MemoryStore,
    now: i64,
    checks: &Checks,
) -> Result<(), TestCaseError> {
    for count in [1, 40] {
        let ask = ForecastAsk { count, closed: 0, tenants: &[] };
        let expected = memory.copy_at(now, checks).forecast(ask, |_| checks.clone());
        let copy = redis.copy_at(Some(now), checks).await.expect("a copy");
        prop_assert_eq!(copy.forecast(ask, |_| checks.clone()), expected, "{:?}", checks);
    }
    Ok(())
}

async fn run(
    redis: &RedisStore,
    memory: &MemoryStore,
    now: i64,
    batch: &mut Vec<Entry>,
    so_far: &mut SoFar,
) -> Result<(), TestCaseError> {
    if batch.is_empty() {
        return Ok(());
    }
    if std::mem::take(&mut so_far.lost) {
        memory.lose(now);
    }
    so_far.met = true;
    let expected = memory.run_at(now, batch);
    let mut replies = redis.run_at(Some(now), batch).await;
    // Whether a state that is past is still there differs: virtual time expires no key of a real server.
    for (i, _) in batch.iter().enumerate().filter(|(_, e)| matches!(e, Entry::Forget { .. })) {
        if let Ok(replies) = &mut replies {
            replies[i] = expected[i].clone();
        }
    }
    prop_assert_eq!(replies.as_ref(), Ok(&expected), "{:?}", batch);
    for (entry, reply) in batch.drain(..).zip(expected) {
        if let (Entry::MoveUp { checks, parts, .. }, Reply::Decision(decision)) = (&entry, &reply) {
            let part = decision.parts.first().unwrap_or(&parts[0]);
            so_far.granted.push((checks[0].clone(), part.grant));
        }
        let Reply::Decision(decision) = reply else { continue };
        let (checks, ticket) = match entry {
            Entry::Reserve { checks, ticket, .. } => (checks, ticket),
            Entry::Choose { among, ticket, .. } => (among.checks(decision.chosen).clone(), ticket),
            _ => continue,
        };
        if let (Some(queued), Some(ticket)) = (decision.queued, ticket) {
            let ticket = Ticket { deadline: queued.deadline, ..ticket };
            so_far.granted.push((checks[decision.bound_by].clone(), ticket.grant()));
            so_far.queued.push((checks.clone(), ticket));
        }
        let given = checks.iter().zip(decision.parts).filter(|(_, part)| part.at >= 0);
        so_far.granted.extend(given.map(|(check, part)| (check.clone(), part.grant)));
    }
    Ok(())
}

fn single(key: &str, rule: TokenBucket) -> Checks {
    let algorithm = Rule::from(rule);
    Arc::new([Check::new(key, algorithm)])
}

#[tokio::test]
async fn a_refused_call_changes_neither_value_nor_ttl() {
    let redis = Redis::that_is_heard();
    let store = connect(&redis).await;
    let checks = single("{k}", TokenBucket::new(1, 3_600_000_000, 1).expect("a rule"));
    let ask = [Entry::Reserve { checks, budget: 0, ticket: None }];
    store.run_at(None, &ask).await.expect("admitted");
    let before = redis.bytes("{k}");
    let expires = redis.command(&["PEXPIRETIME", "{k}"]);
    for _ in 0..3 {
        let replies = store.run_at(None, &ask).await.expect("a reply");
        assert!(matches!(&replies[..], [Reply::Decision(decision)] if !decision.admitted));
    }
    assert_eq!(redis.bytes("{k}"), before);
    assert_eq!(redis.command(&["PEXPIRETIME", "{k}"]), expires);
}

#[tokio::test]
async fn every_key_expires_when_its_state_equals_an_absent_one() {
    let redis = Redis::that_is_heard();
    let store = connect(&redis).await;
    for (i, (count, period, burst)) in
        [(1, 3_600_000_000, 5), (7, 1_000_000, 7), (100, 60_000_000, 3)].into_iter().enumerate()
    {
        let key = format!("{{{i}}}");
        let checks = single(&key, TokenBucket::new(count, period, burst).expect("a rule"));
        let look = Entry::Look { check: checks[0].clone() };
        let ask = Entry::Reserve { checks, budget: 60_000_000, ticket: None };
        let replies = store.run_at(None, &[ask.clone(), ask, look]).await.expect("replies");
        let Some(Reply::Level(level)) = replies.last() else { panic!("no level: {replies:?}") };
        // In absolute terms, because some time passes until it is read.
        let Said::Number(expires) = redis.command(&["PEXPIRETIME", &key]) else { panic!("no TTL") };
        let Reply::Decision(first) = &replies[0] else { panic!("no decision: {replies:?}") };
        let full = first.parts[0].grant.born + level.reset_after;
        assert!((full..full + 10_000_000).contains(&(expires * 1_000)), "{expires} ms, {full} µs");
    }
}
