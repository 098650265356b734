//! The laws of a token bucket whose permits gateways take in blocks and use later, as properties.

use super::{laws::obeys, *};
use crate::algorithm::token_bucket::BlockAsk;
use proptest::prelude::*;

/// A permit of a block that was not used yet: its grant, and the last instant at which it may be used.
#[derive(Debug, Clone, Copy)]
struct Held {
    grant: Grant,
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
    /// A permit of a block is used.
    Use(usize),
    /// A permit of a block comes back to the store.
    Return(usize),
    /// A request that waits leaves.
    Leave(usize),
}

fn steps() -> impl Strategy<Value = Vec<(Micros, Step)>> {
    let step = prop_oneof![
        3 => prop_oneof![Just(0), 0..2000i64].prop_map(|budget| Step::Ask { budget }),
        2 => (2..12i64, 0..300i64, 0..200i64).prop_map(|(requests, reach, more)| Step::Block {
            requests,
            reach,
            jump: reach + more,
        }),
        4 => (0..60usize).prop_map(Step::Use),
        1 => (0..60usize).prop_map(Step::Return),
        1 => (0..6usize).prop_map(Step::Leave),
    ];
    prop::collection::vec((prop_oneof![2 => Just(0), 3 => 0..100i64, 1 => 0..900i64], step), 1..80)
}

/// Buckets of 10 to 60 permits, which take some hundred µs to fill, mostly with parts of a µs.
fn any() -> impl Strategy<Value = TokenBucket> {
    (1..40i64, 40..900i64, 10..60i64).prop_map(|(count, period, burst)| rule(count, period, burst))
}

fn take_block(bucket: &mut Bucket, now: Micros, ask: BlockAsk) -> Option<Vec<Held>> {
    let mut open = Open::new(bucket.state.as_mut(), now, bucket.rule);
    let taken = open.take_block(1, ask);
    bucket.state = open.close().map(|(state, _)| state);
    let (first, usable) = taken?;
    let TokenBucket { per, den, .. } = bucket.rule;
    let held = |i: i64| Held {
        grant: first.after(i * per, den),
        until: now + usable + (i * per).div_euclid(den),
    };
    Some((0..ask.requests).map(held).collect())
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(1024))]

    /// Permits of blocks may be used at any instant until their ends, or be returned, beside requests that wait and leave.
    #[test]
    fn never_too_many_with_blocks(rule in any(), steps in steps()) {
        let mut bucket = Bucket { rule, state: None };
        let (mut used, mut waiting, mut held) = (Vec::new(), Vec::new(), Vec::<Held>::new());
        let mut now = T0;
        for (after, step) in steps {
            now += after;
            waiting.retain(|(at, _)| {
                let is_past = *at <= now;
                used.extend(is_past.then_some((*at, 1)));
                !is_past
            });
            held.retain(|permit| permit.until >= now);
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
                Step::Use(i) if i < held.len() => {
                    held.swap_remove(i);
                    used.push((now, 1));
                }
                Step::Return(i) if i < held.len() => {
                    bucket.refund(now, held.swap_remove(i).grant, 1);
                }
                Step::Leave(i) if i < waiting.len() => {
                    let (_, grant) = waiting.swap_remove(i);
                    prop_assert!(bucket.refund(now, grant, 1));
                }
                _ => {}
            }
        }
        used.extend(waiting.iter().map(|(at, _)| (*at, 1)));
        prop_assert!(obeys(rule, &mut used), "{used:?}");
    }

    /// A block takes its own permits from the others and no more, apart from one whose ticks it may split. It comes after all
    /// blocks before it, and leaves a quarter of the bucket.
    #[test]
    fn a_block_takes_no_more_than_its_permits(rule in any(), steps in steps()) {
        let mut bucket = Bucket { rule, state: None };
        let (mut now, mut last) = (T0, 0);
        for (after, step) in steps {
            now += after;
            let level = |bucket: &mut Bucket| Open::new(bucket.state.as_mut(), now, rule).level();
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
