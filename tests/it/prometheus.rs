//! Every expression of the dashboard and of the alerts, on a real Prometheus that scrapes a gateway under load.

use crate::{
    lifecycle::OPTIONAL_METRICS,
    support::{Gateway, Redis, Upstream, free_port},
};
use serde_json::Value;
use std::{
    fmt::Write,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// A Prometheus that scrapes one gateway each second, under a job with a name of its own.
struct Prometheus {
    process: Child,
    port: u16,
    _dir: TempDir,
}

// === impl Prometheus ===

impl Prometheus {
    fn scraping(gateway: &Gateway) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let rules = Path::new("deploy/alerts.yaml").canonicalize().expect("the alerts");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [\"{}\"]
scrape_configs: [{{ job_name: edge, static_configs: [{{ targets: [\"{}\"] }}] }}]
",
            rules.display(),
            gateway.admin
        );
        let file = dir.path().join("prometheus.yaml");
        fs::write(&file, config).expect("a file");
        let port = free_port();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus, which `make test` installs");
        Self { process, port, _dir: dir }
    }

    /// The data of an answer of its API; `None` while it does not answer.
    async fn api(&self, path: &str) -> Option<Value> {
        let url = format!("http://127.0.0.1:{}/api/v1/{path}", self.port);
        let said: Value = reqwest::get(url).await.ok()?.json().await.ok()?;
        assert_eq!(said["status"], "success", "{path}: {said}");
        Some(said["data"].clone())
    }

    /// The number of series that an expression has now.
    async fn series(&self, expression: &str) -> usize {
        let mut query = String::new();
        for byte in expression.bytes() {
            write!(query, "%{byte:02x}").expect("a string");
        }
        let said = self.api(&format!("query?query={query}")).await;
        said.and_then(|said| said["result"].as_array().map(Vec::len)).unwrap_or(0)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The expressions of the panels, with the variables filled in.
fn panels() -> Vec<(String, String)> {
    let text = fs::read_to_string("deploy/grafana/dashboards/paceway.json").expect("a dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").clone();
    let targets = panels.into_iter().flat_map(|panel| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| {
            let expression = target["expr"].as_str().expect("an expression");
            let expression = expression.replace("$__rate_interval", "30s");
            (title.clone(), expression.replace("$job", ".+").replace("$route", ".+"))
        })
    });
    targets.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_expression_has_series_under_load() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&format!(
        "store: {}
upstream: {}
limiters: {{ account: {{ rate: 50/s, burst: 5 }} }}
routes:
- {{ name: paced, suffix: /paced, limiters: [account], max_wait: 2s }}
- {{ name: strict, suffix: \"*\", limiters: [account] }}
",
        redis.url(),
        upstream.url()
    ))
    .await;
    let prometheus = Prometheus::scraping(&gateway);
    let optional = |expression: &str| OPTIONAL_METRICS.iter().any(|name| expression.contains(name));
    let all = panels();
    assert!(all.len() > 50, "{}", all.len());
    let mut missing: Vec<_> = all.iter().filter(|(_, expression)| !optional(expression)).collect();
    let until = Instant::now() + Duration::from_secs(90);
    while !missing.is_empty() {
        assert!(Instant::now() < until, "no series: {missing:#?}");
        for path in ["/paced", "/paced", "/strict"].iter().cycle().take(60) {
            gateway.get(path).await;
        }
        let mut still = Vec::new();
        for panel in missing {
            if prometheus.series(&panel.1).await == 0 {
                still.push(panel);
            }
        }
        missing = still;
        sleep(Duration::from_millis(200)).await;
    }
    // Those of metrics that this gateway does not have are valid, too.
    for (_, expression) in all.iter().filter(|(_, expression)| optional(expression)) {
        prometheus.series(expression).await;
    }
    let rules = prometheus.api("rules").await.expect("the rules");
    let rules = rules["groups"][0]["rules"].as_array().expect("rules").clone();
    assert!(rules.len() > 25, "{}", rules.len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}
