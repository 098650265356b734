//! Concurrency permits whose waiting requests take turns: the rules in this process and the script on a real Redis, step by
//! step on random sequences, on one virtual clock: answers, notified requests, and tenants.

use crate::{
    support::{Redis, Said},
    twins::{T0, connect, connect_for},
    twins_fair::{Ear, both_answer, both_notify, floors},
};
use paceway::{
    algorithm::{
        Concurrency, Grant, Rule, TokenBucket,
        concurrency::Ticket,
        fair::{Floors, Priority},
    },
    key::StateNames,
    store::{
        Check, Checks, Entry, OnLoss, Pause, Reply, StoreError, Turn,
        calls::{Callable, Calls},
        memory::MemoryStore,
        redis::RedisStore,
    },
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A request that comes: tenant, weight, priority, the gateway, the limiters, budget.
type Newcomer = (u16, i64, u8, usize, u8, i64);

#[derive(Debug, Clone)]
enum What {
    Ask(Newcomer),
    /// As many requests of one tenant and priority come.
    Many(u16, u8, usize),
    /// A request of the queue asks again: one that was notified, if there is any.
    AskAgain(usize),
    /// A request leaves the queue.
    Leave(usize),
    /// A call ends, or a request gives back its permits of a rate.
    Release(usize),
    Renew(usize),
    Tenants(usize),
    Look(usize),
    Pause(usize, i64),
    Forget(usize),
    Lose,
}

fn step() -> impl Strategy<Value = (i64, What)> {
    let spans = prop_oneof![
        40 => Just(0),
        20 => 0..60_000_i64,
        4 => 0..1_000_000_i64,
        1 => 0..5_000_000_i64,
        1 => -200_000..0_i64,
    ];
    let budget = prop_oneof![Just(0), 0..500_000_i64, 0..20_000_000_i64, Just(90_000_000_000)];
    let limiters = prop_oneof![6 => Just(0_u8), 1 => 1..5_u8];
    let priority = prop_oneof![4 => Just(1_u8), 1 => 0..3_u8];
    let weight = prop_oneof![3 => Just(1_i64), 1 => 1..9_i64];
    let what = prop_oneof![
        12 => (0..4_u16, weight, priority, 0..3_usize, limiters, budget).prop_map(What::Ask),
        1 => (0..4_u16, 0..3_u8, 4..20_usize).prop_map(|(t, p, n)| What::Many(t, p, n)),
        9 => (0..40_usize).prop_map(What::AskAgain),
        2 => (0..40_usize).prop_map(What::Leave),
        12 => (0..9_usize).prop_map(What::Release),
        1 => (0..9_usize).prop_map(What::Renew),
        2 => (0..2_usize).prop_map(What::Tenants),
        1 => (0..3_usize).prop_map(What::Look),
        1 => (0..2_usize, prop_oneof![Just(0), 0..2_000_000_i64])
            .prop_map(|(i, span)| What::Pause(i, span)),
        1 => (0..9_usize).prop_map(|it| if it == 0 { What::Lose } else { What::Forget(it % 2) }),
    ];
    (spans, what)
}

/// One sequence: two limiters of concurrency permits, and one with a rate.
struct Sequence<'r> {
    server: &'r Redis,
    redis: RedisStore,
    memory: MemoryStore,
    prefix: String,
    rules: [Rule; 3],
    floors: Floors,
    now: i64,
    gateways: [Arc<Calls>; 3],
    tickets: BTreeMap<(i64, i64), Callable>,
    ear: Ear,
    queued: Vec<(Checks, Ticket)>,
    granted: Vec<(Check, Grant)>,
    /// The tickets that were notified and have not asked again.
    called: BTreeSet<(i64, i64)>,
    lost: bool,
    met: bool,
}

fn id(ticket: Ticket) -> (i64, i64) {
    (ticket.gateway, ticket.number)
}

// === impl Sequence ===

impl Sequence<'_> {
    fn check(&self, i: usize) -> Check {
        let rule = self.rules[i];
        let names = StateNames::new(&self.prefix, "t", rule.letter(), &i.to_string());
        Check::new(names.of(None), rule)
            .with_horizon(rule.horizon(700_000, 3))
            .with_on_loss(OnLoss::Close)
            .with_floors(self.floors)
    }

    fn ask(&mut self, (tenant, weight, priority, gateway, limiters, budget): Newcomer) -> Entry {
        let callable = self.gateways[gateway].ticket();
        let ticket = callable.ticket;
        self.tickets.insert(id(ticket), callable);
        let used: &[usize] = match limiters {
            0 => &[0],
            1 => &[1],
            2 => &[0, 1],
            3 => &[2, 0],
            _ => &[1, 2, 0],
        };
        let turn = Turn::new(format!("t{tenant}"), weight, Priority::ALL[usize::from(priority)]);
        // A program that asks for a decision has no turn of its own.
        let check = |i: &usize| match self.check(*i) {
            check if check.is_lease() && tenant < 3 => check.with_turn(turn.clone()),
            check => check,
        };
        let checks = used.iter().map(check).collect();
        Entry::Reserve { checks, budget, ticket: Some(ticket) }
    }

    /// The entries of a step.
    fn entries(&mut self, what: What) -> Vec<Entry> {
        match what {
            What::Ask(newcomer) => vec![self.ask(newcomer)],
            What::Many(tenant, priority, count) => {
                let newcomer = (tenant, 1, priority, 0, 0, 3_000_000);
                (0..count).map(|_| self.ask(newcomer)).collect()
            }
            What::AskAgain(i) if !self.queued.is_empty() => {
                let called = |(_, ticket): &(_, Ticket)| self.called.contains(&id(*ticket));
                let i = self.queued.iter().position(called).unwrap_or(i % self.queued.len());
                let (checks, ticket) = self.queued.swap_remove(i);
                self.called.remove(&id(ticket));
                vec![Entry::Reserve { checks, budget: 1_000_000, ticket: Some(ticket) }]
            }
            What::Leave(i) if i < self.queued.len() => {
                let (checks, ticket) = self.queued.swap_remove(i);
                let leases = checks.iter().filter(|check| check.is_lease());
                let refund =
                    |check: &Check| Entry::Refund { check: check.clone(), grant: ticket.grant() };
                leases.map(refund).collect()
            }
            What::Release(i) if i < self.granted.len() => {
                let (check, grant) = self.granted.swap_remove(i);
                vec![Entry::Refund { check, grant }]
            }
            What::Renew(i) if i < self.granted.len() && self.granted[i].0.is_lease() => {
                let (check, grant) = self.granted[i].clone();
                vec![Entry::Renew { check, grant }]
            }
            What::Tenants(i) => vec![Entry::Tenants { check: self.check(i) }],
            What::Look(i) => vec![Entry::Look { check: self.check(i) }],
            What::Pause(i, span) => {
                vec![Entry::Pause { check: self.check(i), pause: Pause::for_micros(span, 429) }]
            }
            What::Forget(i) => vec![Entry::Forget { check: self.check(i) }],
            _ => Vec::new(),
        }
    }

    async fn run(&mut self, batch: &mut Vec<Entry>) -> Result<(), TestCaseError> {
        if batch.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut self.lost) {
            self.memory.lose(self.now);
        }
        self.met = true;
        let stores = (&self.memory, &self.redis);
        let expected = both_answer(stores, self.now, batch).await?;
        let called = both_notify(&self.tickets, (&mut self.ear, self.server), (self.now, batch))?;
        self.called.extend(called);
        for (entry, reply) in batch.drain(..).zip(expected) {
            let (Entry::Reserve { checks, ticket: Some(ticket), .. }, Reply::Decision(decision)) =
                (entry, reply)
            else {
                continue;
            };
            let deadline = decision.queued.map_or(ticket.deadline, |queued| queued.deadline);
            // One whose time has ended leaves later.
            if !decision.admitted && deadline > 0 {
                self.queued.push((checks.clone(), Ticket { deadline, ..ticket }));
            }
            let parts = checks.iter().zip(decision.parts).filter(|(_, part)| part.at >= 0);
            self.granted.extend(parts.map(|(check, part)| (check.clone(), part.grant)));
        }
        Ok(())
    }
}

async fn compare(
    server: &Redis,
    case: u64,
    rules: [Rule; 3],
    floors: Floors,
    steps: Vec<(i64, What)>,
) -> Result<(), TestCaseError> {
    let prefix = format!("permits{case}");
    let redis = connect_for(server, case, &prefix).await;
    let gateways = [1, 2, 3].map(|gateway| Arc::new(Calls::numbered(gateway)));
    let calls: Arc<Calls> = Arc::default();
    gateways.iter().for_each(|gateway| calls.join(gateway));
    let mut sequence = Sequence {
        server,
        redis,
        memory: MemoryStore::calling(calls),
        prefix,
        rules,
        floors,
        now: T0,
        gateways,
        tickets: BTreeMap::new(),
        ear: Ear::open(server),
        queued: Vec::new(),
        granted: Vec::new(),
        called: BTreeSet::new(),
        lost: false,
        met: false,
    };
    let mut batch = Vec::new();
    for (after, what) in steps {
        if let What::Lose = what {
            sequence.run(&mut batch).await?;
            sequence.server.command(&["DEL", &format!("{}:marker", sequence.prefix)]);
            sequence.lost = sequence.met;
            sequence.now += 1;
            continue;
        }
        // A step that depends on the answers before it comes after them.
        let is_independent =
            !matches!(what, What::AskAgain(_) | What::Leave(_) | What::Release(_) | What::Renew(_));
        if after != 0 || batch.len() >= 4 || !is_independent {
            sequence.run(&mut batch).await?;
        }
        sequence.now += after;
        // A pause removes those whose time has ended from a queue: here at once, there with the next call.
        let is_pause = matches!(what, What::Pause(..));
        let entries = sequence.entries(what);
        batch.extend(entries);
        if is_pause {
            sequence.run(&mut batch).await?;
        }
    }
    sequence.run(&mut batch).await?;
    // All leave: nothing stays of the turns.
    for i in (0..sequence.queued.len()).rev() {
        let mut entries = sequence.entries(What::Leave(i));
        sequence.run(&mut entries).await?;
    }
    let asked = [0, 1].map(|i| Entry::Tenants { check: sequence.check(i) });
    sequence.run(&mut asked.to_vec()).await?;
    let mut keys = server.keys();
    keys.retain(|key| key.starts_with(&sequence.prefix) && key.contains('#'));
    prop_assert_eq!(keys, Vec::<String>::new());
    Ok(())
}

fn permits(max: i64, lease: i64) -> Concurrency {
    Concurrency::new(max, lease).expect("a rule").with_turns(true)
}

#[test]
fn memory_and_redis_hand_permits_over_in_the_same_turns() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let case = AtomicU64::new(0);
    let mut runner = TestRunner::new(ProptestConfig::default());
    let rule = || {
        let lease = prop_oneof![Just(60_000_000), 100_000..5_000_000_i64];
        (1..4_i64, lease).prop_map(|(max, lease)| Rule::from(permits(max, lease)))
    };
    let rate = (1..40_i64)
        .prop_map(|count| Rule::from(TokenBucket::new(count, 1_000_000, 3).expect("a rule")));
    let strategy = ([rule(), rule()], rate, floors(), vec(step(), 1..120));
    let result = runner.run(&strategy, |([first, second], rate, floors, steps)| {
        let case = case.fetch_add(1, Relaxed);
        runtime.block_on(compare(&redis, case, [first, second, rate], floors, steps))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Some gateways have a configuration with turns and others one without, as while they reload it: requests of these tenants ask,
/// and permits are released. Each release hands the permit to one request, until all have been served.
async fn drained(
    server: &Redis,
    case: u64,
    max: i64,
    asks: Vec<(u16, bool)>,
    releases: Vec<bool>,
) -> Result<(), TestCaseError> {
    let prefix = format!("mixed{case}");
    let (redis, mut ear) = (connect_for(server, case, &prefix).await, Ear::open(server));
    let key = StateNames::new(&prefix, "t", b'C', "0").of(None);
    let check = |tenant: u16, takes_turns: bool| {
        let rule = Rule::from(permits(max, 3_600_000_000).with_turns(takes_turns));
        let turn = Turn::new(format!("t{tenant}"), 1, Priority::Normal);
        Check::new(&*key, rule).with_turn(turn)
    };
    let (mut held, mut waiting) = (Vec::new(), BTreeMap::new());
    for ((tenant, takes_turns), number) in asks.into_iter().zip(1..) {
        let ticket = Ticket { gateway: 7, number, deadline: 0 };
        let checks = [check(tenant, takes_turns)].into();
        let ask = Entry::Reserve { checks, budget: 90_000_000, ticket: Some(ticket) };
        let replies = redis.run_at(Some(T0), &[ask]).await.expect("an answer");
        let [Reply::Decision(decision)] = &replies[..] else { panic!("{replies:?}") };
        match decision.queued {
            Some(queued) => drop(waiting.insert(number, (tenant, queued.deadline))),
            None => held.push((tenant, number)),
        }
    }
    prop_assert!(waiting.is_empty() || held.len() as i64 == max);
    let mut flips = releases.into_iter().cycle();
    let mut flip = || flips.next().unwrap_or_default();
    while let Some((tenant, number)) = held.pop() {
        let grant = Ticket { gateway: 7, number, deadline: 0 }.grant();
        let refund = Entry::Refund { check: check(tenant, flip()), grant };
        redis.run_at(Some(T0), &[refund]).await.expect("an answer");
        let heard: Vec<_> = ear.heard(server).into_iter().collect();
        prop_assert_eq!(heard.len(), usize::from(!waiting.is_empty()));
        let Some((_, number)) = heard.first() else { continue };
        let Some((tenant, deadline)) = waiting.remove(number) else { panic!("{heard:?}") };
        let checks = [check(tenant, flip())].into();
        let ticket = Some(Ticket { gateway: 7, number: *number, deadline });
        let ask = Entry::Reserve { checks, budget: 90_000_000, ticket };
        let replies = redis.run_at(Some(T0), &[ask]).await.expect("an answer");
        let is_sent = matches!(&replies[..], [Reply::Decision(decision)] if decision.admitted);
        prop_assert!(is_sent, "{:?}", replies);
        held.push((tenant, *number));
    }
    prop_assert!(waiting.is_empty(), "{:?}", waiting);
    Ok(())
}

#[test]
fn nothing_is_lost_while_gateways_begin_to_take_turns() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let case = AtomicU64::new(0);
    let mut runner = TestRunner::new(ProptestConfig::default());
    let asks = vec((0..4_u16, any::<bool>()), 1..40);
    let result = runner.run(&(1..4_i64, asks, vec(any::<bool>(), 1..40)), |(max, asks, flips)| {
        let case = case.fetch_add(1, Relaxed);
        runtime.block_on(drained(&redis, case, max, asks, flips))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// The requests of a limiter could not wait in the key of its queue, and a reset deleted the holders of the permits instead of it.
#[tokio::test]
async fn a_queue_with_a_foreign_value_is_named_and_a_reset_deletes_it_alone() {
    let redis = Redis::that_is_heard();
    let store = connect(&redis).await;
    let rule = |takes_turns| {
        let rule = Concurrency::new(1, 60_000_000).expect("a rule").with_turns(takes_turns);
        Check::new("{k}:C", Rule::from(rule))
    };
    let take = |check: Check| {
        let ticket = Some(Ticket { gateway: 1, number: 1, deadline: 0 });
        Entry::Reserve { checks: [check].into(), budget: 0, ticket }
    };
    redis.command(&["SET", "{k}:C#queue", "junk"]);
    // The second entry opens the state again, because it has turns.
    let entries = [take(rule(false)), take(rule(true)), Entry::Forget { check: rule(true) }];
    let replies = store.run_at(Some(T0), &entries).await.expect("replies");
    assert!(matches!(&replies[0], Reply::Decision(decision) if decision.admitted), "{replies:?}");
    assert_eq!(replies[1].error(), Some(&StoreError::Foreign("{k}:C#queue".into())));
    assert_eq!(replies[2], Reply::Done(true));
    assert_eq!(redis.command(&["EXISTS", "{k}:C#queue"]), Said::Number(0));
    assert_eq!(redis.command(&["ZCARD", "{k}:C"]), Said::Number(1));
}
