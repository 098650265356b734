//! The laws of a token bucket whose permits gateways take in blocks and use later, as properties.

use super::{laws::obeys, *};
use crate::algorithm::token_bucket::BlockAsk;
use proptest::prelude::*;

/// A permit of a block that was not used yet: its grant, and the last instant at which it may be used.
#[derive(Debug, Clone, Copy)]
struct Held {
    grant: Grant,
    taken: Micros,
    until: Micros,
}

#[derive(Debug, Clone)]
enum Step {
    Ask {
        budget: Micros,
    },
    Block {
        requests: i64,
        reach: Micros,
        jump: Micros,
    },
    /// Requests take all permits that are there.
    Flood,
    /// This number of permits of blocks is used.
    Use(usize),
    /// A permit of a block comes back to the store.
    Return(usize),
    /// A request that waits leaves.
    Leave(usize),
    /// A request is sent that reserves this many permits.
    Send(i64),
    /// One of these has used a single permit, and returns the others.
    Settle(usize),
}

fn steps() -> impl Strategy<Value = Vec<(Micros, Step)>> {
    let step = prop_oneof![
        3 => prop_oneof![Just(0), 0..2000i64].prop_map(|budget| Step::Ask { budget }),
        2 => (2..12i64, 0..300i64, 0..200i64).prop_map(|(requests, reach, more)| Step::Block {
            requests,
            reach,
            jump: reach + more,
        }),
        1 => Just(Step::Flood),
        4 => (1..6usize).prop_map(Step::Use),
        1 => (0..60usize).prop_map(Step::Return),
        1 => (0..6usize).prop_map(Step::Leave),
        1 => (2..6i64).prop_map(Step::Send),
        1 => (0..6usize).prop_map(Step::Settle),
    ];
    prop::collection::vec((prop_oneof![2 => Just(0), 3 => 0..100i64, 1 => 0..900i64], step), 1..80)
}

/// Buckets of 10 to 60 permits, which take some hundred µs to fill, mostly with parts of a µs.
fn any() -> impl Strategy<Value = TokenBucket> {
    (1..40i64, 40..900i64, 10..60i64).prop_map(|(count, period, burst)| rule(count, period, burst))
}

fn take_block(bucket: &mut Limiter, now: Micros, ask: BlockAsk) -> Option<Vec<Held>> {
    let AnyOpen::TokenBucket(mut open) = bucket.open(now) else { panic!("another rule") };
    let taken = open.take_block(1, ask);
    bucket.keep(AnyOpen::TokenBucket(open));
    let (first, usable) = taken?;
    let Algorithm::TokenBucket(TokenBucket { per, den, .. }) = bucket.rule else { return None };
    let held = |i: i64| Held {
        grant: first.after(i * per, den),
        taken: now,
        until: now + usable + (i * per).div_euclid(den),
    };
    Some((0..ask.requests).map(held).collect())
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(1024))]

    /// Permits of blocks may be used at any instant until their ends, or be returned, beside requests that wait and leave.
    #[test]
    fn blocks_never_exceed_the_rule(rule in any(), steps in steps()) {
        let mut bucket = limiter(rule);
        let (mut used, mut waiting, mut held) = (Vec::new(), Vec::new(), Vec::<Held>::new());
        let mut sent: Vec<(Micros, Grant, i64)> = Vec::new();
        // No request waits longer than 2 ms, and no permit of a block is used later than that.
        let mut now = T0;
        for (after, step) in steps {
            now += after;
            waiting.retain(|(at, _)| {
                let is_past = *at <= now;
                used.extend(is_past.then_some((*at, 1)));
                !is_past
            });
            held.retain(|permit| permit.until.min(permit.taken + 2000) >= now);
            match step {
                Step::Ask { budget } => {
                    waiting.extend(bucket.ask(now, 1, budget).ok());
                }
                Step::Block { requests, reach, jump } => {
                    let ask = BlockAsk { requests, reach, jump };
                    let block = take_block(&mut bucket, now, ask).unwrap_or_default();
                    prop_assert!(block.iter().all(|permit| permit.until >= now + reach));
                    held.extend(block);
                }
                Step::Flood => {
                    while let Ok((at, _)) = bucket.ask(now, 1, 0) {
                        used.push((at, 1));
                    }
                }
                Step::Use(count) => {
                    // The last of them can be used the longest.
                    let left = held.len().saturating_sub(count);
                    used.extend(held.drain(left..).map(|_| (now, 1)));
                }
                Step::Return(i) if i < held.len() => {
                    bucket.refund(now, held.swap_remove(i).grant, 1);
                }
                Step::Send(cost) => {
                    let send = bucket.ask(now, cost, 0).ok();
                    sent.extend(send.map(|(at, grant)| (at, grant, cost)));
                }
                Step::Settle(i) if i < sent.len() => {
                    let (at, grant, cost) = sent.swap_remove(i);
                    used.push((at, 1));
                    let rest = Algorithm::TokenBucket(rule).unused_part(grant, cost, 1);
                    let (grant, cost) = rest.expect("some are unused");
                    let mut open = bucket.open(now);
                    open.refund(grant, cost);
                    bucket.keep(open);
                }
                Step::Leave(i) if i < waiting.len() => {
                    let (_, grant) = waiting.swap_remove(i);
                    bucket.refund(now, grant, 1);
                }
                _ => {}
            }
        }
        used.extend(waiting.iter().map(|(at, _)| (*at, 1)));
        used.extend(sent.iter().map(|(at, _, cost)| (*at, *cost)));
        prop_assert!(obeys(rule, &mut used), "{used:?}");
    }

    /// A request returns permits after a block was taken, so that the line moves back. The permits of the block are used as
    /// late as they can be, and at the same instant all others that are there.
    #[test]
    fn a_refund_does_not_move_permits_of_a_block(
        (rule, cost, requests) in (any(), 2..9i64, 2..9i64),
        (longest, [first, second]) in (0..3000i64, [0..300i64, 0..2000i64]),
    ) {
        let mut bucket = limiter(rule);
        let (_, grant) = bucket.ask(T0, cost, 0).expect("an unused bucket");
        let mut used = vec![(T0, 1)];
        let ask = BlockAsk { requests, reach: 0, jump: 0 };
        let block = take_block(&mut bucket, T0, ask).unwrap_or_default();
        let rest = Algorithm::TokenBucket(rule).unused_part(grant, cost, 1);
        let (grant, cost) = rest.expect("some are unused");
        let mut open = bucket.open(T0 + first);
        open.refund(grant, cost);
        bucket.keep(open);
        let last = block.iter().map(|permit| permit.until.min(T0 + longest)).max().unwrap_or(T0);
        let now = last.min(T0 + first + second).max(T0 + first);
        let held = block.iter().filter(|permit| permit.until.min(T0 + longest) >= now);
        used.extend(held.map(|_| (now, 1)));
        while let Ok((at, _)) = bucket.ask(now, 1, 0) {
            used.push((at, 1));
        }
        prop_assert!(obeys(rule, &mut used), "{used:?}");
    }

    /// A block takes its own permits from the others and no more, apart from one whose ticks it may split. It comes after all
    /// blocks before it, and leaves a quarter of the bucket.
    #[test]
    fn a_block_takes_no_more_than_its_permits(rule in any(), steps in steps()) {
        let mut bucket = limiter(rule);
        let (mut now, mut last) = (T0, 0);
        for (after, step) in steps {
            now += after;
            let level = |bucket: &mut Limiter| bucket.open(now).level();
            match step {
                Step::Ask { budget } => drop(bucket.ask(now, 1, budget)),
                Step::Block { requests, reach, jump } => {
                    let before = level(&mut bucket);
                    let ask = BlockAsk { requests, reach, jump };
                    let Some(block) = take_block(&mut bucket, now, ask) else {
                        prop_assert_eq!(level(&mut bucket), before);
                        continue;
                    };
                    let after = level(&mut bucket);
                    let taken = before.remaining - after.remaining;
                    prop_assert!((requests - 1..=requests + 1).contains(&taken), "{taken}");
                    prop_assert!(after.remaining >= rule.burst / 4 && after.next == 0);
                    prop_assert!(block[0].until >= last, "a later block begins earlier");
                    last = block[block.len() - 1].until;
                }
                _ => {}
            }
        }
    }
}
