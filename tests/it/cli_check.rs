//! `paceway check` with several files, with stdin, with JSON and without secrets; completions and the manual page.

use crate::support::{paceway, paceway_fed};
use rstest::rstest;
use serde_json::{Value, json};
use std::{fs, path::Path, process::Output};

const GOOD: &str = "upstream: https://api.vendor.example\nlimiters: { a: 5/s }\n\
                    routes: [{ suffix: '*', limiters: [a], max_wait: 1s }]\n";
const BAD: &str =
    "upstream: https://api.vendor.example\nlimiters: { a: 0/s }\nroutes: [{ sufix: '*' }]\n";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `check` in a directory with `good.yaml` and `bad.yaml`.
fn check(args: &[&str], stdin: &str) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in [("good.yaml", GOOD), ("bad.yaml", BAD)] {
        fs::write(dir.path().join(name), text).expect("a file");
    }
    paceway_fed(dir.path(), &[&["check"], args].concat(), stdin)
}

#[test]
fn check_reads_several_files_and_stdin() {
    let output = check(&["good.yaml", "-"], GOOD);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let out = text(&output.stdout);
    let starts: Vec<_> = out.lines().map(|line| &line[..line.find(" ok").expect("ok")]).collect();
    assert_eq!(starts, ["good.yaml:", "stdin:"]);

    // All mistakes of all files are listed, and the good file is still summed up.
    let output = check(&["bad.yaml", "good.yaml", "-"], BAD);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).starts_with("good.yaml: ok: "));
    let err = text(&output.stderr);
    let starts = ["bad.yaml:2:", "bad.yaml:3:", "stdin:2:", "stdin:3:"];
    assert_eq!(err.lines().count(), starts.len(), "{err}");
    for (line, start) in err.lines().zip(starts) {
        assert!(line.starts_with(start), "{err}");
    }
    let output = check(&["-", "-"], GOOD);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`-` is named twice"));
}

#[test]
fn check_prints_json() {
    let output = check(&["--json", "good.yaml", "bad.yaml", "nothing.yaml"], "");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), String::new()));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["ok"], false);
    let [good, bad, missing] = &said["files"].as_array().expect("a list")[..] else {
        panic!("{said}")
    };
    let summary = good["summary"].as_str().expect("a summary");
    assert!(summary.starts_with("1 route, 1 limiter, 1 upstream"), "{summary}");
    assert_eq!([&good["file"], &good["ok"]], [&json!("good.yaml"), &json!(true)]);
    let mistake = &bad["mistakes"][0];
    assert_eq!(
        [&mistake["line"], &mistake["column"], &mistake["key"]],
        [&json!(2), &json!(16), &json!("limiters.a")]
    );
    assert!(mistake["reason"].as_str().is_some_and(|reason| reason.contains("at least 1")));
    assert_eq!(missing["mistakes"][0]["line"], Value::Null);
    // Every file has the same keys.
    let keys = |file: &Value| file.as_object().expect("a map").keys().cloned().collect::<Vec<_>>();
    assert_eq!([keys(good), keys(bad)], [keys(bad), keys(missing)]);
}

/// Placeholders stand for all that is not there, and mistakes of the file itself are still found.
#[rstest]
#[case::secrets(
    "store: { url: 'redis://:${REDIS_PASSWORD}@redis:6379/0', gateways: 1 }\nadmin: { listen: '127.0.0.1:9090', token: '${file:/none}' }\n",
    Ok("not read: ${REDIS_PASSWORD}, ${file:/none}")
)]
#[case::whole_values(
    "store: '${STORE}'\nlisten: '${LISTEN}'\nadmin: '${ADMIN}'\nworkers: '${WORKERS}'\ndrain_timeout: '${T}'\naccess_log: '${LOG}'\n",
    Ok("not read: ${ADMIN}, ${LISTEN}, ${LOG}, ${STORE}, ${T}, ${WORKERS}")
)]
#[case::tls("tls: { cert: none.pem, key: none.key, client_ca: '${CA}' }\n", Ok("not read: ${CA}"))]
#[case::a_default_is_checked("drain_timeout: '${T:-5}'\n", Err("1:16: drain_timeout: "))]
#[case::a_name_that_is_none("drain_timeout: '${a b}'\n", Err("1:16: drain_timeout: "))]
#[case::another_key("store: '${STORE}'\nworkres: 2\n", Err("2:1: workres: unknown key"))]
fn check_offline_reads_the_file_alone(#[case] more: &str, #[case] expected: Result<&str, &str>) {
    let output = check(&["--offline", "-"], &format!("{more}{GOOD}"));
    match expected {
        Ok(end) => {
            assert_eq!(text(&output.stderr), "");
            assert!(text(&output.stdout).trim_end().ends_with(end), "{output:?}");
        }
        Err(start) => {
            assert_eq!(output.status.code(), Some(2));
            assert!(text(&output.stderr).starts_with(&format!("stdin:{start}")), "{output:?}");
        }
    }
}

#[test]
fn check_offline_finds_no_mistake_in_limits_from_variables() {
    let yaml = "upstream: '${URL}'\nlimiters:\n  a: '${A}'\n  b: { rate: '${N}/min', burst: '${BURST}', mode: '${MODE}' }\n\
                routes:\n- { suffix: '${S1}', limiters: [a, { limiter: b, cost: 5 }], max_wait: '${W}' }\n\
                - { suffix: '${S2}', limiters: ['${NAME}'], max_wait: 0 }\n";
    let output = check(&["--offline", "--json", "-"], yaml);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["files"][0]["not_read"].as_array().map(Vec::len), Some(9), "{said}");
}

/// No check asks the database, so that a limiter that may be a row is a warning.
#[rstest]
#[case::online(&["--json", "-"])]
#[case::offline(&["--offline", "--json", "-"])]
fn check_warns_of_limiters_that_have_to_be_rows(#[case] args: &[&str]) {
    let yaml = "upstream: http://a\nlimits_from: { url: 'postgres://127.0.0.1:1/limits', query: q }\n\
                routes: [{ suffix: '*', limiters: [row], max_wait: 0 }]\n";
    let output = check(args, yaml);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let warning = "routes[0].limiters[0]: the limiter `row` is not in the file: its requests get 503 until `limits_from` \
                   has such a row";
    assert_eq!(said["files"][0]["warnings"], serde_json::json!([warning]));
}

/// The scripts are accepted by the shells that are installed here, and name every command.
#[test]
fn completions_and_the_manual_page_name_every_command() {
    let commands = ["run", "check", "explain", "schema", "demo", "health", "status", "man"];
    for args in [&["completions", "bash"][..], &["completions", "zsh"], &["completions", "fish"]] {
        let output = paceway(args);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
        let script = text(&output.stdout);
        for command in commands {
            assert!(script.contains(command), "no {command} in {args:?}");
        }
        if args[1] == "bash" {
            let shell = std::process::Command::new("bash").args(["-n", "-c", &script]).status();
            assert!(shell.is_ok_and(|status| status.success()), "bash refuses its script");
        }
    }
    let page = text(&paceway(&["man"]).stdout);
    for command in commands {
        assert!(page.contains(&format!(".SH COMMAND {}", command.to_uppercase())), "no {command}");
    }
    assert_eq!(paceway(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn explain_reads_stdin() {
    let args = ["explain", "-", "GET", "/x", "--json"];
    let output = paceway_fed(Path::new("."), &args, GOOD);
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["limiters"][0]["rule"], "token_bucket 5/s, burst 5");
    assert_eq!(said["max_wait_ms"], 1000.0);
}

#[test]
fn check_names_the_place_of_a_byte_that_is_not_utf_8() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("latin.yaml");
    fs::write(&file, b"upstream: http://a\n# f\xfcr\nroutes: [{ suffix: '*' }]\n").expect("a file");
    let output = paceway_fed(dir.path(), &["check", "latin.yaml"], "");
    assert_eq!(output.status.code(), Some(2));
    let said = "latin.yaml:2:4: the byte 0xFC is not UTF-8; save the file as UTF-8\n";
    assert_eq!(text(&output.stderr), said);
}

#[test]
fn check_lists_twenty_mistakes_and_counts_the_rest() {
    let limiters: String = (0..3_000).map(|i| format!("  l{i}: 5/x\n")).collect();
    let yaml = format!("upstream: http://a\nlimiters:\n{limiters}routes: [{{ suffix: '*' }}]\n");
    let err = text(&check(&["-"], &yaml).stderr);
    assert_eq!(err.lines().count(), 21, "{err}");
    assert!(err.ends_with("stdin: and 2980 more\n"), "{err}");
}
