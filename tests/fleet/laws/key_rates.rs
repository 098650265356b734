//! The laws of a limiter whose keys have rates of their own.

use super::{Verdict, broken, calls, most_between};
use crate::{
    history::{History, KeyRate, Limiter, Micros, SECOND},
    run::Record,
};
use paceway::algorithm::{Algorithm, Rule};

pub(super) fn are_kept_and_used(history: &History, record: &Record) -> Verdict {
    for (key, rate) in (0..).zip(&history.key_rates) {
        is_kept(history, record, key, rate)?;
        is_used(history, record, key, rate)?;
    }
    Ok(())
}

/// Law 1 with the rate of the key, before and after its change. Beyond it, a bucket has a burst more.
fn is_kept(history: &History, record: &Record, key: i64, rate: &KeyRate) -> Verdict {
    let mut sent: Vec<_> = calls(history, record, 0, key).map(|(seen, ..)| seen).collect();
    sent.sort_unstable_by_key(|seen| seen.granted);
    for (i, first) in sent.iter().enumerate() {
        let is_new = |came: Micros| rate.then.as_ref().is_some_and(|then| came >= then.at);
        let (first_is_new, mut differs) = (is_new(first.came), false);
        for (count, last) in (1..).zip(&sent[i..]) {
            differs |= is_new(last.came) != first_is_new;
            let (from, to) = (first.granted.0, last.granted.1);
            let most = match &rate.then {
                Some(then) if differs => {
                    let [before, after] = [&rate.limiter, &then.limiter];
                    let most = [before, after].map(|it| most_between(it, from, to, 0, 1));
                    most[0].max(most[1]) + burst(before).max(burst(after))
                }
                _ => most_between(rate.at(first.came), from, to, 0, 1),
            };
            if count > most {
                let how = format!("key {key}: {count} permits, {most} allowed: {first} to {last}");
                return broken("each key has its rate", how);
            }
        }
    }
    Ok(())
}

fn burst(limiter: &Limiter) -> i64 {
    match limiter.rule {
        Rule::Rate(Algorithm::TokenBucket(_)) => limiter.rule.limit(),
        _ => 0,
    }
}

/// Law 2 with the rate of the key: its requests always wait.
fn is_used(history: &History, record: &Record, key: i64, rate: &KeyRate) -> Verdict {
    let (change, wait) = (rate.then.as_ref().map(|it| it.at), history.routes[0].budget);
    let spans = match change {
        // Requests that waited keep their instants.
        Some(at) => vec![(2 * SECOND, at), (at + wait, history.load)],
        None => vec![(2 * SECOND, history.load)],
    };
    for (from, until) in spans {
        let limiter = rate.at(from);
        let within = |at: &Micros| (from..until).contains(at);
        let count = calls(history, record, 0, key).filter(|(_, at, _)| within(at)).count() as i64;
        let least = (until - from) * 99 / 100 / limiter.spacing(0) - limiter.count - 1;
        if count < least {
            let how = format!("key {key}: {count} calls from {from} to {until}, {least} possible");
            return broken("each key has its whole rate", how);
        }
    }
    Ok(())
}
