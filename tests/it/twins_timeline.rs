//! Twins of the rules on a timeline: leaky buckets and warm-ups, alone and in one request with a token bucket.

use crate::{
    support::Redis,
    twins::{T0, connect, say_the_same, token_bucket},
};
use paceway::{
    algorithm::{LeakyBucket, Rule, TokenBucket, WarmUp, token_bucket::BlockAsk},
    store::{Check, Checks, Entry, Reply, StoreError, memory::MemoryStore},
};
use proptest::prelude::*;

/// Rates from one in three hours to 80,000 a second, also such as need rounding.
fn rate() -> impl Strategy<Value = (i64, i64)> + Clone {
    let odd = prop_oneof![
        Just((7, 1_000_000)),
        Just((80_000, 1_000_000)),
        Just((3, 10_800_000_000)),
        Just((123_457, 86_400_000_000)),
        Just((999_983, 1_000_000)),
        Just((1_000_000, 1_000_000)),
    ];
    prop_oneof![3 => (3..50i64, 50..3_000_000i64), 1 => odd]
}

fn leaky_bucket() -> BoxedStrategy<Rule> {
    let margin = prop_oneof![Just(0), 0..1_000i64];
    let any = (rate(), margin, prop::option::of(0..40i64));
    any.prop_map(|((count, period), margin, queue)| {
        let rule = LeakyBucket::new(count, period, margin, queue);
        Rule::from(rule.expect("a rule"))
    })
    .boxed()
}

fn warm_up() -> BoxedStrategy<Rule> {
    let factor = prop_oneof![Just(3.0), 1.001..100.0f64];
    let warm_up = prop_oneof![1..100_000i64, 1..60_000_000i64, 1..3_600_000_000i64];
    let any = (rate(), warm_up, factor);
    any.prop_map(|((count, period), warm_up, factor)| {
        Rule::from(WarmUp::new(count, period, warm_up, factor).expect("a rule"))
    })
    .boxed()
}

#[test]
fn leaky_buckets_agree_step_by_step() {
    say_the_same(leaky_bucket(), 60);
}

#[test]
fn warm_ups_agree_step_by_step() {
    say_the_same(warm_up(), 60);
}

#[test]
fn all_timeline_algorithms_agree_step_by_step() {
    say_the_same(prop_oneof![token_bucket(), leaky_bucket(), warm_up()].boxed(), 60);
}

fn single(key: &str, algorithm: Rule) -> Checks {
    std::sync::Arc::new([Check::new(key, algorithm)])
}

fn examples() -> [Rule; 3] {
    [
        Rule::from(TokenBucket::new(7, 1_000_000, 3).expect("a rule")),
        Rule::from(LeakyBucket::new(7, 1_000_000, 0, Some(100)).expect("a rule")),
        Rule::from(WarmUp::new(7, 1_000_000, 5_000_000, 3.0).expect("a rule")),
    ]
}

#[tokio::test]
async fn a_value_of_another_version_or_kind_or_length_is_foreign() {
    let redis = Redis::start();
    let store = connect(&redis).await;
    for (i, rule) in examples().into_iter().enumerate() {
        let key = format!("{{{i}}}");
        let ask =
            [Entry::Reserve { checks: single(&key, rule), budget: 3_600_000_000, ticket: None }];
        let foreign = Ok(vec![Reply::Failed(StoreError::Foreign(key.as_str().into()))]);
        store.run_at(Some(T0), &ask).await.expect("admitted");
        for command in [
            &["SETRANGE", &key, "0", "\u{7f}"][..],
            &["SETRANGE", &key, "0", "\u{1}Z"],
            &["SET", &key, "hello"],
            &["SET", &key, ""],
        ] {
            redis.command(command);
            let replies = store.run_at(Some(T0), &ask).await;
            assert_eq!(replies, foreign, "{command:?}");
        }
        redis.command(&["DEL", &key]);
        redis.command(&["HSET", &key, "a", "b"]);
        let replies = store.run_at(Some(T0), &ask).await;
        assert_eq!(replies, foreign, "a hash");
    }
}

/// One call looks at a bucket, and returns permits to it with a longer horizon, which leaves more of the line in its place.
#[tokio::test]
async fn refunds_use_the_horizon_of_their_own_entry() -> Result<(), StoreError> {
    let redis = Redis::start();
    let (store, memory) = (connect(&redis).await, MemoryStore::default());
    let rule = Rule::from(TokenBucket::new(10, 1_000_000, 3).expect("a rule"));
    let check = Check::new("{k}", rule).with_cost(3);
    let checks: Checks = [check.clone()].into();
    let take = Entry::Reserve { checks, budget: 5_000_000, ticket: None };
    let taken = vec![take; 5];
    let replies = memory.run_at(T0, &taken);
    assert_eq!(store.run_at(Some(T0), &taken).await?, replies);
    let Reply::Decision(fourth) = &replies[3] else { panic!("{replies:?}") };
    let part = rule.as_rate().and_then(|rate| rate.unused_part(fourth.parts[0].grant, 3, 0));
    let (grant, cost) = part.expect("none of them was used");
    let returned = check.clone().with_cost(cost).with_horizon(rule.horizon(1_100_000, 3));
    let look = Entry::Look { check };
    let call = [look.clone(), Entry::Refund { check: returned, grant }, look];
    assert_eq!(store.run_at(Some(T0 + 1), &call).await?, memory.run_at(T0 + 1, &call));
    Ok(())
}

/// A line that true costs have moved back gives no blocks. While permits of a block can be used, it stays where it is.
#[tokio::test]
async fn a_bucket_moves_its_line_back_or_grants_blocks() -> Result<(), StoreError> {
    let redis = Redis::start();
    let (store, memory) = (connect(&redis).await, MemoryStore::default());
    let rule = Rule::from(TokenBucket::new(1000, 1_000_000, 1000).expect("a rule"));
    let ask = BlockAsk { requests: 10, reach: 20_000, jump: 30_000 };
    for (key, block_is_first) in [("{k}:first", true), ("{k}:last", false)] {
        let check = Check::new(key, rule);
        let (large, one): (Checks, Checks) =
            ([check.clone().with_cost(200)].into(), [check.clone()].into());
        let take = Entry::Reserve { checks: large, budget: 0, ticket: None };
        let taken = memory.run_at(T0, &[take.clone(), take.clone()]);
        assert_eq!(store.run_at(Some(T0), &[take.clone(), take]).await?, taken);
        let Reply::Decision(first) = &taken[0] else { panic!("{taken:?}") };
        let part = rule.as_rate().and_then(|rate| rate.unused_part(first.parts[0].grant, 200, 1));
        let (grant, cost) = part.expect("most of them were not used");
        let block = Entry::Block { checks: one, budget: 0, ask };
        let refund = Entry::Refund { check: check.with_cost(cost), grant };
        let mut call = [block.clone(), refund];
        if !block_is_first {
            call.reverse();
        }
        let mut blocks = 0;
        for call in [call, [block.clone(), block]] {
            let replies = memory.run_at(T0 + 1, &call);
            assert_eq!(store.run_at(Some(T0 + 1), &call).await?, replies);
            blocks += replies.iter().filter(|it| matches!(it, Reply::Block { .. })).count();
        }
        assert_eq!(blocks, if block_is_first { 3 } else { 0 }, "{key}");
    }
    Ok(())
}

#[tokio::test]
async fn a_thousand_saturated_grants_with_refunds_agree() -> Result<(), StoreError> {
    let redis = Redis::start();
    let store = connect(&redis).await;
    for (i, rule) in examples().into_iter().enumerate() {
        let (memory, key) = (MemoryStore::default(), format!("{{many{i}}}"));
        let checks = single(&key, rule);
        for step in 0..250 {
            let ask = Entry::Reserve { checks: checks.clone(), budget: 600_000_000, ticket: None };
            let now = T0 + step * 300_000;
            let asks = vec![ask; 4];
            let expected = memory.run_at(now, &asks);
            assert_eq!(store.run_at(Some(now), &asks).await?, expected);
            let Reply::Decision(second) = &expected[1] else { panic!("{expected:?}") };
            let leaves = second
                .parts
                .iter()
                .map(|part| Entry::Refund { check: checks[0].clone(), grant: part.grant });
            let leaves: Vec<_> = leaves.filter(|_| step % 3 == 0).collect();
            assert_eq!(store.run_at(Some(now), &leaves).await?, memory.run_at(now, &leaves));
        }
    }
    Ok(())
}
