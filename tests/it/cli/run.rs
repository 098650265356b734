//! `paceway run` without a file: the flags, and the file that they stand for.

use super::said;
use crate::support::{Gateway, Redis, Upstream, paceway, paceway_fed, paceway_in};
use rstest::rstest;
use std::{fs, path::Path};

const HERE: [&str; 4] = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

fn print_file(args: &[&str]) -> (Option<i32>, String, String) {
    said(&paceway(&[&["run", "--print"], args].concat()))
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_pace_calls_without_a_file() {
    let upstream = Upstream::ok().await;
    let url = upstream.url();
    let flags = ["--upstream", &url, "--limit", "2/s", "--limit", "500/min", "--max-wait", "30s"];
    let gateway = Gateway::start_without_file("run", &[&flags[..], &HERE].concat()).await;
    for _ in 0..5 {
        assert_eq!(gateway.get("/a").await.status, 200);
    }
    let calls = upstream.arrivals();
    assert!(calls[4] - calls[0] >= std::time::Duration::from_secs(2), "{calls:?}");
    let name = url.trim_start_matches("http://").replace(':', "-");
    assert_eq!(gateway.limiter(&name).await["name"], name.as_str());
    // The gateway runs on the text that `--print` prints.
    let args = [&flags[..], &HERE].concat();
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&file, print_file(&args).1).expect("a text");
    let path = file.path().to_str().expect("a readable path");
    let again = Gateway::start_without_file("run", &["--config", path]).await;
    let hash =
        async |gateway: &Gateway| gateway.page("/readyz").await.json()["config"]["hash"].clone();
    assert_eq!(hash(&gateway).await, hash(&again).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_of_flags_share_one_quota() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let (url, store) = (upstream.url(), redis.url());
    let flags = ["--upstream", &url, "--limit", "3/min", "--max-wait", "0", "--store", &store];
    let args = [&flags[..], &HERE].concat();
    let first = Gateway::start_without_file("run", &args).await;
    let second = Gateway::start_without_file("run", &args).await;
    let mut statuses = Vec::new();
    for gateway in [&first, &second, &first, &second] {
        statuses.push(gateway.get("/").await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[rstest]
#[case::one_rate(&["--limit", "5/s"], "api.vendor.example: { algorithm: sliding_window, rate: 5/s, margin: 100ms }")]
#[case::several(&["--limit", "5/s,100/min"], "rate: [5/s, 100/min], margin: 100ms }")]
#[case::a_longer_period(&["--limit", "1200/5min"], "rate: 1200/5min, margin: 100ms }")]
#[case::a_short_period(&["--limit", "10/250ms"], "rate: 10/250ms, margin: 25ms }")]
#[case::more_than_a_window_counts(&["--limit", "50000/day"], "{ rate: 49499/d, burst: 500 }")]
#[case::a_great_count_in_a_short_period(&["--limit", "20000/s"], "{ rate: 18000/s, burst: 200 }   # for 20000/s")]
#[case::learned(&["--limit", "auto"], "{ rate: auto, start: 5/s }")]
#[case::learned_below_a_rate(&["--limit", "auto", "--limit", "100/s"], "limiters: [api.vendor.example, api.vendor.example-2]")]
#[case::a_shared_store(&["--limit", "5/s", "--store", "redis://127.0.0.1"], "store: { url: redis://127.0.0.1, gateways: 2 }")]
#[case::a_long_wait(&["--limit", "5/s", "--max-wait", "2min"], "drain_timeout: 2min")]
#[case::quotes(&["--limit", "5/s", "--store", "redis://:\"b#c}@d"], "store: { url: \"redis://:\\\"b#c}@d\", gateways")]
fn print_shows_a_file_that_check_accepts(#[case] flags: &[&str], #[case] part: &str) {
    let (code, out, err) =
        print_file(&[&["--upstream", "https://api.vendor.example"], flags].concat());
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains(part), "{out}");
    let checked = said(&paceway_fed(Path::new("."), &["check", "-"], &out));
    assert_eq!((checked.0, checked.2.as_str()), (Some(0), ""), "{out}");
}

const URL: &[&str] = &["--upstream", "http://a"];

#[rstest]
#[case::no_upstream(&[], &["--limit", "5/s"], "error: `--limit` needs `--upstream URL`")]
#[case::print_alone(&[], &["--print"], "error: `--print` needs `--upstream URL`")]
#[case::no_limit(URL, &[], "error: --limit is missing: a rate that the upstream allows, as in `--limit 5/s`")]
#[case::a_rate(URL, &["--limit", "5/sek"], "error: --limit: `5/sek` has the unknown unit `sek`; use ms, s, min")]
#[case::a_list_in_quotes(URL, &["--limit", "[5/s, 100/min/s]"], "error: --limit: `100/min/s` has more than one `/`")]
#[case::an_empty_rate(URL, &["--limit", ""], "error: --limit: `` is not a rate; write COUNT/PERIOD")]
#[case::one_period_twice(URL, &["--limit", "5/s,20/1s"], "error: --limit: has the same period as 5/s; keep the stricter")]
#[case::a_wait(URL, &["--limit", "5/s", "--max-wait", "30"], "error: --max-wait: `30` needs a unit: 500ms, 10s")]
#[case::an_address(URL, &["--limit", "5/s", "--listen", "8080"], "error: --listen: `8080`")]
#[case::one_address_twice(URL, &["--limit", "5/s", "--admin", "127.0.0.1:8080"], "error: --admin: the same address as `listen`")]
#[case::a_store(URL, &["--limit", "5/s", "--store", "http://a"], "error: --store: is not a store URL: ")]
#[case::no_scheme(&["--upstream", "api.vendor.example"], &["--limit", "5/s"], "error: --upstream: `api.vendor.example`")]
#[case::a_word_of_yaml(&["--upstream", "null"], &["--limit", "5/s"], "error: --upstream: `null`")]
#[case::nothing(&["--upstream", ""], &["--limit", "5/s"], "error: --upstream: ``")]
#[case::a_line_of_yaml(&["--upstream", "http://a\nlimiting: off"], &["--limit", "5/s"], "error: --upstream: ")]
#[case::a_comment(&["--upstream", "http://a #b"], &["--limit", "5/s"], "error: --upstream: ")]
#[case::a_map(&["--upstream", "{ a: b }"], &["--limit", "5/s"], "error: --upstream: `{ a: b }`")]
#[case::a_file(&["--upstream", "${file:/etc/passwd}"], &["--limit", "5/s"], "error: --upstream: `${` names a variable in a file")]
#[case::a_route(URL, &["--limit", "5/s", "--max-wait", "1s } ]"], "error: --max-wait: `1s } ]`")]
fn a_wrong_flag_is_named_with_its_cure(
    #[case] upstream: &[&str],
    #[case] flags: &[&str],
    #[case] start: &str,
) {
    let (code, out, err) = said(&paceway(&[&["run"], upstream, flags].concat()));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.starts_with(start), "{err}");
}

#[test]
fn all_wrong_flags_are_named_at_once() {
    let args = ["--upstream", "a", "--max-wait", "x", "--listen", "y", "--limit", "5"];
    let (_, _, err) = print_file(&args);
    let flags: Vec<_> = err.lines().filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(flags, ["--limit", "--listen", "--upstream", "--max-wait"], "{err}");
}

#[test]
fn a_file_and_flags_do_not_mix() {
    let args = ["run", "--config", "a.yaml", "--upstream", "http://a", "--limit", "5/s"];
    let (code, out, err) = said(&paceway(&args));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("`--upstream`") && err.contains("leave out `--config`"), "{err}");
}

/// Flags read no file, also where the default one is.
#[test]
fn flags_ignore_the_default_file() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("paceway.yaml"), "nonsense").expect("a file");
    let args = ["run", "--print", "--upstream", "http://a", "--limit", "5/s"];
    let (code, out, err) = said(&paceway_in(dir.path(), &args, &[]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
}
