//! The gateway's own binary: started, asked through its admin side, signalled, and ended with the test.

use super::{
    PATIENCE, eventually,
    redis::signal,
    wire::{Answer, Conn, get, request},
};
use parking_lot::Mutex;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::Arc,
    thread,
};
use tokio::time::{Instant, sleep};

const BINARY: &str = env!("CARGO_BIN_EXE_paceway");

/// A gateway that runs as a process of its own, and ends with the test.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    stdout: Lines,
    stderr: Lines,
    dir: tempfile::TempDir,
}

/// The lines that a process has written so far; read all the time, so that it never stops for a full pipe.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

/// Runs a command of the binary to its end.
pub(crate) fn paceway(args: &[&str]) -> Output {
    paceway_in(Path::new("."), args, &[])
}

/// The same in a directory and with an environment.
pub(crate) fn paceway_in(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(args).current_dir(dir).envs(env.iter().copied()).stdin(Stdio::null());
    ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start"))
}

/// The same in a directory, with this text on stdin.
pub(crate) fn paceway_fed(dir: &Path, args: &[&str], stdin: &str) -> Output {
    let mut command = Command::new(BINARY);
    command.args(args).current_dir(dir).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let (mut pipe, text) = (child.stdin.take().expect("a pipe"), stdin.to_owned());
    // A command that reads less than all closes the pipe.
    thread::spawn(move || drop(pipe.write_all(text.as_bytes())));
    ended(child)
}

/// Waits for the end of a command.
fn ended(mut child: Child) -> Output {
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.expect("a pipe").read_to_end(&mut bytes).expect("its output");
            bytes
        })
    };
    let stdout = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("its state") {
            break status;
        }
        if started.elapsed() > PATIENCE {
            child.kill().expect("its end");
            panic!("a command does not end");
        }
        thread::sleep(std::time::Duration::from_millis(5));
    };
    let text = |reader: thread::JoinHandle<_>| reader.join().expect("its output");
    Output { status, stdout: text(stdout), stderr: text(stderr) }
}

/// The environment of a process whose wall clock is shifted, as in `-2s`.
pub(crate) fn faketime(shift: &str) -> Vec<(String, String)> {
    let libraries = fs::read_dir("/usr/lib").expect("/usr/lib").flatten();
    let candidates = libraries.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    let found = candidates.chain([PathBuf::from("/usr/lib/faketime/libfaketime.so.1")]);
    let library = found.into_iter().find(|path| path.exists());
    let library = library.expect("libfaketime.so.1, which `make test` installs");
    [
        ("LD_PRELOAD", library.to_str().expect("a readable path")),
        ("FAKETIME", shift),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        // Shared memory of a fixed name would tie processes of different shifts together.
        ("FAKETIME_DISABLE_SHM", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

// === impl Lines ===

impl Lines {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let written = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                written.0.lock().push(line);
            }
        });
        lines
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    fn json(&self) -> Vec<Value> {
        self.all().iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

// === impl Gateway ===

impl Gateway {
    /// With this configuration; it listens where the system likes, unless `yaml` says where.
    pub(crate) async fn start(yaml: &str) -> Self {
        Self::start_with(yaml, &[]).await
    }

    /// The same in a directory that `prepare` fills before the start.
    pub(crate) async fn start_in(
        dir: tempfile::TempDir,
        yaml: &str,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        prepare(dir.path());
        Self::start_at(dir, yaml, &[]).await
    }

    pub(crate) async fn start_with(yaml: &str, env: &[(String, String)]) -> Self {
        Self::start_at(tempfile::tempdir().expect("a directory"), yaml, env).await
    }

    async fn start_at(dir: tempfile::TempDir, yaml: &str, env: &[(String, String)]) -> Self {
        let file = dir.path().join("paceway.yaml");
        fs::write(&file, with_defaults(yaml)).expect("the configuration");
        let args = ["run".as_ref(), "--config".as_ref(), file.as_os_str()];
        Self::launch(dir, &args, env).await
    }

    /// Starts `paceway demo`; [`Self::stdout`] has the lines that it prints.
    pub(crate) async fn demo(args: &[&str]) -> Self {
        Self::start_without_file("demo", args).await
    }

    /// Starts a command of the binary that needs no file, with these arguments.
    pub(crate) async fn start_without_file(command: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let args: Vec<_> = [command].iter().chain(args).map(|arg| (*arg).as_ref()).collect();
        Self::launch(dir, &args, &[]).await
    }

    /// As a supervisor starts it that has opened `socket` for it (`LISTEN_FDS`).
    pub(crate) async fn start_on(socket: &TcpListener, yaml: &str) -> Self {
        const PASS: &str = "exec 3<&0 0</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$@\"";
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("paceway.yaml");
        fs::write(&file, with_defaults(yaml)).expect("the configuration");
        let mut command = Command::new("sh");
        command.args(["-c", PASS, "sh", BINARY, "run", "--config"]).arg(&file);
        let socket = socket.try_clone().expect("a socket");
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(socket)));
        Self::begin(dir, command).await
    }

    async fn launch(
        dir: tempfile::TempDir,
        args: &[&std::ffi::OsStr],
        env: &[(String, String)],
    ) -> Self {
        let mut command = Command::new(BINARY);
        command.args(args).current_dir(dir.path()).envs(env.iter().cloned()).stdin(Stdio::null());
        Self::begin(dir, command).await
    }

    async fn begin(dir: tempfile::TempDir, mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
        let stdout = Lines::of(child.stdout.take().expect("a pipe"));
        let stderr = Lines::of(child.stderr.take().expect("a pipe"));
        let heard = stderr.clone();
        let (listen, admin) = eventually("the gateway listens", async || {
            if let Some(status) = child.try_wait().expect("its state") {
                panic!("the gateway ended ({status}): {}", heard.all().join("\n"));
            }
            let lines = heard.json();
            let line = lines.iter().find(|line| line["message"] == "listening")?;
            let address = |key: &str| line[key].as_str()?.parse().ok();
            Some((address("listen")?, address("admin")?))
        })
        .await;
        Self { child, listen, admin, stdout, stderr, dir }
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        get(self.listen, target).await
    }

    /// Fetches a page of the admin side, such as `/metrics`.
    pub(crate) async fn page(&self, path: &str) -> Answer {
        get(self.admin, path).await
    }

    /// Its configuration file.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("paceway.yaml")
    }

    /// Replaces its configuration file at once, as a deployment does.
    pub(crate) fn rewrite(&self, yaml: &str) {
        let new = self.dir.path().join("new.yaml");
        fs::write(&new, if yaml.is_empty() { String::new() } else { with_defaults(yaml) })
            .expect("the configuration");
        fs::rename(new, self.file()).expect("a swap");
    }

    /// Makes it read its configuration again, by `POST /reload`.
    pub(crate) async fn reload(&self) -> Answer {
        self.admin_request(request("POST", "/reload", &[("Content-Length", "0")])).await
    }

    /// Sends these bytes to the admin side.
    pub(crate) async fn admin_request(&self, bytes: impl AsRef<[u8]>) -> Answer {
        let mut conn = Conn::to(self.admin).await.expect("connect");
        conn.send(bytes).await.expect("send");
        conn.answer().await.expect("an answer")
    }

    /// Sends a request for `target` on a connection of its own and leaves the answer to the caller.
    pub(crate) async fn ask(&self, target: &str, fields: &[(&str, &str)]) -> Conn {
        let mut conn = Conn::to(self.listen).await.expect("connect");
        conn.send(request("GET", target, fields)).await.expect("send");
        conn
    }

    /// The sum of a metric's series that carry all of `labels`; fails when there is none.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = self.page("/metrics").await.text();
        let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        let values: Vec<f64> = text
            .lines()
            .filter_map(|line| line.strip_prefix(name))
            .filter(|line| line.starts_with(['{', ' ']))
            .filter(|line| labels.iter().all(|label| line.contains(label.as_str())))
            .map(|line| line.rsplit(' ').next().expect("a value").parse().expect("a number"))
            .collect();
        assert!(!values.is_empty(), "no series {name} {labels:?} in\n{text}");
        values.iter().sum()
    }

    /// Reads from the metrics how many requests of a route had an outcome.
    pub(crate) async fn count(&self, route: &str, outcome: &str) -> f64 {
        self.metric("paceway_requests_total", &[("route", route), ("outcome", outcome)]).await
    }

    /// Waits until so many requests of the route have ended so. A request that leaves is counted a moment after it waits.
    pub(crate) async fn until_counted(&self, route: &str, outcome: &str, count: usize) {
        let labels = [("route", route), ("outcome", outcome)];
        self.until_metric("paceway_requests_total", &labels, count).await;
    }

    pub(crate) async fn until_metric(&self, name: &str, labels: &[(&str, &str)], count: usize) {
        eventually(&format!("{name} of {labels:?} is {count}"), async || {
            (self.metric(name, labels).await as usize == count).then_some(())
        })
        .await;
    }

    /// Waits until the metrics say that the route holds that many requests.
    pub(crate) async fn until_waiting(&self, route: &str, count: usize) {
        self.until_metric("paceway_waiting", &[("route", route)], count).await;
    }

    /// Fetches the state of a limiter from `/limiters/NAME`, as JSON.
    pub(crate) async fn limiter(&self, name: &str) -> Value {
        let all = self.page("/limiters").await.json();
        let found = all["limiters"].as_array().expect("a list").iter().find(|l| l["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {all}")).clone()
    }

    /// The lines of the access log so far, as JSON.
    pub(crate) fn access(&self) -> Vec<Value> {
        self.stdout.json()
    }

    /// The access line of the only request for `path`, when it has ended.
    pub(crate) async fn line(&self, path: &str) -> Value {
        eventually("the access line", async || {
            self.access().into_iter().find(|line| line["path"] == path)
        })
        .await
    }

    /// Events so far.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.stderr.json()
    }

    /// Lines on stdout and on stderr so far.
    pub(crate) fn output(&self) -> (Vec<String>, Vec<String>) {
        (self.stdout.all(), self.stderr.all())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The resident memory of the process, KiB.
    pub(crate) fn memory(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// How it ended.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("the gateway ends", async || child.try_wait().expect("its state")).await
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_none()
    }

    /// Asks until a request is answered with `status`.
    pub(crate) async fn until_answered(&self, target: &str, status: u16) -> Answer {
        eventually(&format!("{target} is answered with {status}"), async || {
            let answer = self.get(target).await;
            if answer.status != status {
                sleep(std::time::Duration::from_millis(50)).await;
            }
            (answer.status == status).then_some(answer)
        })
        .await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the gateway on {} said:\n{}", self.listen, self.stderr.all().join("\n"));
        }
    }
}

/// `yaml`, listening on any port unless it says where.
fn with_defaults(yaml: &str) -> String {
    let missing = |key: &str| !yaml.lines().any(|line| line.starts_with(&format!("{key}:")));
    let addresses = ["listen", "admin"].into_iter().filter(|key| missing(key));
    let addresses: String = addresses.map(|key| format!("{key}: 127.0.0.1:0\n")).collect();
    addresses + &yaml.split_inclusive('\n').map(with_patience).collect::<String>()
}

/// A busy machine lets a store answer after more than the 50 ms of the default. Then another rule decides than the one that
/// the test is about.
fn with_patience(line: &str) -> String {
    let store = line.strip_prefix("store: ").filter(|store| !store.contains("timeout: "));
    match store.map(str::trim) {
        Some(store) if store.starts_with('{') => line.replacen('{', "{ timeout: 5s, ", 1),
        Some(url) if url.contains("://") => {
            format!("store: {{ url: \"{}\", timeout: 5s }}\n", url.trim_matches('"'))
        }
        _ => line.to_owned(),
    }
}
