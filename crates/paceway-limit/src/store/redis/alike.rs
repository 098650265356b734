//! The entries of a call in the order in which they are written: requests that ask one token bucket alone, all for the same
//! cost, are one of them. Sends nothing.

use crate::{
    algorithm::{Algorithm, Rule},
    store::{Check, Entry},
};
use ahash::{HashMap, HashSet};
use smallvec::{SmallVec, smallvec};

/// The positions of the entries that are written as one.
pub(super) type Alike = SmallVec<[usize; 1]>;

/// Groups the entries of a call.
pub(super) fn group(entries: &[Entry]) -> Vec<Alike> {
    if let [_] = entries {
        return vec![smallvec![0]];
    }
    let mixed = mixed_keys(entries);
    let mut groups: Vec<Alike> = Vec::with_capacity(entries.len());
    let mut places = HashMap::default();
    for (i, entry) in entries.iter().enumerate() {
        let key = alone(entry).map(|check| &*check.key).filter(|key| !mixed.contains(key));
        let place = key.map_or(groups.len(), |key| *places.entry(key).or_insert(groups.len()));
        match groups.get_mut(place) {
            Some(group) => group.push(i),
            None => groups.push(smallvec![i]),
        }
    }
    groups
}

/// Returns the check of a request that can be decided together with others of its bucket. Requests for most of a bucket cannot:
/// some of them wait so near to their permits that the state remembers it.
fn alone(entry: &Entry) -> Option<&Check> {
    let Entry::Reserve { checks, budget: 0.., ticket: None } = entry else { return None };
    let [check] = &**checks else { return None };
    match check.algorithm {
        Rule::Rate(Algorithm::TokenBucket(rule)) => {
            let is_usual = rule.is_usual(check.cost) && check.floors.is_none();
            Some(check).filter(|check| check.enforce && is_usual)
        }
        _ => None,
    }
}

/// Returns the keys whose entries differ in more than their budgets: all entries of a key keep their order.
fn mixed_keys(entries: &[Entry]) -> HashSet<&str> {
    let mut mixed = HashSet::default();
    let mut firsts: HashMap<&str, &Check> = HashMap::default();
    for entry in entries {
        match alone(entry) {
            None => mixed.extend(entry.checks().iter().map(|check| &*check.key)),
            Some(check) => {
                let first = *firsts.entry(&check.key).or_insert(check);
                let is_same = (first.cost, first.horizon, first.on_loss, first.algorithm)
                    == (check.cost, check.horizon, check.on_loss, check.algorithm)
                    && first.bounds == check.bounds;
                if !is_same {
                    mixed.insert(&*check.key);
                }
            }
        }
    }
    mixed
}
