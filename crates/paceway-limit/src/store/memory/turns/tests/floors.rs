//! Floors: permits that requests of lower priorities leave to those of higher ones.

use super::*;
use crate::algorithm::fair::{Floor, Floors};
use rstest::rstest;

const SECOND: Micros = 1_000_000;

/// A batch of normal priority that always waits, and users of high priority that cannot wait, on virtual time.
struct Busy {
    world: World,
    floors: Floors,
    batch: usize,
    /// A further limiter of each request, without a floor.
    tighter: Option<Algorithm>,
    /// Each second request of the batch has a low priority.
    is_mixed: bool,
}

// === impl Busy ===

impl Busy {
    fn new(rule: impl Into<Algorithm>, floor: Floor, batch: usize) -> Self {
        let floors = Floors { high: Some(floor), normal: None };
        let world = World::new(rule.into());
        Self { world, floors, batch, tighter: None, is_mixed: false }
    }

    fn checks(&self, priority: Priority) -> Checks {
        let turn = || Turn::new("-", 1, priority);
        let tighter = self.tighter.map(|rule| Check::new("b", rule).with_turn(turn()));
        let own = Check::new("a", self.world.rule).with_turn(turn()).with_floors(self.floors);
        tighter.into_iter().chain([own]).collect()
    }

    /// Lets time pass. A request of the batch that was sent asks again.
    fn until(&mut self, until: Micros, budget: Micros) {
        while self.world.now < until {
            while self.world.waiting.len() < self.batch {
                let sent = self.world.sent.len();
                let is_low = self.is_mixed && self.world.tickets % 2 == 0;
                let priority = if is_low { Priority::Low } else { Priority::Normal };
                let decision = self.world.ask(self.checks(priority), budget);
                if !decision.admitted || self.world.sent.len() > sent + 1_000 {
                    break;
                }
            }
            self.pass((self.world.now + 20_000).min(until));
        }
    }

    fn pass(&mut self, until: Micros) {
        let world = &mut self.world;
        loop {
            let next = world.waiting.keys().map(|number| (world.at(*number), *number)).min();
            let Some((at, number)) = next.filter(|(at, _)| at - AHEAD <= until) else { break };
            world.now = world.now.max(at - AHEAD);
            let (checks, cost, deadline) = world.waiting[&number].clone();
            let decision = world.store.confirm_at(world.now, &checks, Place(number));
            if !decision.admitted {
                world.waiting.remove(&number);
            } else if Place::of(decision.parts[0].grant).is_none() {
                let at = world.now + decision.wait;
                assert!(at <= deadline, "a promise was broken by {}", at - deadline);
                world.sent.push((at, cost));
                world.waiting.remove(&number);
            }
        }
        world.now = world.now.max(until);
    }

    /// A user each second for `seconds`; returns how many were served at once.
    fn run(&mut self, seconds: i64, budget: Micros) -> usize {
        self.until(T0 + 5 * SECOND, budget);
        let mut served = 0;
        for second in 5..5 + seconds {
            // Not always at the same distance from the slots of the batch.
            self.until(T0 + second * SECOND + second * 37_000 % 200_000, budget);
            let decision = self.world.ask(self.checks(Priority::High), 0);
            served += usize::from(decision.admitted && decision.wait == 0);
        }
        self.until(T0 + (5 + seconds) * SECOND, budget);
        served
    }
}

fn bucket(count: i64, burst: i64) -> Algorithm {
    TokenBucket::new(count, SECOND, burst).expect("a rule").into()
}

/// A bucket gives the batch all that flows in and no user takes; a window keeps what it keeps back.
#[rstest]
#[case::bucket(bucket(5, 5), 3_600 * SECOND, 5.0)]
#[case::small_bucket(bucket(5, 4), 3_600 * SECOND, 5.0)]
#[case::great_bucket(bucket(50, 50), 3_600 * SECOND, 50.0)]
#[case::bucket_whose_queue_is_full(bucket(5, 5), 2 * SECOND, 5.0)]
#[case::sliding(SlidingWindow::new(5, SECOND, 0).expect("a rule").into(), 3_600 * SECOND, 4.0)]
#[case::fixed(FixedWindow::new(5, SECOND).expect("a rule").into(), 3_600 * SECOND, 4.0)]
fn users_that_cannot_wait_find_their_permit_during_a_batch(
    #[case] rule: Algorithm,
    #[case] budget: Micros,
    #[case] rate: f64,
) {
    let mut busy = Busy::new(rule, Floor::Permits(1), 40);
    let served = busy.run(100, budget);
    assert!(served >= 98, "{served} users of 100 were served");
    let all = busy.world.sent.len();
    assert!(all as f64 >= rate * 105.0 * 0.97, "{all} calls in 105 s");
    busy.world.assert_lawful();
}

/// The permits of a request that is confirmed are taken 50 ms before its slot: a bucket of few permits has no others then.
#[rstest]
#[case(2, 1)]
#[case(3, 1)]
#[case(3, 2)]
fn a_small_bucket_has_a_permit_most_of_the_time(#[case] burst: i64, #[case] floor: i64) {
    let mut busy = Busy::new(bucket(5, burst), Floor::Permits(floor), 40);
    let served = busy.run(100, 3_600 * SECOND);
    assert!(served >= 70, "{served} users of 100 were served");
    let all = busy.world.sent.len();
    assert!(all as f64 >= 5.0 * 105.0 * 0.97, "{all} calls in 105 s");
    busy.world.assert_lawful();
}

/// The permits of a bucket that does not bind are reserved ahead for the requests that wait for another limiter: they are no
/// reason to move any of these. 40 of them stalled for ever.
#[test]
fn a_bucket_that_does_not_bind_delays_no_request() {
    let mut busy = Busy::new(bucket(30, 30), Floor::Permits(5), 40);
    busy.tighter = Some(bucket(20, 20));
    busy.run(20, 60 * SECOND);
    let all = busy.world.sent.len();
    assert!(all as f64 >= 20.0 * 25.0 * 0.97, "{all} calls in 25 s");
    busy.world.assert_lawful();
}

/// A slot of a low request is exchanged for a normal one, which has to leave the floor as well.
#[test]
fn two_priorities_that_wait_leave_the_floor() {
    let mut busy = Busy::new(bucket(20, 20), Floor::Percent(20), 40);
    busy.is_mixed = true;
    let served = busy.run(100, 3_600 * SECOND);
    assert!(served >= 98, "{served} users of 100 were served");
    let all = busy.world.sent.len();
    assert!(all as f64 >= 20.0 * 105.0 * 0.97, "{all} calls in 105 s");
}

/// Without a floor no user finds a permit.
#[test]
fn without_a_floor_users_that_cannot_wait_find_none() {
    let mut busy = Busy::new(bucket(5, 2), Floor::Permits(0), 40);
    let served = busy.run(50, 3_600 * SECOND);
    assert!(served <= 2, "{served} users of 50 were served");
}
