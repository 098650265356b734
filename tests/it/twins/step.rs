//! A step of a random sequence, and how it is drawn.

use paceway::{
    algorithm::{
        Rule,
        gate::{Bounds, MAX_PAUSE, Remainder},
    },
    store::Pause,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) after: i64,
    pub(super) what: What,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    /// Keys used (at least one of three), which of them observe, costs, budget.
    Decide {
        used: [bool; 3],
        observe: [bool; 3],
        cost: i64,
        budget: i64,
    },
    /// A request that can be made by one key, or by that one and the next, each way after so many µs; costs, budget.
    Choose {
        used: [bool; 3],
        afters: [i64; 3],
        cost: i64,
        budget: i64,
    },
    /// A grant comes back, with so much more horizon than its request had.
    GiveBack(usize, i64),
    /// A request turned out to have used so many of its permits; they come back with so much more horizon.
    Settle(usize, i64, i64),
    /// A request asks for an earlier instant within this budget, in place of its grant.
    MoveUp(usize, i64),
    /// A key owes so many permits.
    Charge(usize, i64),
    Look(usize),
    Renew(usize),
    Forget(usize),
    /// The limiter of a key is paused.
    Pause(usize, Pause),
    /// Some permits of a key remain.
    Lower(usize, Remainder),
    /// A request that waits for a place asks again.
    AskAgain(usize),
    /// The limiter of a key gets another rule, as after an edit of the configuration.
    Change(usize, Rule),
    /// The store loses what it knows: the states themselves, or only that they are all.
    Lose {
        states: bool,
    },
}

fn pause() -> impl Strategy<Value = Pause> {
    let spans = prop_oneof![Just(0), 0..1_000i64, 0..9_000_000i64, 0..90_000_000_000i64];
    let wholes = prop_oneof![Just(0), 0..1_000_000i64, Just(MAX_PAUSE)];
    let agos = prop_oneof![Just(0), 0..9_000_000i64, 0..90_000_000_000i64];
    (spans, wholes, any::<u16>(), agos).prop_map(|(span, whole, status, ago)| Pause {
        span,
        whole,
        status,
        ago,
    })
}

/// The bounds of a limiter, of which some have none.
pub(super) fn bounds() -> impl Strategy<Value = Option<Bounds>> {
    let rate = || (3..15u32, 1..10i64).prop_map(|(power, count)| count * 10i64.pow(power));
    let unit = prop_oneof![1..5_000_000i64, 1..90_000_000_000i64];
    let bounds = (rate(), rate(), unit).prop_map(|(a, b, unit)| Bounds {
        start: a.max(b),
        min: a.min(b),
        unit,
    });
    prop::option::weighted(0.3, bounds)
}

/// A step of a sequence whose limiters get such rules.
pub(super) fn step(rule: BoxedStrategy<Rule>) -> impl Strategy<Value = Step> {
    let spans = || prop_oneof![Just(0), 0..1_000i64, 0..2_000_000i64, 0..90_000_000_000i64];
    let budgets = prop_oneof![Just(0), 0..5_000_000i64, 0..90_000_000_000i64];
    let more = || prop_oneof![Just(0), 0..500_000i64];
    let decide = (any::<[bool; 3]>(), any::<[bool; 3]>(), 1..4i64, budgets);
    let after = || prop_oneof![2 => Just(0), 1 => 0..2_000_000i64];
    let budget = prop_oneof![Just(0), 0..5_000_000i64, 0..90_000_000_000i64];
    let choose = (any::<[bool; 3]>(), [after(), after(), after()], 1..4i64, budget);
    let what = prop_oneof![
        8 => decide.prop_map(|(used, observe, cost, budget)| What::Decide { used, observe, cost, budget }),
        3 => choose.prop_map(|(used, afters, cost, budget)| What::Choose { used, afters, cost, budget }),
        3 => (0..5usize, more()).prop_map(|(i, more)| What::GiveBack(i, more)),
        2 => (0..5usize, 0..3i64, more()).prop_map(|(i, used, more)| What::Settle(i, used, more)),
        3 => (0..5usize, 0..2_000_000i64).prop_map(|(i, budget)| What::MoveUp(i, budget)),
        1 => (0..3usize, 1..9i64).prop_map(|(key, permits)| What::Charge(key, permits)),
        1 => (0..3usize).prop_map(What::Look),
        1 => (0..5usize).prop_map(What::Renew),
        1 => (0..5usize).prop_map(What::AskAgain),
        1 => (0..30usize).prop_map(What::Forget),
        1 => (0..3usize, pause()).prop_map(|(key, pause)| What::Pause(key, pause)),
        1 => (0..3usize, 0..4i64, 0..4i64, spans()).prop_map(|(key, permits, waiting, span)| {
            What::Lower(key, Remainder { permits, waiting, span })
        }),
        1 => (0..3usize, rule).prop_map(|(key, rule)| What::Change(key, rule)),
        1 => any::<[bool; 3]>().prop_filter_map("seldom", |[seldom, also, states]| {
            (seldom && also).then_some(What::Lose { states })
        }),
    ];
    (spans(), what).prop_map(|(after, what)| Step { after, what })
}
