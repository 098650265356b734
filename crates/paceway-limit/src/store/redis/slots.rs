//! Which slot a key has in a Redis Cluster, and what the Cluster says of its slots. Pure.

use super::{resp::Value, url::Place};
use crate::store::hash_tag;

/// Of any Cluster.
pub(super) const SLOTS: u16 = 16_384;
/// A Cluster has fewer.
pub(super) const MOST_NODES: usize = 1000;

/// Which server has which slots, as one server sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View {
    /// First and last slot, and who has them.
    pub(super) ranges: Vec<(u16, u16, Place)>,
    /// Servers that stand by.
    pub(super) replicas: Vec<Place>,
}

/// Where a server sends us. It has executed nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is there from now on.
    Moved(Place),
    /// The slot is on its way there: for this command alone.
    Ask(Place),
}

/// The slot of a key: CRC-16 (XMODEM) of its hash tag.
pub(super) fn slot(key: &str) -> u16 {
    let crc = hash_tag(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let carry = crc & 0x8000 != 0;
            (crc << 1) ^ if carry { 0x1021 } else { 0 }
        })
    });
    crc % SLOTS
}

// === impl View ===

impl View {
    /// What `CLUSTER SLOTS` says at `asked`; `None` when it is something else.
    pub(super) fn read(said: &Value, asked: &Place) -> Option<Self> {
        let Value::List(list) = said else { return None };
        let mut view = Self { ranges: Vec::new(), replicas: Vec::new() };
        for range in list {
            let Value::List(range) = range else { return None };
            let [Value::Number(first), Value::Number(last), master, replicas @ ..] = &range[..]
            else {
                return None;
            };
            let number = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
            let (first, last) = (number(*first)?, number(*last)?);
            if let Some(place) = server(master, asked) {
                view.ranges.push((first, last, place));
            }
            for replica in replicas {
                let replica = server(replica, asked).filter(|it| !view.replicas.contains(it));
                if view.replicas.len() < MOST_NODES {
                    view.replicas.extend(replica);
                }
            }
        }
        Some(view)
    }
}

/// `None` for one without an address: it has just begun.
fn server(said: &Value, asked: &Place) -> Option<Place> {
    let Value::List(parts) = said else { return None };
    let [host, Value::Number(port), ..] = &parts[..] else { return None };
    let host = match host {
        Value::Bytes(host) => str::from_utf8(host).ok()?,
        // It does not know by which address we see it.
        _ => "",
    };
    Place::at(host, u16::try_from(*port).ok()?, asked)
}

// === impl Redirect ===

impl Redirect {
    /// What an error of the server at `asked` says; `None` for any other error.
    pub(super) fn of(words: &str, asked: &Place) -> Option<Self> {
        let mut parts = words.split(' ');
        let kind = parts.next()?;
        if !matches!(kind, "MOVED" | "ASK") {
            return None;
        }
        let place = Place::told(parts.nth(1)?, asked)?;
        Some(if kind == "ASK" { Self::Ask(place) } else { Self::Moved(place) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// As `CLUSTER KEYSLOT` says.
    #[rstest]
    #[case("123456789", 12739)]
    #[case("foo", 12182)]
    #[case("paceway:{foo}:T:x", 12182)]
    #[case("", 0)]
    fn slot_of_a_key(#[case] key: &str, #[case] expected: u16) {
        assert_eq!(slot(key), expected);
    }

    #[rstest]
    #[case("MOVED 3999 10.0.0.1:6381", Some(Redirect::Moved(Place::tcp("10.0.0.1", 6381))))]
    #[case("MOVED 3999 :6381", Some(Redirect::Moved(Place::tcp("asked", 6381))))]
    #[case("MOVED 3999 fe80::1:6381", Some(Redirect::Moved(Place::tcp("fe80::1", 6381))))]
    #[case("ASK 3999 node-1.example:6381", Some(Redirect::Ask(Place::tcp("node-1.example", 6381))))]
    #[case("TRYAGAIN Multiple keys request during rehashing of slot", None)]
    #[case("MOVED", None)]
    #[case("MOVED 3999 ?:1", None)]
    #[case("MOVED 3999 10.0.0.1:x", None)]
    #[case("ERR MOVED 3999 10.0.0.1:6381", None)]
    fn redirects(#[case] words: &str, #[case] expected: Option<Redirect>) {
        assert_eq!(Redirect::of(words, &Place::tcp("asked", 1)), expected);
    }

    #[test]
    fn a_view_of_a_cluster() {
        let server = |host: Value, port| {
            Value::List(vec![host, Value::Number(port), Value::Bytes(b"id".into())])
        };
        let at = |host: &str, port| server(Value::Bytes(host.into()), port);
        let range = |first, last, servers: Vec<Value>| {
            let mut parts = vec![Value::Number(first), Value::Number(last)];
            parts.extend(servers);
            Value::List(parts)
        };
        let said = Value::List(vec![
            range(0, 99, vec![at("a", 1), at("r", 2)]),
            range(100, 16_383, vec![server(Value::Nothing, 3), at("r", 2), at("?", 4)]),
        ]);
        let view = View::read(&said, &Place::tcp("asked", 9)).expect("a view");
        let ranges = vec![(0, 99, Place::tcp("a", 1)), (100, 16_383, Place::tcp("asked", 3))];
        assert_eq!(view, View { ranges, replicas: vec![Place::tcp("r", 2)] });
        for wrong in
            [range(0, 16_384, vec![at("a", 1)]), range(-1, 5, vec![at("a", 1)]), Value::Nothing]
        {
            assert_eq!(View::read(&Value::List(vec![wrong]), &Place::tcp("asked", 9)), None);
        }
    }
}
