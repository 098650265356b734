//! The queue of requests that take turns: the one in this process and the one of the script on a real Redis, step by step on
//! random sequences, on one virtual clock: answers, notified requests, and tenants.

use crate::{
    support::Redis,
    twins::{T0, connect_for},
};
use paceway::{
    algorithm::{
        CalendarWindow, Concurrency, FixedWindow, Grant, Rule, SlidingWindow, TokenBucket,
        concurrency::Ticket,
        fair::{Floor, Floors, Place, Priority, queue::AHEAD},
    },
    key::StateNames,
    store::{
        Alternative, Alternatives, Check, Checks, Entry, OnLoss, Pause, Reply, Turn,
        calls::{Callable, Calls},
        memory::MemoryStore,
        redis::RedisStore,
    },
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

/// A request that comes: tenant, weight, priority, the gateway, the limiters, those that only observe, cost, budget.
type Newcomer = (u16, i64, u8, i64, u8, bool, i64, i64);

#[derive(Debug, Clone)]
enum What {
    Ask(Newcomer),
    /// A number of requests of one tenant come at once.
    Many(u16, u8, usize),
    Confirm(usize),
    /// The request whose slot comes first confirms shortly before it.
    Next,
    /// The request that was refused last comes back after its `retry_after`, and so much later.
    Back(i64),
    Leave(usize),
    /// A request that was sent did not use its permits.
    GiveBack(usize),
    /// Permits have come back to a limiter.
    GiveRoom(usize),
    Tenants(usize),
    Pause(usize, i64),
    Forget(usize),
    Lose,
}

/// The weight of a tenant whose requests all have one.
fn weight_of(tenant: u16) -> i64 {
    i64::from(1 + 3 * (tenant % 2))
}

/// With `is_simple` most requests ask one bucket, and other requests of their tenant wait.
fn step(is_simple: bool) -> BoxedStrategy<(i64, What)> {
    let spans = prop_oneof![
        40 => Just(0),
        20 => 0..60_000_i64,
        4 => 0..300_000_i64,
        1 => 0..3_000_000_i64,
        1 => -200_000..0_i64,
        1 => Just(11_000_000),
    ];
    let budget = prop_oneof![
        Just(0),
        0..500_000_i64,
        0..5_000_000_i64,
        0..20_000_000_i64,
        Just(90_000_000_000)
    ];
    let cost = prop_oneof![4 => Just(1_i64), 1 => 1..4_i64];
    let limiters = prop_oneof![6 => Just(0_u8), 1 => 1..7_u8];
    let priority = prop_oneof![4 => Just(1_u8), 1 => 0..3_u8];
    let weight = prop_oneof![3 => Just(1_i64), 1 => 1..9_i64];
    let ask =
        (0..4_u16, weight, priority, 1..4_i64, limiters, prop::bool::weighted(0.1), cost, budget);
    let plain_ask = (0..4_u16, 0..6_u8, 1..4_i64, prop_oneof![9 => Just(1), 1 => Just(2)])
        .prop_map(|(tenant, priority, gateway, cost)| {
            (tenant, weight_of(tenant), priority.clamp(1, 3) - 1, gateway, 0, false, cost, HOUR)
        });
    let many = (0..4_u16, 0..3_u8, 8..40_usize);
    if is_simple {
        let spans = prop_oneof![20 => Just(0), 60 => 0..60_000_i64, 1 => -200_000..0_i64];
        let what = prop_oneof![
            60 => plain_ask.prop_map(What::Ask),
            10 => many.prop_map(|(t, p, n)| What::Many(t, p.max(1), n)),
            80 => Just(What::Next),
            4 => (0..40_usize).prop_map(What::Confirm),
            1 => ask.prop_map(What::Ask),
            1 => (0..40_usize).prop_map(What::Leave),
            1 => Just(What::Tenants(0)),
        ];
        return (spans, what).boxed();
    }
    let what = prop_oneof![
        12 => ask.prop_map(What::Ask),
        1 => many.prop_map(|(t, p, n)| What::Many(t, p, n)),
        3 => (0..40_usize).prop_map(What::Confirm),
        9 => Just(What::Next),
        2 => (0..40_usize).prop_map(What::Leave),
        3 => prop_oneof![2 => Just(0), 1 => -100_000..400_000_i64].prop_map(What::Back),
        1 => (0..9_usize).prop_map(What::GiveBack),
        1 => (0..2_usize).prop_map(What::GiveRoom),
        1 => (0..2_usize).prop_map(What::Tenants),
        1 => (0..2_usize, prop_oneof![Just(0), 0..2_000_000_i64])
            .prop_map(|(i, span)| What::Pause(i, span)),
        1 => (0..2_usize).prop_map(What::Forget),
        1 => (0..20_usize).prop_map(|it| if it == 0 { What::Lose } else { What::Tenants(it % 2) }),
    ];
    (spans, what).boxed()
}

fn rule(is_simple: bool) -> BoxedStrategy<Rule> {
    let bucket = (1..40_i64, 500_000..3_000_000_i64, if is_simple { 2..4_i64 } else { 3..6_i64 })
        .prop_map(|(count, period, burst)| {
            Rule::from(TokenBucket::new(count, period, burst).expect("a rule"))
        });
    let sliding = (3..30_i64, 100_000..3_000_000_i64).prop_map(|(count, period)| {
        Rule::from(SlidingWindow::new(count, period, 0).expect("a rule"))
    });
    let fixed = (3..9_i64, 100_000..2_000_000_i64)
        .prop_map(|(count, period)| Rule::from(FixedWindow::new(count, period).expect("a rule")));
    let calendar = (3..9_i64, 100_000..2_000_000_i64, any::<bool>());
    let calendar = calendar.prop_map(|(count, length, is_even)| {
        let first = T0 - length / 3;
        let resets = [first, first + length, first + 2 * length];
        let rule = CalendarWindow::new(count, resets).expect("a rule");
        Rule::from(if is_even { rule.even() } else { rule })
    });
    if is_simple {
        return bucket.boxed();
    }
    prop_oneof![3 => bucket, 1 => sliding, 1 => fixed, 1 => calendar].boxed()
}

/// Half of the limiters keep permits back, as far as they have any.
pub(crate) fn floors() -> impl Strategy<Value = Floors> {
    let floor =
        prop_oneof![(1..4_i64).prop_map(Floor::Permits), (1..80_i64).prop_map(Floor::Percent)];
    let floor = || prop_oneof![1 => Just(None), 1 => floor.clone().prop_map(Some)];
    prop_oneof![
        Just(Floors::default()),
        (floor(), floor()).prop_map(|(high, normal)| Floors { high, normal }),
    ]
}

/// A request that waits, with its slot in the last answer.
struct Waiting {
    checks: Checks,
    place: Place,
    at: i64,
}

/// Hears the notifications that the script sends.
pub(crate) struct Ear(BufReader<TcpStream>);

// === impl Ear ===

impl Ear {
    pub(crate) fn open(redis: &Redis) -> Self {
        let mut ear = TcpStream::connect(("127.0.0.1", redis.port())).expect("a connection");
        ear.write_all(b"PSUBSCRIBE paceway:call:*\r\n").expect("a subscription");
        let mut ear = Self(BufReader::new(ear));
        (0..6).for_each(|_| drop(ear.line()));
        ear
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// The gateways and numbers of the tickets that were notified since the last look.
    pub(crate) fn heard(&mut self, redis: &Redis) -> BTreeSet<(i64, i64)> {
        redis.command(&["PUBLISH", "paceway:call:end", "0"]);
        let mut heard = BTreeSet::new();
        loop {
            // *4 $8 pmessage $N pattern $N channel $N message
            let message: Vec<_> = (0..9).map(|_| self.line()).collect();
            match message[6].rsplit(':').next() {
                Some("end") => return heard,
                gateway => {
                    let gateway = gateway.and_then(|gateway| gateway.parse().ok());
                    // Others tell of pauses and free slots.
                    if let (Some(gateway), Ok(number)) = (gateway, message[8].parse()) {
                        heard.insert((gateway, number));
                    }
                }
            }
        }
    }
}

/// The tickets that the memory store has notified since the last look.
fn notified(tickets: &BTreeMap<(i64, i64), Callable>) -> BTreeSet<(i64, i64)> {
    let is_notified = |callable: &Callable| {
        let mut context = Context::from_waker(Waker::noop());
        matches!(pin!(callable.notified()).poll(&mut context), Poll::Ready(()))
    };
    let notified = tickets.iter().filter(|(_, callable)| is_notified(callable));
    notified.map(|(ticket, _)| *ticket).collect()
}

/// Executes the entries in both stores, and returns their answers, which are the same.
pub(crate) async fn both_answer(
    (memory, redis): (&MemoryStore, &RedisStore),
    now: i64,
    batch: &[Entry],
) -> Result<Vec<Reply>, TestCaseError> {
    let expected = memory.run_at(now, batch);
    let mut replies = redis.run_at(Some(now), batch).await;
    for (i, _) in batch.iter().enumerate().filter(|(_, e)| matches!(e, Entry::Forget { .. })) {
        if let Ok(replies) = &mut replies {
            // Virtual time expires no key of a real server.
            replies[i] = expected[i].clone();
        }
    }
    prop_assert_eq!(replies.as_ref(), Ok(&expected), "{} {:?}", now, batch);
    Ok(expected)
}

/// The tickets that both stores have notified for the entries of `batch`: the same.
pub(crate) fn both_notify(
    tickets: &BTreeMap<(i64, i64), Callable>,
    (ear, server): (&mut Ear, &Redis),
    (now, batch): (i64, &[Entry]),
) -> Result<BTreeSet<(i64, i64)>, TestCaseError> {
    let (heard, called) = (ear.heard(server), notified(tickets));
    prop_assert_eq!(&heard, &called, "notified at {} by {:?}", now, batch);
    Ok(called)
}

/// One sequence: three limiters, the third of which counts concurrency permits.
struct Sequence<'r> {
    server: &'r Redis,
    redis: RedisStore,
    memory: MemoryStore,
    prefix: String,
    rules: [Rule; 2],
    floors: Floors,
    on_loss: OnLoss,
    now: i64,
    gateways: [Arc<Calls>; 3],
    /// The tickets so far, which the memory store notifies.
    tickets: BTreeMap<(i64, i64), Callable>,
    ear: Ear,
    waiting: Vec<Waiting>,
    granted: Vec<(Check, Grant)>,
    /// The last request that was refused, with its budget and when it is to come back.
    refused: Option<(Checks, i64, i64)>,
    lost: bool,
    met: bool,
}

impl Sequence<'_> {
    fn check(&self, i: usize, cost: i64, enforce: bool) -> Check {
        let concurrency = Rule::from(Concurrency::new(100, 60_000_000).expect("a rule"));
        let rule = self.rules.get(i).copied().unwrap_or(concurrency);
        let names = StateNames::new(&self.prefix, "t", rule.letter(), &i.to_string());
        Check {
            enforce,
            ..Check::new(names.of(None), rule)
                .with_cost(cost.min(rule.capacity()))
                .with_horizon(rule.horizon(700_000, 3))
                .with_on_loss(self.on_loss)
                .with_floors(self.floors)
        }
    }

    fn ask(
        &mut self,
        (tenant, weight, priority, gateway, limiters, observe, cost, budget): Newcomer,
    ) -> Entry {
        let ticket = Some(self.ticket(gateway));
        let used: &[usize] = match limiters {
            0 => &[0],
            1 => &[1],
            2 => &[0, 1],
            3 => &[1, 0],
            4 => &[0, 2],
            _ => &[2, 1, 0],
        };
        let turn = Turn::new(format!("t{tenant}"), weight, Priority::ALL[usize::from(priority)]);
        let check = |i: &usize| {
            let check = self.check(*i, if *i == 2 { 1 } else { cost }, !(observe && *i == 1));
            // The second limiter takes part only in some requests, unless it has floors.
            if *i != 1 || tenant % 2 == 0 || !self.floors.is_none() {
                check.with_turn(turn.clone())
            } else {
                check
            }
        };
        if limiters == 6 {
            // The limiter that only some requests have, or one with a queue of its own: the better one is taken.
            let ways = (0..2).map(|i| Alternative {
                id: i,
                checks: [check(&usize::from(i))].into(),
                after: if tenant == 3 { 100_000 * i64::from(i) } else { 0 },
            });
            let among = Arc::new(Alternatives::new(ways.collect()).expect("ways"));
            return Entry::Choose { among, budget, ticket };
        }
        Entry::Reserve { checks: used.iter().map(check).collect(), budget, ticket }
    }

    fn ticket(&mut self, gateway: i64) -> Ticket {
        let callable = self.gateways[gateway as usize - 1].ticket();
        let ticket = callable.ticket;
        self.tickets.insert((ticket.gateway, ticket.number), callable);
        ticket
    }

    /// The entries of a step.
    fn entries(&mut self, what: What) -> Vec<Entry> {
        match what {
            What::Ask(newcomer) => vec![self.ask(newcomer)],
            What::Many(tenant, priority, count) => {
                let newcomer = (tenant, weight_of(tenant), priority, 1, 0, false, 1, 3_000_000);
                (0..count).map(|_| self.ask(newcomer)).collect()
            }
            What::Confirm(i) if i < self.waiting.len() => {
                let Waiting { checks, place, .. } = &self.waiting[i];
                vec![Entry::Confirm { checks: checks.clone(), place: *place }]
            }
            What::Next if !self.waiting.is_empty() => {
                let next = self.waiting.iter().min_by_key(|it| (it.at, it.place.0)).expect("one");
                vec![Entry::Confirm { checks: next.checks.clone(), place: next.place }]
            }
            What::Back(_) => match self.refused.clone() {
                Some((checks, budget, _)) => {
                    let ticket = Some(self.ticket(1));
                    vec![Entry::Reserve { checks, budget, ticket }]
                }
                None => Vec::new(),
            },
            What::Leave(i) if i < self.waiting.len() => {
                let Waiting { checks, place, .. } = self.waiting.swap_remove(i);
                vec![Entry::Leave { checks, place }]
            }
            What::GiveBack(i) if i < self.granted.len() => {
                let (check, grant) = self.granted.swap_remove(i);
                vec![Entry::Refund { check, grant }]
            }
            What::GiveRoom(i) => {
                let turn = Turn { tenant: "t0".into(), weight: 1, priority: Priority::Normal };
                let check = Check { turn: Some(turn), ..self.check(i, 1, true) };
                vec![Entry::Leave { checks: [check].into(), place: Place::NONE }]
            }
            What::Tenants(i) => vec![Entry::Tenants { check: self.check(i, 1, true) }],
            What::Pause(i, span) => {
                let pause = Pause::for_micros(span, 429);
                vec![Entry::Pause { check: self.check(i, 1, true), pause }]
            }
            What::Forget(i) => vec![Entry::Forget { check: self.check(i, 1, true) }],
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
        both_notify(&self.tickets, (&mut self.ear, self.server), (self.now, batch))?;
        for (entry, reply) in batch.drain(..).zip(expected) {
            self.learn(entry, reply);
        }
        Ok(())
    }

    fn learn(&mut self, entry: Entry, reply: Reply) {
        let Reply::Decision(decision) = reply else { return };
        let checks = match entry {
            Entry::Confirm { checks, place } => {
                self.waiting.retain(|it| it.place != place);
                checks
            }
            Entry::Reserve { checks, budget, .. } => {
                if !decision.admitted && decision.queued.is_none() {
                    self.refused = Some((checks.clone(), budget, self.now + decision.retry_after));
                }
                checks
            }
            Entry::Choose { among, .. } => among.checks(decision.chosen).clone(),
            _ => return,
        };
        for (check, part) in checks.iter().zip(decision.parts).filter(|(_, part)| part.at >= 0) {
            match Place::of(part.grant) {
                Some(place) => {
                    let at = self.now + part.at;
                    self.waiting.push(Waiting { checks: checks.clone(), place, at });
                }
                None => self.granted.push((check.clone(), part.grant)),
            }
        }
    }
}

async fn compare(
    server: &Redis,
    case: u64,
    rules: [Rule; 2],
    (floors, on_loss): (Floors, OnLoss),
    steps: Vec<(i64, What)>,
) -> Result<(), TestCaseError> {
    let prefix = format!("fair{case}");
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
        on_loss,
        now: T0,
        gateways,
        tickets: BTreeMap::new(),
        ear: Ear::open(server),
        waiting: Vec::new(),
        granted: Vec::new(),
        refused: None,
        lost: false,
        met: false,
    };
    let mut batch = Vec::new();
    for (after, what) in steps {
        if matches!(what, What::Lose) {
            sequence.run(&mut batch).await?;
            sequence.server.command(&["DEL", &format!("{}:marker", sequence.prefix)]);
            sequence.lost = sequence.met;
            sequence.now += 1;
            continue;
        }
        // A step that depends on the answers before it comes after them.
        let is_independent = matches!(what, What::Ask(_) | What::Many(..) | What::Tenants(_));
        if after != 0 || batch.len() >= 4 || !is_independent {
            sequence.run(&mut batch).await?;
        }
        sequence.now += after;
        if let (What::Next, Some(at)) = (&what, sequence.waiting.iter().map(|it| it.at).min()) {
            sequence.now = sequence.now.max(at - AHEAD);
        }
        if let (What::Back(after), Some((.., back))) = (&what, &sequence.refused) {
            // Times of hours are those of budgets that are as long.
            let back = (back + after).min(sequence.now + 20_000_000);
            sequence.now = sequence.now.max(back);
        }
        let entries = sequence.entries(what);
        batch.extend(entries);
    }
    sequence.run(&mut batch).await?;
    // All that wait leave: nothing stays of the queues.
    while let Some(Waiting { checks, place, .. }) = sequence.waiting.pop() {
        sequence.run(&mut vec![Entry::Leave { checks, place }]).await?;
    }
    sequence.now += 60_000_000;
    let checks = [0, 1].map(|i| sequence.check(i, 1, true));
    let asked = checks.map(|check| Entry::Tenants { check });
    sequence.run(&mut asked.to_vec()).await
}

#[test]
fn memory_and_redis_share_slots_alike_step_by_step() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let case = AtomicU64::new(0);
    let mut runner = TestRunner::new(ProptestConfig::default());
    let on_loss = prop_oneof![Just(OnLoss::Close), Just(OnLoss::Trust)];
    let steps = any::<bool>().prop_flat_map(|is_simple| {
        ([rule(is_simple), rule(is_simple)], vec(step(is_simple), 1..120))
    });
    let result = runner.run(&(steps, floors(), on_loss), |((rules, steps), floors, on_loss)| {
        let case = case.fetch_add(1, Relaxed);
        runtime.block_on(compare(&redis, case, rules, (floors, on_loss), steps))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Limiters without floors.
const PLAIN: (Floors, OnLoss) = (Floors { high: None, normal: None }, OnLoss::Close);
const HOUR: i64 = 3_600_000_000;

fn bucket(count: i64, burst: i64) -> [Rule; 2] {
    [Rule::from(TokenBucket::new(count, 1_000_000, burst).expect("a rule")); 2]
}

/// The tenants beyond the first 1,024 share one turn, also when some of those have left.
#[tokio::test]
async fn tenants_beyond_the_bound_share_a_turn() {
    let redis = Redis::start();
    let ask = |tenant| (0, What::Ask((tenant, 1, 1, 1, 0, false, 1, HOUR)));
    let mut steps: Vec<_> = (0..1_100).map(ask).collect();
    steps.push((0, What::Tenants(0)));
    for i in 0..60 {
        steps.extend([(0, What::Next), (0, What::Leave(7 * i)), ask(2_000 + i as u16)]);
    }
    steps.push((0, What::Tenants(0)));
    compare(&redis, 0, bucket(400, 3), PLAIN, steps).await.expect("the same");
}

/// Requests of a million permits move the virtual time on until it begins again.
#[tokio::test]
async fn virtual_time_begins_again() {
    let redis = Redis::start();
    let ask = |tenant| (0, What::Ask((tenant, 1, 1, 1, 0, false, 1_000_000, HOUR)));
    let mut steps: Vec<_> = (0..600).map(|i| ask(i % 3)).collect();
    steps.extend((0..550).map(|_| (0, What::Next)));
    compare(&redis, 0, bucket(1_000_000, 1_000_000), PLAIN, steps).await.expect("the same");
}

/// A request of three permits that is refused among those of one, and books its turn: it comes back, or others get the slots.
#[tokio::test]
async fn a_booked_turn_is_claimed_or_lapses() {
    let redis = Redis::start();
    let light = || (1_000, What::Ask((0, 1, 1, 1, 0, false, 1, 400_000)));
    let heavy = || (0, What::Ask((2, 1, 1, 2, 0, false, 3, 400_000)));
    for case in 0..2_u64 {
        let mut steps = Vec::new();
        for i in 0..300 {
            steps.extend([light(), (15_000, What::Next)]);
            if i % 40 == 10 {
                steps.push(heavy());
            }
            if case == 0 && i % 40 == 30 {
                steps.push((0, What::Back(0)));
            }
        }
        compare(&redis, case, bucket(40, 3), PLAIN, steps).await.expect("the same");
    }
}
