//! The names of states on Redis, by `SCAN` in steps: on one server, or on each master of a Cluster in turn.

use super::{
    Connected, RedisStore,
    call::QUEUE_KEYS,
    transport::{command, words},
};
use crate::store::{ScanPlace, ScanStep, StoreError};
use redis::Value;
use std::sync::Arc;

/// How many keys a server looks at in one step. It takes about 1 ms, in which it decides nothing.
const COUNT: &str = "1000";

// === impl RedisStore ===

impl RedisStore {
    /// Reads the names that begin with `prefix` among the next 1,000 keys of a server.
    ///
    /// # Errors
    ///
    /// When a server refuses the command, or its connection is lost.
    pub(super) async fn scan_names(
        &self,
        prefix: &str,
        place: ScanPlace,
    ) -> Result<ScanStep, StoreError> {
        let (cursor, pattern) = (place.cursor.to_string(), pattern(prefix));
        let words: [&[u8]; 6] =
            [b"SCAN", cursor.as_bytes(), b"MATCH", pattern.as_bytes(), b"COUNT", COUNT.as_bytes()];
        let sent = command(&words);
        match &self.servers {
            Connected::One(one) => {
                let (names, cursor) = read(&one.connection.call(&sent).await?)?;
                let next = (cursor != 0).then_some(ScanPlace { server: None, cursor });
                Ok(ScanStep { names, next })
            }
            Connected::Cluster(cluster) => {
                let servers = cluster.servers();
                // The slots of a server that has left the Cluster are on the others.
                let from = place.server.unwrap_or_default();
                let at = servers.iter().position(|server| *server >= from);
                let Some(server) = at.and_then(|at| servers.get(at)) else {
                    return if servers.is_empty() {
                        Err(StoreError::NotConnected)
                    } else {
                        Ok(ScanStep { names: Vec::new(), next: None })
                    };
                };
                let begin =
                    |server: &Arc<str>| ScanPlace { server: Some(server.clone()), cursor: 0 };
                if place.cursor != 0 && *server != from {
                    return Ok(ScanStep { names: Vec::new(), next: Some(begin(server)) });
                }
                let (names, cursor) = read(&cluster.call_at(server, &sent).await?)?;
                let next = match cursor {
                    0 => servers.iter().find(|other| *other > server).map(begin),
                    _ => Some(ScanPlace { cursor, ..begin(server) }),
                };
                Ok(ScanStep { names, next })
            }
        }
    }
}

/// The pattern of names that begin with `prefix`.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}

/// The names and the next cursor of a reply; the cursor is 0 after the last keys. A name that is no text is not ours.
fn read(said: &Value) -> Result<(Vec<Arc<str>>, u64), StoreError> {
    let said = match said {
        Value::ServerError(error) => return Err(StoreError::Refused(words(error))),
        Value::Array(said) => &said[..],
        _ => return Err(StoreError::Protocol),
    };
    let [Value::BulkString(cursor), Value::Array(names)] = said else {
        return Err(StoreError::Protocol);
    };
    let cursor = std::str::from_utf8(cursor).ok().and_then(|text| text.parse().ok());
    let names = names.iter().filter_map(|name| match name {
        Value::BulkString(name) => std::str::from_utf8(name).ok().map(Arc::from),
        _ => None,
    });
    // The requests that wait for a limiter are a part of its state.
    let names = names.filter(|name: &Arc<str>| !QUEUE_KEYS.iter().any(|end| name.ends_with(end)));
    Ok((names.collect(), cursor.ok_or(StoreError::Protocol)?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_prefix_with_pattern_characters_matches_literally() {
        assert_eq!(super::pattern("a{b}:T:c"), "a{b}:T:c*");
        assert_eq!(super::pattern("a*[b]"), "a\\*\\[b\\]*");
    }
}
