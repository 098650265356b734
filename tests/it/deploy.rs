//! The files in `deploy/`: alerts that fire, and panels that show existing metrics.

use crate::{
    lifecycle::{METRICS, OPTIONAL_METRICS},
    support::paceway_in,
};
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
};

const ALERTS: &str = "deploy/alerts.yaml";
const DASHBOARD: &str = "deploy/grafana/dashboards/paceway.json";

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn promtool(words: &[&str], file: &Path) -> Output {
    let said = Command::new("promtool").args(words).arg(file).output();
    said.expect("promtool, which `make test` installs")
}

fn assert_success(said: &Output) {
    let text = [&said.stdout, &said.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(said.status.success(), "{}", text.concat());
}

#[test]
fn alerts_are_rules_and_fire_for_faults_of_the_store() {
    assert_success(&promtool(&["check", "rules"], Path::new(ALERTS)));
    let dir = tempfile::tempdir().expect("a folder");
    let [alerts, tests] = ["alerts.yaml", "tests.yaml"].map(|name| dir.path().join(name));
    // Their words may change.
    let text = read(ALERTS);
    let is_free = |line: &&str| {
        ["description:", "runbook_url:"].iter().any(|key| line.trim_start().starts_with(key))
    };
    let rules = text.lines().filter(|line| !is_free(line));
    let rules: Vec<_> = rules.collect();
    fs::write(&alerts, rules.join("\n")).expect("a file");
    let asked = read("tests/it/alerts.yaml").replace("ALERTS", &alerts.display().to_string());
    fs::write(&tests, asked).expect("a file");
    assert_success(&promtool(&["test", "rules"], &tests));
}

#[test]
fn each_alert_links_to_its_section() {
    let (text, page) = (read(ALERTS), read("docs/alerts.md"));
    let sections: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_lowercase).collect();
    let after = |key: &'static str| {
        let values = text.lines().filter_map(move |line| line.trim_start().strip_prefix(key));
        values.map(str::trim).collect::<Vec<_>>()
    };
    let (names, links) = (after("- alert:"), after("runbook_url:"));
    assert_eq!(names.len(), links.len(), "each alert has a runbook");
    // A block of several lines begins with `|`, and each of its lines is on the page.
    let expressions = after("expr:").into_iter().filter(|expression| *expression != "|");
    let blocks = page.split("```promql\n").skip(1).map(|rest| rest.lines().next());
    assert_eq!(names.len(), blocks.clone().count(), "each alert has its expression");
    let shown: BTreeSet<_> = blocks.flatten().collect();
    for expression in expressions {
        assert!(shown.contains(expression), "docs/alerts.md has no {expression}");
    }
    let is_rest = |line: &&str| line.starts_with("          ") && !line.contains(": ");
    for line in text.lines().filter(is_rest) {
        assert!(page.contains(line.trim()), "docs/alerts.md has no {line}");
    }
    assert!(!page.contains("{{") && !shown.contains("|"), "a template was copied");
    for (name, link) in names.iter().zip(links) {
        let (page, section) = link.rsplit_once('#').expect("a section");
        assert!(page.ends_with("/docs/alerts.md"), "{page}");
        assert_eq!(section, name.to_lowercase());
        assert!(sections.contains(section), "docs/alerts.md has no section {name}");
    }
}

fn named(text: &str) -> BTreeSet<&str> {
    let starts = text.match_indices("paceway_").map(|(start, _)| &text[start..]);
    let end = |rest: &str| {
        rest.find(|c: char| !c.is_ascii_lowercase() && c != '_' && !c.is_ascii_digit())
    };
    starts.map(|rest| &rest[..end(rest).unwrap_or(rest.len())]).collect()
}

/// The names of all metrics.
fn all() -> impl Iterator<Item = &'static str> {
    METRICS.into_iter().map(|(name, ..)| name).chain(OPTIONAL_METRICS)
}

#[test]
fn alerts_and_panels_use_existing_metrics() {
    for file in [ALERTS, DASHBOARD] {
        let text = read(file);
        let names = named(&text);
        assert!(names.len() > 10, "{file}: {names:?}");
        for name in names {
            let series = ["_bucket", "_sum", "_count"];
            let name = series.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(all().any(|known| known == name), "{file} has {name}");
        }
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let text = read(DASHBOARD);
    for name in all() {
        assert!(text.contains(name), "no panel has {name}");
    }
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    assert!(text.contains("sum by (source) (rate(paceway_decisions_total"), "who decides");
    // `paceway_store_up` is 1 there.
    assert!(!text.contains("Empty with the memory store"));
    let panels = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    for target in panels {
        let expression = target["expr"].as_str().expect("an expression");
        // Each selector is of the jobs that are chosen, whatever they are called.
        assert_eq!(
            expression.matches("{job=~\"$job\"").count(),
            // `up` is Prometheus's own.
            expression.matches("paceway_").count().max(1),
            "{expression}"
        );
    }
}

/// The seconds of a line such as `drain_timeout: 30s`.
fn seconds(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(key)).expect(key);
    line.trim_end_matches('s').parse().expect("seconds")
}

/// Reads a configuration as `paceway check` does: no mistake, no warning.
fn assert_right(config: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("paceway.yaml"), config).expect("a file");
    let said = paceway_in(dir.path(), &["check", "--offline", "paceway.yaml"], &[]);
    assert_success(&said);
    assert!(said.stderr.is_empty(), "no warning: {}", String::from_utf8_lossy(&said.stderr));
}

/// The text of a YAML block after `start`, without its indentation, up to the first line that is not of it.
fn block(text: &str, start: &str, indent: &str) -> String {
    let (_, rest) = text.split_once(start).expect(start);
    let lines = rest.lines().map_while(|line| line.strip_prefix(indent));
    lines.collect::<Vec<_>>().join("\n")
}

const UNIT: &str = "deploy/systemd/paceway.service";

#[test]
fn the_manifests_hold_a_valid_configuration_and_wait_for_the_drain() {
    let text = read("deploy/kubernetes/paceway.yaml");
    let config = block(&text, "paceway.yaml: |\n", "    ");
    assert_right(&config);
    let stop = seconds(&config, "shutdown_delay: ") + seconds(&config, "drain_timeout: ");
    let waits = [
        seconds(&text, "terminationGracePeriodSeconds: "),
        seconds(&read(UNIT), "TimeoutStopSec="),
    ];
    assert!(waits.iter().all(|wait| *wait > stop), "{waits:?} above {stop}");
}

/// `deploy/package/chart.sh` renders the chart with Helm itself; this is the part of it that needs no Helm.
#[test]
fn the_chart_and_the_package_start_with_a_valid_configuration() {
    let values = read("deploy/helm/paceway/values.yaml");
    let config = block(&values, "config: |\n", "  ");
    // The keys that templates/_helpers.tpl sets.
    let delay = seconds(&values, "shutdownDelaySeconds: ");
    let drain = seconds(&values, "drainTimeoutSeconds: ");
    assert_right(&format!(
        "listen: 0.0.0.0:8080\nadmin: {{ listen: 0.0.0.0:9090, read: open }}\nshutdown_delay: {delay}s\n\
         drain_timeout: {drain}s\nstore: {{ url: \"redis://redis:6379\", gateways: 2 }}\n{config}"
    ));
    assert_right(&read("deploy/package/deb/paceway.yaml"));
}

/// The page explains options of the unit by their names, with `=`.
#[test]
fn the_systemd_unit_has_the_documented_options() {
    let units = read(UNIT) + &read("deploy/systemd/paceway.socket");
    let page = read("docs/deployment.md");
    let (_, section) = page.split_once("\n## systemd\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("its end");
    let options: BTreeSet<_> = section
        .split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|code| code.split_once('=').map(|(name, _)| name))
        .filter(|name| name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase))
        .collect();
    assert!(options.len() > 7, "{options:?}");
    // An option that is commented out, or that the page tells to leave out, is named in the unit as well. `Sockets` is of
    // units that two gateways at one socket would have.
    for name in options.into_iter().filter(|name| *name != "Sockets") {
        assert!(units.contains(&format!("{name}=")), "{UNIT} has no {name}");
    }
    // It begins with the program by its name alone, so that it is found in /usr/bin and in /usr/local/bin.
    for start in ["ExecStartPre=paceway check ", "ExecStart=paceway run "] {
        assert!(units.contains(start), "{UNIT} has no {start}");
    }
}
