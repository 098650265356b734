//! The ways in which a server executes the decision script: by a function that it keeps, or by `EVALSHA`.

use crate::support::{Gateway, Redis, Said, Upstream, eventually, get};
use rstest::rstest;
use serde_json::Value;

const MESSAGE: &str = "the store keeps no functions";

/// Two a day on `/two`, without bound on `/many`. Where the store decides nothing, every request is refused.
fn config(store: &str, upstream: &Upstream) -> String {
    format!(
        "store: {{ {store}, on_failure: reject }}
workers: 2
upstream: {}
limiters: {{ two: 2/day, many: 900/s }}
routes: [{{ suffix: /two, limiters: [two] }}, {{ suffix: /many, limiters: [many], max_wait: 10s }}]
",
        upstream.url()
    )
}

async fn assert_two_pass(gateway: &Gateway) {
    for status in [200, 200, 429] {
        assert_eq!(gateway.get("/two").await.status, status);
    }
}

/// The way that `/readyz` shows.
async fn way(gateway: &Gateway) -> Value {
    get(gateway.admin, "/readyz").await.json()["store"]["functions"].clone()
}

/// The events that say that a server keeps no functions.
fn warnings(gateway: &Gateway) -> Vec<Value> {
    let is_it = |event: &Value| event["message"].as_str().is_some_and(|it| it.starts_with(MESSAGE));
    gateway.events().into_iter().filter(is_it).collect()
}

/// The names of the libraries of a server.
fn libraries(redis: &Redis) -> Vec<String> {
    let Said::List(all) = redis.command(&["FUNCTION", "LIST"]) else { panic!("no list") };
    let name = |library| match library {
        Said::List(fields) => match &fields[1] {
            Said::Bytes(Some(name)) => String::from_utf8(name.clone()).expect("text"),
            said => panic!("{said:?}"),
        },
        said => panic!("{said:?}"),
    };
    all.into_iter().map(name).collect()
}

/// Loads a library as another version has one.
fn load_version(redis: &Redis, version: usize) {
    load_library(redis, &version_name(version), &version_name(version), version);
}

fn version_name(version: usize) -> String {
    format!("paceway_{version:040}")
}

fn load_library(redis: &Redis, library: &str, function: &str, returned: usize) {
    let text = format!(
        "#!lua name={library}\nredis.register_function('{function}', function() return {returned} end)"
    );
    let said = redis.command(&["FUNCTION", "LOAD", &text]);
    assert!(matches!(said, Said::Bytes(Some(_))), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_functions_decides_by_a_function() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&config(&format!("url: \"{}\"", redis.url()), &upstream)).await;
    let before = redis.calls_of("fcall");
    assert_two_pass(&gateway).await;
    assert!(redis.calls_of("fcall") >= before + 3);
    assert_eq!(redis.calls_of("evalsha"), 1, "of the start");
    assert_eq!((way(&gateway).await, warnings(&gateway).len()), ("library".into(), 0));
}

#[rstest]
#[case::forbidden_to_call("-fcall", "'fcall'")]
#[case::forbidden_to_load("-function|load", "'function|load'")]
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_the_right_to_functions_is_served_by_the_script_with_one_warning(
    #[case] right: &str,
    #[case] says: &str,
) {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    redis.command(&["ACL", "SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all", right]);
    let url = redis.url().replace("redis://", "redis://ann:secret@");
    let gateway = Gateway::start(&config(&format!("url: \"{url}\""), &upstream)).await;
    assert_two_pass(&gateway).await;
    assert_eq!(way(&gateway).await, "script");
    let warnings = warnings(&gateway);
    let said = warnings[0].to_string();
    assert!(warnings.len() == 1 && warnings[0]["level"] == "WARN", "{warnings:?}");
    assert!(said.contains(says) && said.contains("+fcall +function|load"), "{said}");
    assert_eq!(libraries(&redis), [""; 0]);
}

#[rstest]
#[case::of_an_older_server("FCALL")]
#[case::that_hides_how_to_load("FUNCTION")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_know_a_command_is_sent_the_script(#[case] command: &str) {
    let (redis, upstream) = (Redis::with(&["--rename-command", command, ""]), Upstream::ok().await);
    let gateway = Gateway::start(&config(&format!("url: \"{}\"", redis.url()), &upstream)).await;
    assert_two_pass(&gateway).await;
    assert_eq!(way(&gateway).await, "script");
    let warnings = warnings(&gateway);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let why = warnings[0]["why"].as_str().expect("a reason");
    assert!(why.contains(&format!("'{command}'")) && !why.contains("args"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_can_be_switched_off() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let store = format!("url: \"{}\", functions: off", redis.url());
    let gateway = Gateway::start(&config(&store, &upstream)).await;
    assert_two_pass(&gateway).await;
    assert_eq!((redis.calls_of("fcall"), libraries(&redis).len()), (0, 0));
    assert_eq!((way(&gateway).await, warnings(&gateway).len()), ("script".into(), 0));
}

/// A user who loses the right during a connection is served by the script on it; the next connection asks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_comes_back_is_used_by_the_next_connection() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    redis.command(&["ACL", "SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all"]);
    let url = redis.url().replace("redis://", "redis://ann:secret@");
    let gateway = Gateway::start(&config(&format!("url: \"{url}\""), &upstream)).await;
    assert_eq!((gateway.get("/two").await.status, way(&gateway).await), (200, "library".into()));
    redis.command(&["ACL", "SETUSER", "ann", "-fcall"]);
    assert_eq!((gateway.get("/two").await.status, way(&gateway).await), (200, "script".into()));
    redis.command(&["ACL", "SETUSER", "ann", "+fcall"]);
    assert_eq!((gateway.get("/two").await.status, way(&gateway).await), (429, "script".into()));
    redis.command(&["CLIENT", "KILL", "USER", "ann"]);
    eventually("the library is used again", async || {
        let is_decided = gateway.get("/many").await.status == 200;
        (is_decided && way(&gateway).await == "library").then_some(())
    })
    .await;
    assert_eq!(gateway.get("/two").await.status, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_that_are_removed_in_traffic_cost_no_request() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&config(&format!("url: \"{}\"", redis.url()), &upstream)).await;
    let loads = redis.calls_of("function|load");
    for _ in 0..20 {
        redis.command(&["FUNCTION", "FLUSH"]);
        assert_eq!(gateway.get("/many").await.status, 200);
    }
    // The connection that looks at the levels may meet the same moment.
    assert!(redis.calls_of("function|load") >= loads + 20);
    assert_eq!(redis.calls_of("evalsha"), 1, "of the start");
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_live_side_by_side_until_there_are_many() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    load_version(&redis, 0);
    let store = format!("url: \"{}\"", redis.url());
    let gateway = Gateway::start(&config(&store, &upstream)).await;
    assert_two_pass(&gateway).await;
    let (both, first) = (libraries(&redis), version_name(0));
    assert!(both.len() == 2 && both.contains(&first), "{both:?}");
    assert_eq!(redis.command(&["FCALL", &first, "0"]), Said::Number(0));
    // A start that loads its own library removes the others, and one that finds it removes none.
    (1..9).for_each(|version| load_version(&redis, version));
    load_library(&redis, "paceway_reports", "reports", 1);
    let other = Gateway::start(&config(&store, &upstream)).await;
    other.until_answered("/two", 429).await;
    assert_eq!(libraries(&redis).len(), 11);
    // One that runs would load it again at once.
    drop((gateway, other));
    let own = both.into_iter().find(|name| *name != first).expect("a library");
    redis.command(&["FUNCTION", "DELETE", &own]);
    let another = Gateway::start(&config(&store, &upstream)).await;
    another.until_answered("/two", 429).await;
    let mut left = libraries(&redis);
    left.sort();
    assert_eq!(left, [own, "paceway_reports".to_owned()], "a library of another program stays");
}

/// Another program has made it, or a restore of a broken copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_library_of_the_same_name_without_the_function_is_given_up_with_one_warning() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let store = format!("url: \"{}\"", redis.url());
    let gateway = Gateway::start(&config(&store, &upstream)).await;
    let name = libraries(&redis).remove(0);
    redis.command(&["FUNCTION", "FLUSH"]);
    load_library(&redis, &name, "other", 7);
    eventually("the script is sent for good", async || {
        assert_eq!(gateway.get("/many").await.status, 200);
        let is_sent = way(&gateway).await == "script";
        (is_sent && !warnings(&gateway).is_empty()).then_some(())
    })
    .await;
    let warnings = warnings(&gateway);
    let why = warnings[0]["why"].as_str().expect("a reason");
    assert!(warnings.len() == 1 && why.contains("same name"), "{warnings:?}");
    assert_eq!(libraries(&redis), [name]);
}

/// Such a server refuses a function before it runs. The script runs until it writes, and a refusal writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_decides_refusals() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&config(&format!("url: \"{}\"", redis.url()), &upstream)).await;
    assert_two_pass(&gateway).await;
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(gateway.get("/two").await.status, 429);
    assert_eq!(gateway.get("/many").await.status, 503);
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    gateway.until_answered("/many", 200).await;
    assert_eq!(way(&gateway).await, "library");
}

/// The load is a part of a call: while the server executes neither, `on_failure` decides after the time-out.
#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_a_load_no_longer_than_their_time_out() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let store = format!("url: \"{}\", timeout: 100ms", redis.url());
    let gateway = Gateway::start(&config(&store, &upstream)).await;
    gateway.until_answered("/many", 200).await;
    redis.command(&["FUNCTION", "FLUSH"]);
    redis.command(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    assert_eq!(gateway.get("/many").await.status, 503);
    redis.command(&["CLIENT", "UNPAUSE"]);
    gateway.until_answered("/many", 200).await;
    assert_eq!(libraries(&redis).len(), 1);
}
