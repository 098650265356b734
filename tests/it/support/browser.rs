//! A real Chromium without a window, driven by chromedriver over WebDriver (W3C): JSON over HTTP, for which the tests have a
//! client already. The crates for it bring 20 others.

use super::{PATIENCE, eventually};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Lines, Read, Write},
    net::TcpStream,
    process::{Child, ChildStdout, Command, Stdio},
};
use tokio::task::block_in_place;

/// A browser with one tab. Its profile is new, and it ends with the test.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    client: reqwest::Client,
    /// Open, so that chromedriver can write to it.
    _output: Lines<BufReader<ChildStdout>>,
    _profile: tempfile::TempDir,
}

const ARGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

impl Browser {
    pub(crate) async fn start() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver, which `make test` installs");
        let mut lines = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let port = block_in_place(|| {
            let said = |line: String| {
                line.split_once("started successfully on port ")?
                    .1
                    .trim_end_matches('.')
                    .parse()
                    .ok()
            };
            lines.by_ref().map_while(Result::ok).find_map(said).expect("a port")
        });
        let profile = tempfile::tempdir().expect("a directory");
        let (client, session) = (reqwest::Client::new(), String::new());
        let mut own = Self { driver, port, session, client, _output: lines, _profile: profile };
        let profile = format!("--user-data-dir={}", own._profile.path().display());
        let args: Vec<_> = ARGS.into_iter().chain([profile.as_str()]).collect();
        let wanted = json!({
            "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let made =
            own.call("POST", "/session", json!({ "capabilities": { "alwaysMatch": wanted } }));
        own.session = made.await["sessionId"].as_str().expect("a session").to_owned();
        own
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Value {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let method = method.parse().expect("a method");
        let answer = self.client.request(method, url).json(&body).send().await.expect("an answer");
        let (status, mut said) = (answer.status(), answer.json::<Value>().await.expect("JSON"));
        assert!(status.is_success(), "{path}: {said}");
        said["value"].take()
    }

    async fn own(&self, path: &str, body: Value) -> Value {
        self.call("POST", &format!("/session/{}{path}", self.session), body).await
    }

    pub(crate) async fn open(&self, url: &str) {
        self.own("/url", json!({ "url": url })).await;
    }

    pub(crate) async fn resize(&self, width: u32, height: u32) {
        self.own("/window/rect", json!({ "width": width, "height": height })).await;
    }

    /// Runs a script in the page; a promise that it returns is awaited.
    pub(crate) async fn run(&self, script: &str, args: Value) -> Value {
        self.own("/execute/sync", json!({ "script": script, "args": args })).await
    }

    /// Waits until a script returns a value that is neither null nor false.
    pub(crate) async fn until(&self, what: &str, script: &str, args: Value) -> Value {
        eventually(what, async || {
            let value = self.run(script, args.clone()).await;
            (!value.is_null() && value != false).then_some(value)
        })
        .await
    }

    /// The errors that the console has, violations of the page's policy among them.
    pub(crate) async fn errors(&self) -> Vec<Value> {
        let mut all = self.own("/se/log", json!({ "type": "browser" })).await;
        let mut all = all.as_array_mut().map(std::mem::take).unwrap_or_default();
        all.retain(|entry| entry["level"] == "SEVERE");
        all
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // chromedriver ends the browser with the session.
        if let Ok(mut conn) = TcpStream::connect(("127.0.0.1", self.port)) {
            let head = format!(
                "DELETE /session/{} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
                self.session
            );
            drop(conn.write_all(head.as_bytes()));
            // It keeps the connection open, so that its first bytes are the answer.
            drop(conn.set_read_timeout(Some(PATIENCE)));
            drop(conn.read(&mut [0; 512]));
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}
