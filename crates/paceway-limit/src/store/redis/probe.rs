//! Asks the servers of a store at the start, before any request depends on them: whether they are of the kind that the URL
//! says, accept the login and allow every command that limiters need. Writes two keys of its own and deletes them.

use super::{
    info::Info,
    reason::{ConnectError, refusal},
    slots::{View, slot},
    tls,
    transport::{Access, Destination, RedisStream, ask, dial, words},
    url::{Endpoint, RedisUrl, Servers},
};
use redis::Value;
use std::{collections::HashSet, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{Instant, timeout},
};

const SCRIPT: &str = include_str!("probe.lua");
/// The oldest major version of Redis that is supported: since Redis 5 a script may ask for the time and write afterwards.
const LEAST: u32 = 5;
/// The time that is kept back to find out whether a silent server expects TLS.
const GUESS: Duration = Duration::from_millis(300);

/// Asks the servers of `url`, where the names of all keys begin with `prefix`; returns warnings for the operator.
pub(super) async fn probe(
    url: &RedisUrl,
    prefix: &str,
    limit: Duration,
) -> Result<Vec<String>, ConnectError> {
    let access = Arc::new(Access::new(url, Arc::default())?);
    // A server that waits for a TLS handshake is silent. Then there is time left to find that out.
    let limit = limit.saturating_sub(GUESS);
    let asked = async {
        match &*url.servers {
            Servers::Cluster(seeds) => {
                cluster(&access, seeds, prefix, Instant::now() + limit).await
            }
            _ => one(url, &access, prefix).await,
        }
    };
    let asked = timeout(limit, asked).await;
    let error = match asked.unwrap_or_else(|_| Err(late())) {
        Err(error @ ConnectError::Unreachable(_)) => error,
        result => return result,
    };
    match url.endpoints().first() {
        Some(Endpoint::Tcp { host, port }) => {
            Err(guess(host, *port, access.is_tls()).await.unwrap_or(error))
        }
        _ => Err(error),
    }
}

fn late() -> ConnectError {
    ConnectError::Unreachable("no answer in time".into())
}

async fn one(url: &RedisUrl, access: &Access, prefix: &str) -> Result<Vec<String>, ConnectError> {
    let Some(target) = Destination::of(url) else { return Ok(Vec::new()) };
    let (mut stream, endpoint) = target.connect(access).await?;
    // Two hash tags: only a server that has all slots accepts them in one call.
    let keys = ["1", "2"].map(|tag| format!("{prefix}:{{probe.{tag}}}"));
    let mut server = ProbedServer { access, stream: &mut stream, endpoint: &endpoint };
    server.is_fit("standalone").await?;
    server.obeys(&keys).await?;
    Ok(server.warnings().await?.into_iter().collect())
}

/// Asks all masters of a Cluster at once, so that a silent node delays no other.
async fn cluster(
    access: &Arc<Access>,
    seeds: &[Endpoint],
    prefix: &str,
    end: Instant,
) -> Result<Vec<String>, ConnectError> {
    let view = Arc::new(view(access, seeds, end).await?);
    let masters: HashSet<Endpoint> =
        view.ranges.iter().map(|(.., endpoint)| endpoint.clone()).collect();
    // The other half of the time is for the replies of the nodes that answer.
    let limit = left(end) / 2;
    let mut asked = JoinSet::new();
    for endpoint in masters {
        let (access, view, prefix) = (access.clone(), view.clone(), prefix.to_owned());
        asked.spawn(async move {
            let said = timeout(limit, node(&access, &endpoint, &view, &prefix)).await;
            said.unwrap_or_else(|_| {
                Err(ConnectError::Unreachable(format!("{endpoint}: no answer in time")))
            })
        });
    }
    let (mut warnings, mut away, mut is_one_there) = (Vec::new(), Vec::new(), false);
    for said in asked.join_all().await {
        match said {
            Ok(warning) => {
                is_one_there = true;
                warnings.extend(warning);
            }
            Err(error @ ConnectError::Refused(_)) => return Err(error),
            Err(error) => away.push(error),
        }
    }
    if !is_one_there && let Some(error) = away.pop() {
        return Err(error);
    }
    warnings.extend(away.iter().map(|error| format!("one of its servers is away: {error}")));
    Ok(warnings)
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Returns the map of the Cluster from the first seed that answers.
async fn view(access: &Access, seeds: &[Endpoint], end: Instant) -> Result<View, ConnectError> {
    let mut why = ConnectError::Unreachable("it names no server".into());
    for (endpoint, others) in seeds.iter().zip((0..seeds.len()).rev()) {
        let asked = async {
            let mut stream = access.connect(endpoint).await?;
            ProbedServer { access, stream: &mut stream, endpoint }.is_fit("cluster").await?;
            match ask(&mut stream, endpoint, &[b"CLUSTER", b"SLOTS"]).await? {
                Value::ServerError(error) => Err(refusal(endpoint, &access.login, &words(&error))),
                said => {
                    let view = View::read(&said, endpoint).filter(|view| !view.ranges.is_empty());
                    let none = || {
                        ConnectError::Unreachable(format!(
                            "{endpoint}: its Cluster has no slots yet"
                        ))
                    };
                    view.ok_or_else(none)
                }
            }
        };
        // The time that is left is divided among the seeds that are left and the masters.
        let parts = u32::try_from(others).map_or(u32::MAX, |others| others.saturating_add(2));
        match timeout(left(end) / parts, asked).await {
            Err(_) => why = ConnectError::Unreachable(format!("{endpoint}: no answer in time")),
            Ok(Err(error @ ConnectError::Unreachable(_))) => why = error,
            Ok(known) => return known,
        }
    }
    Err(why)
}

/// Asks one master of a Cluster, with keys in one of its slots.
async fn node(
    access: &Access,
    endpoint: &Endpoint,
    view: &View,
    prefix: &str,
) -> Result<Option<String>, ConnectError> {
    let mut stream = access.connect(endpoint).await?;
    let mut server = ProbedServer { access, stream: &mut stream, endpoint };
    server.is_fit("cluster").await?;
    // `ASKING` is sent while slots move.
    if let Value::ServerError(error) = server.ask(&[b"ASKING"]).await? {
        return Err(server.refused(&words(&error)));
    }
    // One in 16,384 names is in a given slot, so 100,000 names have one for each master.
    let is_own = |slot: u16| {
        let mut own = view.ranges.iter().filter(|(.., owner)| owner == endpoint);
        own.any(|(first, last, _)| (*first..=*last).contains(&slot))
    };
    let mut keys =
        (0..100_000).map(|i| format!("{prefix}:{{probe.{i}}}")).filter(|key| is_own(slot(key)));
    if let Some(key) = keys.next() {
        server.obeys(&[format!("{key}:1"), format!("{key}:2")]).await?;
    }
    server.warnings().await
}

/// A connection to a server that is being asked, and its address for errors.
struct ProbedServer<'a> {
    access: &'a Access,
    stream: &'a mut RedisStream,
    endpoint: &'a Endpoint,
}

// === impl ProbedServer ===

impl ProbedServer<'_> {
    async fn ask(&mut self, words: &[&[u8]]) -> Result<Value, ConnectError> {
        ask(self.stream, self.endpoint, words).await
    }

    fn refused(&self, words: &str) -> ConnectError {
        refusal(self.endpoint, &self.access.login, words)
    }

    fn unfit(&self, what: &str) -> ConnectError {
        ConnectError::Refused(format!("{} {what}", self.endpoint))
    }

    /// Checks the server's version and its kind, which `INFO` calls `mode`. A user without the right to `INFO` is let
    /// through.
    async fn is_fit(&mut self, mode: &str) -> Result<(), ConnectError> {
        let said = match self.ask(&[b"INFO", b"server"]).await? {
            Value::BulkString(said) => said,
            Value::ServerError(error) if error.code() == "NOPERM" => return Ok(()),
            Value::ServerError(error) => return Err(self.refused(&words(&error))),
            _ => return Ok(()),
        };
        let info = Info::new(&said);
        if let Some(version) = info.get("redis_version") {
            let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
            if major.is_some_and(|major| major < LEAST) {
                let what = format!("is Redis {version}: Paceway needs Redis {LEAST} or later");
                return Err(self.unfit(&what));
            }
        }
        // Valkey calls it `server_mode`.
        match info.get("redis_mode").or_else(|| info.get("server_mode")) {
            Some("cluster") if mode != "cluster" => Err(self.unfit(
                "is a node of a Cluster: write redis-cluster:// in place of redis://",
            )),
            Some("standalone") if mode == "cluster" => Err(self.unfit(
                "is no node of a Cluster: write redis:// in place of redis-cluster://",
            )),
            Some("sentinel") => Err(self.unfit(
                "is a Sentinel: write redis-sentinel://HOST:PORT/NAME with the name that it has for the master",
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the server runs scripts and allows them every command that limiters need.
    async fn obeys(&mut self, keys: &[String; 2]) -> Result<(), ConnectError> {
        let [first, second] = keys;
        let eval =
            [b"EVAL".as_slice(), SCRIPT.as_bytes(), b"2", first.as_bytes(), second.as_bytes()];
        match self.ask(&eval).await? {
            Value::ServerError(error) => return Err(self.refused(&words(&error))),
            Value::Array(parts) => {
                if let [Value::BulkString(command), Value::BulkString(error)] = &parts[..] {
                    let [command, error] =
                        [command, error].map(|text| String::from_utf8_lossy(text));
                    // The first word is the kind of the error.
                    return Err(self.refused(&format!("{} ({command})", error.trim_end())));
                }
            }
            _ => return Err(self.unfit("does not run scripts as Redis does")),
        }
        // No script has this hash.
        match self.ask(&[b"EVALSHA", &[b'0'; 40], b"0"]).await? {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => Ok(()),
            Value::ServerError(error) => Err(self.refused(&words(&error))),
            _ => Err(self.unfit("does not run scripts as Redis does")),
        }
    }

    async fn warnings(&mut self) -> Result<Option<String>, ConnectError> {
        // A user without the right to `CONFIG GET` gets no warning.
        let Value::Array(parts) = self.ask(&[b"CONFIG", b"GET", b"maxmemory-policy"]).await? else {
            return Ok(None);
        };
        Ok(match parts.get(1) {
            Some(Value::BulkString(policy)) if policy != b"noeviction" => {
                let policy = String::from_utf8_lossy(policy);
                Some(format!(
                    "the maxmemory-policy of {} is `{policy}`: limiters close as after a loss of data when it evicts keys; set `noeviction`",
                    self.endpoint
                ))
            }
            _ => None,
        })
    }
}

/// Finds out whether one side expects TLS and the other does not, and returns the error that says so.
async fn guess(host: &str, port: u16, is_tls: bool) -> Option<ConnectError> {
    let (ours, theirs) = if is_tls { ("rediss", "redis") } else { ("redis", "rediss") };
    let look = async {
        let mut stream = dial(host, port).await.ok()?;
        if is_tls {
            stream.write_all(b"PING\r\n").await.ok()?;
            let mut first = [0];
            stream.read_exact(&mut first).await.ok()?;
            return matches!(first, [b'+' | b'-']).then_some("it does not speak TLS");
        }
        tls::is_spoken(host, stream).await?.then_some("it speaks TLS")
    };
    let what = timeout(GUESS, look).await.ok()??;
    Some(ConnectError::Refused(format!(
        "{}: {what}: write {theirs}:// in place of {ours}://",
        Endpoint::tcp(host, port)
    )))
}
