//! The slots of a Redis Cluster: which slot a key has, and how to read what a node says about slots. Sends nothing.

use super::url::Endpoint;
use crate::store::hash_tag;
use redis::Value;

/// The number of slots of every Cluster.
pub(super) const SLOTS: u16 = 16_384;
/// The greatest number of nodes that are followed. The Cluster specification recommends at most 1000.
pub(super) const MOST_NODES: usize = 1000;

/// Which server has which slots, as one node of the Cluster sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View {
    /// The first and the last slot of each range, and the master that has them.
    pub(super) ranges: Vec<(u16, u16, Endpoint)>,
    /// The replicas, which know the map as well as their masters do.
    pub(super) replicas: Vec<Endpoint>,
}

/// Another server that a node names for a command. The node itself has executed nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot has moved there for good.
    Moved(Endpoint),
    /// The slot is moving there, and the key has moved already: the answer is for this command alone.
    Ask(Endpoint),
}

/// Returns the slot of a key: the CRC-16 (XMODEM) of its hash tag, modulo the number of slots.
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
    /// Reads the reply of the node at `asked` to `CLUSTER SLOTS`; `None` if it is something else.
    pub(super) fn read(said: &Value, asked: &Endpoint) -> Option<Self> {
        let Value::Array(list) = said else { return None };
        let mut view = Self { ranges: Vec::new(), replicas: Vec::new() };
        for range in list {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), master, replicas @ ..] = &range[..] else {
                return None;
            };
            let number = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
            let (first, last) = (number(*first)?, number(*last)?);
            if let Some(endpoint) = server(master, asked) {
                view.ranges.push((first, last, endpoint));
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

/// Reads the address of one node; `None` if it has none yet, as a node that has just started.
fn server(said: &Value, asked: &Endpoint) -> Option<Endpoint> {
    let Value::Array(parts) = said else { return None };
    let [host, Value::Int(port), ..] = &parts[..] else { return None };
    let host = match host {
        Value::BulkString(host) => str::from_utf8(host).ok()?,
        // Null: the node does not know the address by which we reach it.
        _ => "",
    };
    Endpoint::at(host, u16::try_from(*port).ok()?, asked)
}

// === impl Redirect ===

impl Redirect {
    /// Reads an error of the node at `asked`, such as `MOVED 3999 10.0.0.1:6381`; `None` if it names no other server.
    pub(super) fn of(words: &str, asked: &Endpoint) -> Option<Self> {
        let mut parts = words.split(' ');
        let kind = parts.next()?;
        if !matches!(kind, "MOVED" | "ASK") {
            return None;
        }
        let endpoint = Endpoint::told(parts.nth(1)?, asked)?;
        Some(if kind == "ASK" { Self::Ask(endpoint) } else { Self::Moved(endpoint) })
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
    fn computes_the_slot_of_a_key(#[case] key: &str, #[case] expected: u16) {
        assert_eq!(slot(key), expected);
    }

    #[rstest]
    #[case("MOVED 3999 10.0.0.1:6381", Some(Redirect::Moved(Endpoint::tcp("10.0.0.1", 6381))))]
    #[case("MOVED 3999 :6381", Some(Redirect::Moved(Endpoint::tcp("asked", 6381))))]
    #[case("MOVED 3999 fe80::1:6381", Some(Redirect::Moved(Endpoint::tcp("fe80::1", 6381))))]
    #[case(
        "ASK 3999 node-1.example:6381",
        Some(Redirect::Ask(Endpoint::tcp("node-1.example", 6381)))
    )]
    #[case("TRYAGAIN Multiple keys request during rehashing of slot", None)]
    #[case("MOVED", None)]
    #[case("MOVED 3999 ?:1", None)]
    #[case("MOVED 3999 10.0.0.1:x", None)]
    #[case("ERR MOVED 3999 10.0.0.1:6381", None)]
    fn reads_redirects(#[case] words: &str, #[case] expected: Option<Redirect>) {
        assert_eq!(Redirect::of(words, &Endpoint::tcp("asked", 1)), expected);
    }

    #[test]
    fn reads_the_slots_of_a_cluster() {
        let server = |host: Value, port| {
            Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".into())])
        };
        let at = |host: &str, port| server(Value::BulkString(host.into()), port);
        let range = |first, last, servers: Vec<Value>| {
            let mut parts = vec![Value::Int(first), Value::Int(last)];
            parts.extend(servers);
            Value::Array(parts)
        };
        let said = Value::Array(vec![
            range(0, 99, vec![at("a", 1), at("r", 2)]),
            range(100, 16_383, vec![server(Value::Nil, 3), at("r", 2), at("?", 4)]),
        ]);
        let view = View::read(&said, &Endpoint::tcp("asked", 9)).expect("a view");
        let ranges = vec![(0, 99, Endpoint::tcp("a", 1)), (100, 16_383, Endpoint::tcp("asked", 3))];
        assert_eq!(view, View { ranges, replicas: vec![Endpoint::tcp("r", 2)] });
        for wrong in
            [range(0, 16_384, vec![at("a", 1)]), range(-1, 5, vec![at("a", 1)]), Value::Nil]
        {
            assert_eq!(View::read(&Value::Array(vec![wrong]), &Endpoint::tcp("asked", 9)), None);
        }
    }
}
