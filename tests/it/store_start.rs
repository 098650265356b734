//! Messages of a start with a store that it cannot use: what is wrong, where, and what to do; never a password.

use crate::support::{
    Authority, Cluster, Gateway, Redis, Said, Sentinels, Upstream, eventually, get, paceway_in,
};
use rstest::rstest;
use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    thread,
};

/// A configuration in which `store` is the value of that key.
fn config(store: &str, upstream: &str) -> String {
    format!(
        "store: {store}
upstream: {upstream}
limiters: {{ a: 5/day }}
routes: [{{ suffix: \"*\", limiters: [a] }}]
"
    )
}

/// Fails at the start, with the words that `says` holds in what it writes last.
fn assert_refused(store: &str, says: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let yaml = config(store, "http://127.0.0.1:1");
    let yaml = format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{yaml}");
    fs::write(dir.path().join("paceway.yaml"), yaml).expect("a file");
    let output = paceway_in(dir.path(), &["run"], &[]);
    let [out, err] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(output.status.code(), Some(1), "{err}");
    let last = err.lines().last().expect("a message");
    assert!(last.starts_with("error: the store"), "{last}");
    for words in says {
        assert!(last.contains(words), "`{words}` is not in: {last}");
    }
    assert!(!err.contains("open-sesame") && !out.contains("open-sesame"), "{err}{out}");
}

#[rstest]
#[case::wrong_password("redis://:open-sesame@HOST", &["WRONGPASS", "are wrong"])]
#[case::wrong_user("redis://ali:open-sesame@HOST", &["WRONGPASS", "are wrong"])]
#[case::no_password("redis://HOST", &["NOAUTH", "write it into the URL"])]
#[case::no_such_database("redis://:right@HOST/99", &["DB index", "no such database"])]
fn reports_wrong_credentials(#[case] url: &str, #[case] says: &[&str]) {
    let redis = Redis::with(&["--requirepass", "right"]);
    assert_refused(&url.replace("HOST", &format!("127.0.0.1:{}", redis.port())), says);
}

#[test]
fn reports_a_superfluous_password() {
    let redis = Redis::start();
    let url = format!("redis://:open-sesame@127.0.0.1:{}", redis.port());
    assert_refused(&url, &["take that out of the URL"]);
}

#[test]
fn reports_a_mismatch_of_tls_and_clear_text() {
    let (redis, port) = Authority::new().redis("no");
    assert_refused(
        &format!("redis://localhost:{port}"),
        &["it speaks TLS: write rediss:// in place of redis://"],
    );
    assert_refused(
        &format!("rediss://localhost:{}", redis.port()),
        &["it does not speak TLS: write redis:// in place of rediss://"],
    );
}

#[test]
fn reports_untrusted_certificates() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (_redis, port) = authority.redis("yes");
    let (ca, wrong) = (authority.file(), other.file());
    let store = |host: &str, more: &str| {
        format!("{{ url: \"rediss://{host}:{port}\", timeout: 2s, tls: {{ {more} }} }}")
    };
    assert_refused(
        &store("localhost", &format!("ca: {wrong}")),
        &["UnknownIssuer", "store.tls.ca"],
    );
    assert_refused(&store("127.0.0.1", &format!("ca: {ca}")), &["store.tls.server_name"]);
    assert_refused(
        &store("localhost", &format!("ca: {ca}")),
        &["CertificateRequired", "store.tls.cert"],
    );
    let (cert, key) = other.files("paceway");
    assert_refused(
        &store("localhost", &format!("ca: {ca}, cert: {cert}, key: {key}")),
        &["store.tls.cert"],
    );
}

/// Plays a server that answers each command with the next of `says`.
fn actor(says: Vec<String>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut command = vec![0; 65_536];
            for words in &says {
                // A client waits for the answer, so no second command comes along.
                if !matches!(stream.read(&mut command), Ok(1..)) {
                    break;
                }
                // The gateway may have closed the connection already.
                let _ = stream.write_all(words.as_bytes());
            }
        }
    });
    port
}

fn bytes(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

#[test]
fn reports_a_server_that_is_too_old() {
    let info = bytes("# Server\r\nredis_version:4.0.14\r\nredis_mode:standalone\r\n");
    let url = format!("redis://127.0.0.1:{}", actor(vec![info]));
    assert_refused(&url, &["is Redis 4.0.14", "Redis 5 or later"]);
    // One that does not say how old it is.
    let error = bytes("ERR Write commands not allowed after non deterministic commands");
    let says = ["-NOPERM no INFO\r\n".to_owned(), format!("*2\r\n{}{error}", bytes("SET"))];
    let url = format!("redis://127.0.0.1:{}", actor(says.into()));
    assert_refused(&url, &["Write commands not allowed", "Redis 5 or later"]);
}

/// Valkey 8.1 calls the mode `server_mode`, where Redis says `redis_mode`.
#[test]
fn accepts_a_sentinel_with_another_name_of_its_mode() {
    let info = bytes("redis_version:7.2.4\r\nserver_name:valkey\r\nserver_mode:sentinel\r\n");
    let url = format!("redis://127.0.0.1:{}", actor(vec![info]));
    assert_refused(&url, &["is a Sentinel: write redis-sentinel://"]);
}

#[rstest]
#[case("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "an HTTP server")]
#[case("<!DOCTYPE HTML>\r\n<html>", "an HTTP server")]
#[case("SSH-2.0-OpenSSH_9.2\r\n", "an SSH server")]
#[case("220 mail.example ESMTP\r\n", "a mail or FTP server")]
#[case("ERROR\r\nERROR\r\n", "a memcached server")]
#[case("J\0\0\0\n8.0.36\0", "does not speak as a Redis server does")]
#[case("500 unknown command: AUTH open-sesame\r\n", "does not speak as a Redis server does")]
fn reports_a_server_that_is_no_redis(#[case] words: &str, #[case] says: &str) {
    let url = format!("redis://:open-sesame@127.0.0.1:{}", actor(vec![words.to_owned()]));
    assert_refused(&url, &[says, "correct the host or the port in the URL"]);
}

#[test]
fn reports_a_server_without_scripting() {
    let redis = Redis::with(&["--rename-command", "EVAL", ""]);
    assert_refused(&redis.url(), &["unknown command 'EVAL'", "do not rename it"]);
    let redis = Redis::with(&["--rename-command", "EVALSHA", "HIDDEN"]);
    assert_refused(&redis.url(), &["unknown command 'EVALSHA'", "do not rename it"]);
}

#[rstest]
#[case("~* &* +@all -eval", "eval")]
#[case("~* &* +@all -evalsha", "evalsha")]
#[case("~* &* +@all -setrange", "SETRANGE")]
#[case("~* &* +@all -zadd", "ZADD")]
#[case("~other:* &* +@all", "key")]
fn reports_a_user_without_the_rights(#[case] rights: &str, #[case] says: &str) {
    let redis = Redis::start();
    let words = ["ACL", "SETUSER", "ann", "on", ">open-sesame"];
    let words: Vec<_> = words.into_iter().chain(rights.split_whitespace()).collect();
    assert_eq!(redis.command(&words), Said::Line("OK".into()));
    let url = format!("redis://ann:open-sesame@127.0.0.1:{}", redis.port());
    assert_refused(&url, &[says, "docs/operation.md"]);
}

#[tokio::test]
async fn reports_a_replica_in_place_of_its_master() {
    let master = Redis::start();
    let replica = Redis::with(&["--replicaof", &format!("127.0.0.1 {}", master.port())]);
    eventually("the replica follows", async || {
        let Said::Bytes(Some(info)) = replica.command(&["INFO", "replication"]) else {
            return None;
        };
        String::from_utf8_lossy(&info).contains("master_link_status:up").then_some(())
    })
    .await;
    assert_refused(&replica.url(), &["READONLY", "it is a replica: name the master"]);
}

#[tokio::test]
async fn reports_servers_of_another_kind() {
    let redis = Redis::start();
    let at = |scheme: &str, port: u16, rest: &str| format!("{scheme}://127.0.0.1:{port}{rest}");
    assert_refused(
        &at("redis-cluster", redis.port(), ""),
        &["no node of a Cluster: write redis://"],
    );
    assert_refused(&at("redis-sentinel", redis.port(), "/main"), &["is no Sentinel"]);
    let cluster = Cluster::start(3, 0).await;
    for node in &cluster.nodes {
        assert_refused(
            &at("redis", node.port(), ""),
            &["node of a Cluster: write redis-cluster://"],
        );
    }
    let sentinels = Sentinels::start().await;
    assert_refused(&at("redis", sentinels.port(), ""), &["is a Sentinel: write redis-sentinel://"]);
    assert_refused(
        &at(
            "redis-sentinel",
            sentinels.port(),
            "/main?sentinel_user=ann&sentinel_password=open-sesame",
        ),
        &["WRONGPASS", "are wrong"],
    );
    assert_refused(
        &at("redis-sentinel", sentinels.port(), "/main"),
        &["knows no master `main`", "`sentinel monitor`"],
    );
}

#[test]
fn reports_a_socket_without_a_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    fs::write(&file, "").expect("a file");
    // Like a closed port: a server may still appear there.
    let dir = tempfile::tempdir().expect("a directory");
    let yaml = config(&format!("unix:{}", file.display()), "http://127.0.0.1:1");
    fs::write(dir.path().join("paceway.yaml"), yaml).expect("a file");
    let output = paceway_in(dir.path(), &["check", "paceway.yaml"], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_a_busy_server() {
    let (redis, upstream) = (Redis::with(&["--maxmemory", "1"]), Upstream::ok().await);
    let gateway = Gateway::start(&config(&redis.url(), &upstream.url())).await;
    let warnings = gateway.events().into_iter().filter(|event| event["level"] == "WARN");
    assert!(warnings.into_iter().any(|event| event.to_string().contains("OOM")));
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    gateway.until_answered("/", 200).await;
}

/// A URL that leads nowhere is said again and again, because the gateway serves requests meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_never_reached_is_logged_again() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config("redis://127.0.0.1:1", &upstream.url())).await;
    assert_eq!(gateway.get("/").await.status, 200);
    let ready = get(gateway.admin, "/readyz").await.json();
    assert_eq!((&ready["ready"], &ready["store"]["never_reached"]), (&true.into(), &true.into()));
    assert!(
        ready["store"]["why"].as_str().is_some_and(|why| why.contains("127.0.0.1:1")),
        "{ready}"
    );
    let repeated = eventually("it is said again", async || {
        let events = gateway.events();
        let said = "the store was never reached: limiters decide by their `on_failure`";
        events.iter().find(|event| event["message"] == said).cloned()
    })
    .await;
    assert_eq!(repeated["level"], "WARN");
    assert!(repeated["error"].as_str().is_some_and(|why| why.contains("127.0.0.1:1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_reached_once_counts_as_away() {
    let (upstream, redis) = (Upstream::ok().await, Redis::start());
    let gateway = Gateway::start(&config(&redis.url(), &upstream.url())).await;
    assert_eq!(gateway.get("/").await.status, 200);
    drop(redis);
    let store = eventually("it is away", async || {
        let ready = get(gateway.admin, "/readyz").await.json();
        ready["store"]["away_s"].is_number().then(|| ready["store"].clone())
    })
    .await;
    assert!(store["never_reached"].is_null(), "{store}");
}
