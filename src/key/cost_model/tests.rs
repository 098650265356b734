//! Reserves that a model has learned, against the costs of the calls.

use super::*;
use proptest::prelude::*;

/// A random number from 0 to 1.
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 11) as f64 / (1_u64 << 53) as f64
}

/// A call with 4.2 bytes a token of input, give or take a tenth, and lognormal output.
fn call(state: &mut u64) -> (u64, i64) {
    let input = 100.0 * 200_f64.powf(uniform(state));
    let normal = (-2.0 * uniform(state).max(1e-12).ln()).sqrt()
        * (std::f64::consts::TAU * uniform(state)).cos();
    let output = 300.0 * (0.8 * normal).exp();
    let bytes = input * 4.2 * (0.9 + 0.2 * uniform(state));
    (bytes as u64 + 120, (input + output) as i64)
}

fn learned(calls: usize, state: &mut u64) -> CostModel {
    let mut model = CostModel::default();
    for _ in 0..calls {
        let (bytes, cost) = call(state);
        let known = model.known();
        model.observe(bytes, cost, known);
    }
    model
}

#[test]
fn knows_nothing_before_twenty_answers() {
    let mut state = 1;
    assert_eq!(learned(19, &mut state).reserve(1000), None);
    assert!(learned(20, &mut state).reserve(1000).is_some());
}

#[test]
fn a_reserve_covers_nineteen_of_twenty_calls() {
    let mut state = 7;
    for calls in [200, 2000, 10_000] {
        let model = learned(calls, &mut state);
        let (mut covered, mut reserved, mut spent) = (0, 0, 0);
        for _ in 0..10_000 {
            let (bytes, cost) = call(&mut state);
            let reserve = model.reserve(bytes).expect("it is known");
            covered += usize::from(reserve >= cost);
            reserved += reserve;
            spent += cost;
        }
        assert!((9_100..9_950).contains(&covered), "{covered} after {calls}");
        assert!(reserved < spent * 4 / 3, "{reserved} for {spent} after {calls}");
    }
}

#[test]
fn follows_a_change_within_some_thousand_answers() {
    let mut model = learned(5000, &mut 3);
    for i in 0..6000_u64 {
        let known = model.known();
        model.observe(1000 + i % 7 * 100, 50, known);
    }
    let reserve = model.reserve(1300).expect("it is known");
    assert!((50..130).contains(&reserve), "{reserve}");
}

#[test]
fn bodies_of_one_length_have_no_ratio() {
    let mut model = CostModel::default();
    for cost in 1..=100 {
        let known = model.known();
        model.observe(700, cost * 10, known);
    }
    let (short, long) =
        (model.reserve(0).expect("known"), model.reserve(1_000_000).expect("known"));
    assert_eq!(short, long);
    assert!((900..1050).contains(&short), "{short}");
}

/// A call of 1,000 to 8,000 bytes that costs a quarter of them and about a hundred.
fn usual(state: &mut u64) -> (u64, i64) {
    let bytes = 1000.0 + 7000.0 * uniform(state);
    (bytes as u64, (bytes / 4.0 + 50.0 + 100.0 * uniform(state)) as i64)
}

/// A picture of 20 MB, a padded body, a call of millions of tokens: one of them does not move the reserves of some hundred others.
#[test]
fn one_call_does_not_decide() {
    let unusual = [(20_000_000, 800), (1_000_000, 800), (8_000, 5_000_000), (500, 5_000_000)];
    for (calls, (bytes, cost)) in [300, 1500].into_iter().flat_map(|n| unusual.map(|it| (n, it))) {
        let mut model = CostModel::default();
        let mut state = 5;
        let mut observe = |(bytes, cost)| {
            let known = model.known();
            model.observe(bytes, cost, known);
        };
        (0..calls).for_each(|_| observe(usual(&mut state)));
        observe((bytes, cost));
        for (bytes, most) in [(4000, 1150), (8000, 2150)] {
            let reserve = model.reserve(bytes).expect("known");
            let is_near = reserve * 10 > most * 7 && reserve * 10 < most * 14;
            assert!(is_near, "{reserve} for {bytes} after {calls} and {cost}");
        }
    }
}

/// Three hundred bodies of one length have no ratio. The first others have one, and what was beyond none is not beyond that.
#[test]
fn reserves_follow_a_ratio_that_shows_late() {
    let (mut model, mut state) = (CostModel::default(), 9);
    for i in 0..400 {
        let (bytes, cost) = usual(&mut state);
        let call = if i < 300 { (4000, 1050 + cost % 100) } else { (bytes, cost) };
        let known = model.known();
        model.observe(call.0, call.1, known);
    }
    for (bytes, most) in [(4000, 1150), (8000, 2150)] {
        let reserve = model.reserve(bytes).expect("known");
        assert!(reserve * 10 > most * 8 && reserve * 10 < most * 13, "{reserve} for {bytes}");
    }
}

#[test]
fn texts_of_others_are_no_model() {
    for text in [
        "",
        "r1 1 1 1 1 1",
        "r2 1 1 1 1 1",
        "r2 1 1 1 1 1 x",
        "r2 NaN 1 1 1 1 1",
        "r2 1 1 1 1 1 1 5",
        "r2 1 1 1 1 1 1 999:1",
        "r2 -1 1 1 1 1 1",
        "r2 1 1e300 1 1 1 1",
    ] {
        assert_eq!(CostModel::parse(text), None, "{text}");
    }
}

/// Another program may have written it, and gateways must not refuse the texts of each other.
#[test]
fn a_text_that_no_answers_gave_becomes_a_model() {
    let mut heavy = CostModel::parse("r2 14 1 1 1 1 1 0:3000 4:1000").expect("a model");
    assert!(heavy.text().ends_with(" 0:10.500 4:3.500"), "{}", heavy.text());
    let great = CostModel::parse("r2 3 3e1 9e44 15 1e6 0.5").expect("a model");
    heavy.add(&great);
    heavy.add(&great);
    assert!(CostModel::parse(&heavy.text()).is_some(), "{}", heavy.text());
}

proptest! {
    /// Two gateways that share their answers know what one gateway would know, and a text brings it over a restart.
    #[test]
    fn models_add_up_and_survive_as_text(seed in any::<u64>(), calls in 0..400_usize) {
        let mut state = seed;
        let (one, other) = (learned(calls, &mut state), learned(calls / 2, &mut state));
        let mut both = one.clone();
        both.add(&other);
        prop_assert!((both.answers - one.answers - other.answers).abs() < 1e-6);
        let text = both.text();
        prop_assert!(text.len() < 1500, "{}", text.len());
        let again = CostModel::parse(&text).expect("a model");
        prop_assert_eq!(again.text(), text);
        prop_assert_eq!(again.reserve(5000).is_some(), both.reserve(5000).is_some());
        if let (Some(one), Some(other)) = (again.reserve(5000), both.reserve(5000)) {
            prop_assert!((one - other).abs() <= 1 + one / 100, "{one} {other}");
        }
    }

    #[test]
    fn any_costs_give_a_reserve_in_bounds(calls in prop::collection::vec((any::<u32>(), 0..i64::MAX), 20..60), bytes in any::<u64>()) {
        let mut model = CostModel::default();
        for (bytes, cost) in calls {
            let known = model.known();
            model.observe(bytes.into(), cost, known);
        }
        prop_assert!(model.reserve(bytes).is_some_and(|reserve| reserve >= 1));
    }
}
