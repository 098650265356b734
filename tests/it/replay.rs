//! `paceway replay` on logs as a user has them.

use crate::support::{Gateway, Upstream, eventually, paceway_fed, paceway_in};
use rstest::rstest;
use serde_json::Value;
use std::{fs, path::Path};

const CONFIG: &str = "upstream: http://a\nlimiters:\n  search: 5/s\n  shop: { rate: 2/day, key: '{client_ip}' }\n  \
                      places: { algorithm: concurrency, max: 2 }\n  seen: { rate: 1/day, mode: observe }\n\
                      routes:\n- { suffix: /search, limiters: [search], max_wait: 2s }\n\
                      - { suffix: /shop, limiters: [shop, seen], max_wait: 0 }\n\
                      - { suffix: /slow, limiters: [places], max_wait: 1500ms }\n\
                      - { suffix: /all, limiters: [search, places], max_wait: 2s, max_waiting: 3 }\n";

/// A line of the gateway's log about a request for `path` that arrived `at` ms after ten o'clock, and took a second.
fn line(at: u64, path: &str, client: &str) -> String {
    let end = at + 1000;
    format!(
        "{{\"timestamp\":\"2026-11-23T10:00:{:02}.{:03}000Z\",\"client\":\"{client}\",\"method\":\"GET\",\"host\":\"a\",\
         \"path\":\"{path}\",\"route\":\"-\",\"limiter\":\"-\",\"outcome\":\"passed\",\"wait_ms\":0.0,\
         \"upstream_ms\":1000.0,\"status\":200}}\n",
        end / 1000,
        end % 1000
    )
}

fn replay(log: &str) -> (Value, String) {
    replay_under(CONFIG, log)
}

fn replay_under(config: &str, log: &str) -> (Value, String) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("gateway.yaml"), config).expect("a file");
    let args = ["replay", "gateway.yaml", "--log", "-", "--json"];
    let output = paceway_fed(dir.path(), &args, log);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{err}");
    (serde_json::from_slice(&output.stdout).expect("JSON"), err)
}

/// The passed, waited, refused and other requests of a route or limiter.
fn counts(said: &Value, kind: &str, name: &str, side: &str) -> [i64; 4] {
    let all = said[format!("{kind}s")].as_array().expect("a list");
    let found = all.iter().find(|one| one[kind] == name).unwrap_or_else(|| panic!("no {name}"));
    ["passed", "waited", "refused", "other"].map(|key| found[side][key].as_i64().expect("a count"))
}

/// Requests that came at one instant: exactly the burst passes, and those that the rate allows in the budget wait.
#[test]
fn a_replay_decides_by_the_rules_of_the_gateway() {
    let mut log = String::new();
    (0..100).for_each(|_| log += &line(0, "/search", "10.0.0.1"));
    (0..3).for_each(|_| log += &line(20_000, "/shop", "10.0.0.1"));
    (0..3).for_each(|_| log += &line(20_000, "/shop", "10.0.0.2"));
    (0..6).for_each(|_| log += &line(30_000, "/slow", "10.0.0.1"));
    (0..20).for_each(|_| log += &line(40_000, "/all", "10.0.0.1"));
    log += &line(50_000, "/nothing", "10.0.0.1");
    let (said, err) = replay(&log);
    assert_eq!(err, "");
    let route = |name| counts(&said, "route", name, "replay");
    assert_eq!(route("/search"), [5, 10, 85, 0]);
    let waits = &said["routes"][0]["replay"]["wait_ms"];
    let [p50, p99] = ["p50", "p99"].map(|key| waits[key].as_f64().expect("a wait"));
    assert!((980.0..1020.0).contains(&p50) && (1960.0..2040.0).contains(&p99), "{waits}");
    assert_eq!(route("/shop"), [4, 0, 2, 0]);
    // Two calls run for a second; two follow; the time of the others ends after a second and a half.
    assert_eq!(route("/slow"), [2, 2, 2, 0]);
    // Two calls run at once, and three requests may wait: for a permit, as the burst of `search` is not used up.
    assert_eq!(route("/all"), [2, 2, 16, 0]);
    assert_eq!(route("-"), [0, 0, 0, 1]);
    assert_eq!(counts(&said, "route", "/search", "recorded"), [100, 0, 0, 0]);
    let limiter = |name| counts(&said, "limiter", name, "replay");
    assert_eq!(limiter("seen"), [1, 0, 3, 0], "{said}");
    assert_eq!(limiter("shop"), [4, 0, 2, 0]);
    assert_eq!(said["lines"]["decided"], 133);
}

/// Months have 28 to 31 days, also those long after the first line of the log.
#[test]
fn a_replay_follows_the_months_of_its_log() {
    let config = "upstream: http://a\nlimiters:\n  few: { algorithm: fixed_window, rate: 2/month, resets: \"00:00 UTC\" }\n\
                  routes: [{ suffix: /shop, limiters: [few], max_wait: 0 }]\n";
    let at = |instant: &str| {
        line(0, "/shop", "10.0.0.1").replace("2026-11-23T10:00:01.000000Z", instant)
    };
    let months =
        [("2026-12", 31), ("2027-01", 31), ("2027-02", 28), ("2027-03", 31), ("2027-04", 30)];
    let log: String = months.iter().fold(String::new(), |log, (month, last)| {
        let first = at(&format!("{month}-01T00:30:00Z"));
        log + &first + &first + &at(&format!("{month}-{last}T23:45:00Z"))
    });
    let (said, _) = replay_under(config, &log);
    assert_eq!(counts(&said, "route", "/shop", "replay"), [10, 0, 5, 0], "{said}");
}

#[test]
fn a_replay_names_bad_lines_and_missing_fields() {
    let good = line(0, "/search", "10.0.0.1");
    let combined = "10.0.0.1 - - [23/Nov/2026:11:00:02 +0100] \"GET /search HTTP/1.1\" 429 1 \"-\" \"curl/8\"\n";
    let log = format!("{good}oops\n\n{}\n{combined}{combined}", &good[..40]);
    let (said, _) = replay(&log);
    assert_eq!(said["lines"]["bad"], 2);
    let bad: Vec<_> = said["bad_lines"].as_array().expect("a list").iter().collect();
    assert_eq!([&bad[0]["line"], &bad[1]["line"]], [2, 4]);
    assert_eq!(counts(&said, "route", "/search", "recorded"), [1, 0, 2, 0]);
    let notes = said["notes"].to_string();
    assert!(notes.contains("whole seconds"), "{notes}");

    // As text, the reasons are on stderr.
    let dir = tempfile::tempdir().expect("a directory");
    let config = CONFIG.replace("{client_ip}", "{header.x-shop}");
    fs::write(dir.path().join("gateway.yaml"), config).expect("a file");
    fs::write(dir.path().join("access.jsonl"), log).expect("a file");
    let args = ["replay", "gateway.yaml", "--log", "access.jsonl"];
    let output = paceway_in(dir.path(), &args, &[]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("access.jsonl:2: neither JSON nor nginx's combined format"), "{err}");
    assert!(err.contains("note: the log does not have all of the key `{header.x-shop}`"), "{err}");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.starts_with("3 requests from 2026-11-23T10:00:00"), "{out}");
}

#[rstest]
#[case::no_log(&["--log", "none.jsonl"], 2, "error: --log: cannot read none.jsonl")]
#[case::nothing(&["--log", "-"], 1, "has no line that can be decided")]
#[case::no_option(&[], 2, "--log <FILE>")]
fn a_replay_without_requests_is_an_error(
    #[case] args: &[&str],
    #[case] code: i32,
    #[case] reason: &str,
) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("gateway.yaml"), CONFIG).expect("a file");
    let output = paceway_fed(dir.path(), &[&["replay", "gateway.yaml"], args].concat(), "oops\n");
    assert_eq!(output.status.code(), Some(code));
    assert!(String::from_utf8_lossy(&output.stderr).contains(reason), "{output:?}");
    assert!(output.stdout.is_empty(), "a table without requests: {output:?}");
}

/// The log of a gateway, replayed under the same configuration.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_gateway_is_replayed() {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "upstream: {}\nlimiters: {{ slow: 3/day }}\nroutes: [{{ name: all, suffix: '*', limiters: [slow], max_wait: 0 }}]\n",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    let mut statuses = Vec::new();
    for i in 0..8 {
        statuses.push(gateway.get(&format!("/{i}?q=a%20b")).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429, 429, 429]);
    let log = eventually("eight lines", async || {
        let lines = gateway.output().0;
        (lines.len() == 8).then(|| lines.join("\n"))
    })
    .await;
    let dir = tempfile::tempdir().expect("a directory");
    let run = |rate: &str| {
        fs::write(dir.path().join("gateway.yaml"), yaml.replace("3/day", rate)).expect("a file");
        let args = ["replay", "gateway.yaml", "--log", "-", "--json"];
        let output = paceway_fed(Path::new(dir.path()), &args, &log);
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(counts(&said, "route", "all", "recorded"), [3, 0, 5, 0]);
        assert_eq!(counts(&said, "limiter", "slow", "recorded"), [3, 0, 5, 0]);
        counts(&said, "route", "all", "replay")
    };
    assert_eq!(run("3/day"), [3, 0, 5, 0]);
    assert_eq!(run("5/day"), [5, 0, 3, 0]);
}

/// A batch of 80 takes the slots of the next four seconds; ten users come within them, and wait for half a second at most.
fn batch_and_users(tenant: impl Fn(&str) -> String) -> String {
    let named = |line: String, name| line.replacen('{', &format!("{{{}", tenant(name)), 1);
    let mut log = String::new();
    (0..80).for_each(|_| log += &named(line(0, "/batch", "10.0.0.1"), "batch"));
    (0..10).for_each(|i| log += &named(line(500 + 300 * i, "/x", "10.0.0.2"), "users"));
    log
}

const SHARED: &str = "upstream: http://a
limiters: { vendor: { rate: 20/s, burst: 1, FAIR } }
routes:
- { suffix: /batch, limiters: [vendor], max_wait: 60s, PRIORITY }
- { suffix: /x, limiters: [vendor], max_wait: 500ms }
";

/// Tenants and priorities decide which requests get slots in time, in a replay as in a gateway: 80 slots and ten more, each
/// used once.
#[rstest]
#[case::first_come("", "", [0, 0, 10, 0])]
#[case::by_address("fair: { by: '{client_ip}' }", "", [0, 10, 0, 0])]
#[case::by_a_header_that_the_log_names_as_tenant("fair: { by: '{header.x-team}' }", "", [0, 10, 0, 0])]
#[case::by_priority("", "priority: low", [0, 10, 0, 0])]
fn a_replay_shares_slots_fairly(
    #[case] fair: &str,
    #[case] priority: &str,
    #[case] users: [i64; 4],
) {
    let config = SHARED.replace("FAIR", fair).replace("PRIORITY", priority);
    let log = batch_and_users(|name| format!("\"tenant\":\"{name}\","));
    let (said, _) = replay_under(&config, &log);
    let routes = ["/batch", "/x"].map(|route| counts(&said, "route", route, "replay"));
    assert_eq!(routes, [[1, 79, 0, 0], users], "{said}");
    let served = 79 + users[1];
    assert_eq!(counts(&said, "limiter", "vendor", "replay"), [1, served, users[2], 0]);
    let p99 = said["routes"][0]["replay"]["wait_ms"]["p99"].as_f64().expect("a wait");
    let end = 50.0 * served as f64;
    assert!((end - 100.0..end + 50.0).contains(&p99), "{p99} ms, and the slots end at {end} ms");
}

/// A priority that a request says is in its line of the log.
#[test]
fn a_replay_takes_the_priority_from_the_log() {
    let config = SHARED.replace("FAIR", "").replace("PRIORITY", "priority: '{header.x-p}'");
    let config = format!("trusted_proxies: [127.0.0.1]\n{config}");
    let priority = |name: &str| match name {
        "batch" => "\"priority\":\"low\",".to_owned(),
        _ => String::new(),
    };
    let (said, _) = replay_under(&config, &batch_and_users(priority));
    let routes = ["/batch", "/x"].map(|route| counts(&said, "route", route, "replay"));
    assert_eq!(routes, [[1, 79, 0, 0], [0, 10, 0, 0]], "{said}");
}

/// One call at a time, each for a second. A batch waits for eight seconds; the user gets a permit within 1.7 s by turns, and
/// each permit is handed over once.
#[rstest]
#[case::first_come("", "", [0, 0, 1, 0])]
#[case::by_address("fair: { by: '{client_ip}' }", "", [0, 1, 0, 0])]
#[case::by_priority("", "priority: low", [0, 1, 0, 0])]
fn a_replay_hands_permits_over_in_turns(
    #[case] fair: &str,
    #[case] priority: &str,
    #[case] user: [i64; 4],
) {
    let limiter = "algorithm: concurrency, max: 1, FAIR";
    let config = SHARED.replace("rate: 20/s, burst: 1, FAIR", limiter).replace("500ms", "1700ms");
    let config = config.replace("FAIR", fair).replace("PRIORITY", priority);
    let mut log = String::new();
    (0..8).for_each(|_| log += &line(0, "/batch", "10.0.0.1"));
    log += &line(500, "/x", "10.0.0.2");
    let (said, _) = replay_under(&config, &log);
    let routes = ["/batch", "/x"].map(|route| counts(&said, "route", route, "replay"));
    assert_eq!(routes, [[1, 7, 0, 0], user], "{said}");
    let last = 1000.0 * (7 + user[1]) as f64;
    let p99 = said["routes"][0]["replay"]["wait_ms"]["p99"].as_f64().expect("a wait");
    assert!((p99 - last).abs() <= 100.0, "{p99} ms, and the last permit is free at {last} ms");
}
