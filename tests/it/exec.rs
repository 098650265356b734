//! `paceway exec`: a command whose calls are paced, and which is otherwise as if it ran alone.

mod programs;

use crate::support::{Authority, Redis, Reply, Upstream, eventually, paceway_fed, paceway_in};
use rstest::rstest;
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};
use tokio_rustls::rustls::DEFAULT_VERSIONS;

/// A vendor over TLS on `localhost`, and its authority.
pub(super) struct Vendor {
    upstream: Upstream,
    authority: Authority,
}

impl Vendor {
    async fn start() -> Self {
        let authority = Authority::new();
        let config = authority.server("localhost", DEFAULT_VERSIONS, None);
        Self { upstream: Upstream::tls_with(config, |_| Reply::ok()).await, authority }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.upstream.address().port())
    }

    /// Fails unless the calls kept a limit of five in each second, and were `count`.
    fn assert_paced(&self, count: usize) {
        let mut arrivals = self.upstream.arrivals();
        arrivals.sort();
        assert_eq!(arrivals.len(), count, "calls");
        for window in arrivals.windows(6) {
            let span = window[5].duration_since(window[0]);
            assert!(span > Duration::from_millis(950), "six calls within {span:?}");
        }
    }
}

/// Runs a command under limits, in a directory.
async fn exec(vendor: &Vendor, options: &[&str], command: &[&str]) -> Output {
    let ca = vendor.authority.file();
    let args = [&["exec", "--upstream-ca", &ca], options, &["--"], command].concat();
    let args: Vec<_> = args.into_iter().map(str::to_owned).collect();
    let ended = tokio::task::spawn_blocking(move || {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        // A process of the tests may have proxies of its own.
        paceway_in(Path::new("."), &args, &[("NO_PROXY", "localhost"), ("no_proxy", "localhost")])
    });
    ended.await.expect("no panic")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[rstest]
#[case::good("exit 0", 0)]
#[case::its_own("exit 42", 42)]
#[case::killed("kill -KILL $$", 137)]
#[case::terminated("kill -TERM $$", 143)]
#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_is_that_of_the_command(#[case] script: &str, #[case] code: i32) {
    let ended =
        paceway_in(Path::new("."), &["exec", "--limit", "5/s", "--", "sh", "-c", script], &[]);
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    assert_eq!(text(&ended.stdout), "");
    assert_is_the_hint(&text(&ended.stderr));
}

/// The one line about a command whose calls did not come through the proxy, or that made none.
fn assert_is_the_hint(stderr: &str) {
    let hints = stderr.lines().filter(|line| line.contains("no call was paced"));
    let [hint] = &hints.collect::<Vec<_>>()[..] else { panic!("{stderr}") };
    assert!(
        hint.contains(" WARN no call was paced: the command made none, none through"),
        "{hint}"
    );
}

/// A refusal and a paced call came through the proxy. A bare connection did not, and a call to another host than `--host` names is
/// not paced.
#[rstest]
#[case::paced("curl -s $0", false)]
#[case::refused("curl -s -o /dev/null http://169.254.169.254/ --noproxy ''", false)]
#[case::tunnelled("curl -s --max-time 5 https://127.0.0.2:${0##*:}", true)]
#[case::around_it("curl -s --noproxy '*' $0", true)]
#[case::bare("bash -c 'exec 3<>/dev/tcp/127.0.0.1/${HTTPS_PROXY##*:}'", true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_hint_says_that_no_call_was_paced(#[case] script: &str, #[case] is_hinted: bool) {
    let upstream = Upstream::ok().await;
    let options = ["exec", "--limit", "5/s", "--host", "127.0.0.1", "--"];
    let command = ["sh", "-c", &format!("{script} || true"), &upstream.url()];
    let args = [&options[..], &command].concat();
    let ended = paceway_in(Path::new("."), &args, &[]);
    let stderr = text(&ended.stderr);
    assert_eq!(stderr.contains("no call was paced"), is_hinted, "{ended:?}");
    if is_hinted {
        assert_is_the_hint(&stderr);
    }
    let ended = paceway_in(Path::new("."), &args, &[("PACEWAY_LOG", "error")]);
    assert!(!text(&ended.stderr).contains("no call was paced"), "{ended:?}");
}

#[rstest]
#[case::no_program(&["--limit", "5/s", "no-such-program"], 127, "error: cannot run `no-such-program`: ")]
#[case::no_file_that_runs(&["--limit", "5/s", "/"], 126, "error: cannot run `/`: ")]
#[case::rate(&["--limit", "5/sek", "true"], 2, "error: --limit: `5/sek` has the unknown unit `sek`")]
#[case::wait(&["--limit", "5/s", "--max-wait", "long", "true"], 2, "error: --max-wait: `long` is no duration")]
#[case::no_rate(&["true"], 2, "error: --limit is missing: a rate that the upstream allows, as in `--limit 5/s`")]
#[case::one_of_several(&["--limit", "5/s, 5/sek", "true"], 2, "error: --limit: `5/sek` has the unknown unit `sek`")]
#[case::learned(&["--limit", "5/s", "--limit", "auto", "true"], 2, "error: --limit: a command is too short to learn a rate; write one")]
#[case::a_name(&["--limit", "5/s", "--name", "it's: \"a\\\n", "true"], 2, "error: --name: `it's: \"a\\\n`: a name holds letters, digits")]
#[case::an_empty_name(&["--limit", "5/s", "--name", "", "true"], 2, "error: --name: ``: a name holds letters, digits")]
#[case::a_variable(&["--limit", "5/s", "--store", "${HOME}", "true"], 2, "error: --store: `${` names a variable in a file, not here: let the shell")]
#[case::a_variable_as_name(&["--limit", "5/s", "--name", "${HOME}", "true"], 2, "error: --name: `${` names a variable")]
#[case::store(&["--limit", "5/s", "--store", "ftp://x", "true"], 2, "error: --store: is not a store URL: ")]
#[case::host(&["--limit", "5/s", "--host", "https://a", "true"], 2, "error: --host: `https://a` is no host; write its name alone")]
#[case::one_of_two_hosts(&["--limit", "5/s", "--host", "a,b;c", "true"], 2, "error: --host: `b;c` is no host; write its name alone")]
#[case::hosts_that_are_found(&["--limit", "5/s", "--host", "a.,B_1,::1,[::2],10.0.0.1", "no-such"], 127, "error: cannot run `no-such`: ")]
#[case::authority(&["--limit", "5/s", "--upstream-ca", "no-such-file", "true"], 2, "error: --upstream-ca: no-such-file: cannot be read")]
#[test]
fn an_error_names_the_argument_and_its_cure(
    #[case] args: &[&str],
    #[case] code: i32,
    #[case] said: &str,
) {
    let ended = paceway_in(Path::new("."), &[&["exec"], args].concat(), &[]);
    let stderr = text(&ended.stderr);
    assert!(stderr.starts_with(said), "{stderr}");
    assert_eq!((ended.status.code(), ended.stdout.is_empty()), (Some(code), true));
}

#[test]
fn standard_streams_and_the_environment_pass() {
    let args =
        ["exec", "--limit", "5/s", "--", "sh", "-c", "cat; echo \"$HOME $0 $1\" >&2", "x y", "-z"];
    let ended = paceway_fed(Path::new("."), &args, "hello");
    assert_eq!(text(&ended.stdout), "hello");
    let home = std::env::var("HOME").unwrap_or_default();
    let stderr = text(&ended.stderr);
    let (own, hint) = stderr.split_once('\n').expect("two lines");
    assert_eq!(own, format!("{home} x y -z"));
    assert_is_the_hint(hint);
}

/// The file of authorities is the only one, holds no key, and ends with the command. The limit of open files is the old one.
#[test]
fn a_command_leaves_no_file() {
    let script = "echo $SSL_CERT_FILE; ls -A $(dirname $SSL_CERT_FILE); stat -c %a $(dirname $SSL_CERT_FILE); \
                  grep -c 'PRIVATE KEY' $SSL_CERT_FILE; ulimit -Sn";
    let args = [
        "-c",
        "ulimit -Sn 321; exec \"$0\" exec --limit 5/s -- sh -c \"$1\"",
        env!("CARGO_BIN_EXE_paceway"),
        script,
    ];
    let ended = Command::new("sh").args(args).output().expect("a shell");
    let stdout = text(&ended.stdout);
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines[1..], ["ca.pem", "node.cjs", "700", "0", "321"], "{ended:?}");
    let file = Path::new(lines[0]);
    assert!(file.is_absolute() && !file.exists() && !file.parent().expect("one").exists());
}

/// A command that says `ready`, and what it does at a signal.
fn started(script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    // A suite in the background of a shell ignores some signals, and its programs would, too.
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_paceway")]);
    command.args(["exec", "--limit", "5/s", "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    (child, stdout)
}

#[rstest]
#[case::interrupt("INT", 130)]
#[case::terminate("TERM", 143)]
#[case::hang_up("HUP", 129)]
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_reaches_the_command(#[case] name: &str, #[case] code: i32) {
    let script =
        format!("trap 'echo caught; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
    for (script, said, code) in
        [(&*script, "caught\n", 7), ("echo ready; exec sleep 100", "", code)]
    {
        let (mut child, mut stdout) = started(script);
        let pid = child.id().to_string();
        Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill");
        let status = eventually("it ends", async || child.try_wait().expect("its state")).await;
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("text");
        assert_eq!((&*rest, status.code()), (said, Some(code)));
    }
}

/// As under `nohup`: the command is started with the signal ignored, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_signal_stays_ignored() {
    let script = "trap '' HUP; exec \"$0\" exec --limit 5/s -- grep SigIgn /proc/self/status";
    let paceway = env!("CARGO_BIN_EXE_paceway");
    let said = Command::new("sh").args(["-c", script, paceway]).output().expect("start");
    let said = String::from_utf8(said.stdout).expect("text");
    let bits = said.trim().strip_prefix("SigIgn:").expect("a set of signals").trim();
    assert_eq!(u64::from_str_radix(bits, 16).expect("a number") & 1, 1, "{said}");
}

/// As without `exec`, `SSL_CERT_FILE` takes the place of the system's authorities: on the way to the vendor, and for the
/// command. Files of single programs are trusted in addition.
#[rstest]
#[case::in_place("SSL_CERT_FILE", true, "200", true)]
#[case::another_authority("SSL_CERT_FILE", false, "502", true)]
#[case::in_addition("REQUESTS_CA_BUNDLE", true, "200", false)]
#[tokio::test(flavor = "multi_thread")]
async fn authorities_of_the_environment_are_trusted(
    #[case] name: &str,
    #[case] is_vendors: bool,
    #[case] status: &str,
    #[case] is_alone: bool,
) {
    let vendor = Vendor::start().await;
    let other = Authority::new();
    let file = if is_vendors { vendor.authority.file() } else { other.file() };
    let script = "curl -sS -o /dev/null -w '%{http_code}' $0; echo; grep -c 'BEGIN' $SSL_CERT_FILE";
    let url = vendor.url();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_paceway"));
    command.args(["exec", "--limit", "5/s", "--", "sh", "-c", script, &url]);
    let path = std::env::var("PATH").expect("a path");
    let ended = command.env_clear().envs([("PATH", &path), (name, &file)]).output();
    let ended = ended.await.expect("a process");
    let said = text(&ended.stdout);
    let lines: Vec<_> = said.lines().collect();
    // The file of the environment, and the authority of `exec`.
    assert_eq!((lines[0], lines[1] == "2"), (status, is_alone), "{ended:?}");
}

/// All hosts share the limit, over TLS or not.
#[tokio::test(flavor = "multi_thread")]
async fn all_hosts_share_the_limits() {
    let vendor = Vendor::start().await;
    let plain = Upstream::ok().await;
    let script =
        "for i in 1 2; do curl -sS -w '%{http_code} ' -o /dev/null $0/x -o /dev/null $1/y; done";
    let command = ["sh", "-c", script, &vendor.url(), &plain.url()];
    let ended = exec(&vendor, &["--limit", "3/h", "--max-wait", "0"], &command).await;
    assert_eq!(text(&ended.stdout), "200 200 200 429 ", "{ended:?}");
    assert_eq!((vendor.upstream.calls().len(), plain.calls().len()), (2, 1));
}

/// The gateway adds nothing to what the command sends, and removes nothing from it.
#[tokio::test(flavor = "multi_thread")]
async fn the_vendor_sees_calls_as_the_command_made_them() {
    let (vendor, plain) = (Vendor::start().await, Upstream::ok().await);
    let own =
        ["via: 1.1 mine", "x-request-id: a \"b\"", "x-forwarded-for: 6.6.6.6", "forwarded: for=b"];
    let options = own.map(|field| ["-H", field]).concat();
    for url in [vendor.url(), plain.url()] {
        for fields in [&[][..], &options] {
            let command = [&["curl", "-sS", "-A", "me", &url], fields].concat();
            let ended = exec(&vendor, &["--limit", "9/s"], &command).await;
            assert_eq!(text(&ended.stdout), "ok", "{ended:?}");
        }
    }
    for upstream in [&vendor.upstream, &plain] {
        let calls = upstream.calls().into_iter();
        let calls: Vec<_> = calls.map(|call| sorted(call.head.fields)).collect();
        let names: Vec<_> = calls[0].iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["accept", "host", "user-agent"]);
        let own = own.map(|field| field.split_once(": ").expect("a field"));
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter();
        assert_eq!(calls[1], sorted(calls[0].iter().cloned().chain(own).collect()));
    }
}

fn sorted(mut fields: Vec<(String, String)>) -> Vec<(String, String)> {
    fields.sort();
    fields
}

/// A list is kept as a whole, and a count that no window holds is an even flow after a hundredth, as with `run`.
#[rstest]
#[case::a_list(&["--limit", "50/s, 3/h"], 5, 3)]
#[case::several(&["--limit", "4/h", "--limit", "50/s"], 5, 4)]
#[case::a_name_of_digits(&["--limit", "2/h", "--name", "1e3"], 3, 2)]
#[case::a_great_count(&["--limit", "20000/day"], 220, 200)]
#[case::both(&["--limit", "20000/day,3/h"], 5, 3)]
#[tokio::test(flavor = "multi_thread")]
async fn limits_are_those_of_run(
    #[case] limits: &[&str],
    #[case] calls: usize,
    #[case] pass: usize,
) {
    let vendor = Vendor::start().await;
    let url = format!("{}/x?[1-{calls}]", vendor.url());
    let options = [limits, &["--max-wait", "0"]].concat();
    let command = ["curl", "-sS", "-w", "%{stderr}%{http_code} ", &url];
    let ended = exec(&vendor, &options, &command).await;
    let said = text(&ended.stderr);
    let passed = said.split_whitespace().filter(|code| *code == "200").count();
    assert_eq!(said.split_whitespace().count(), calls, "{said}");
    // A slow machine sees the first of the flow, a call each 4 s.
    assert!((pass..pass + 3).contains(&passed), "{passed}: {said}");
}

/// With `--host` the others see the certificates of their own, and no limit.
#[tokio::test(flavor = "multi_thread")]
async fn other_hosts_are_passed_on() {
    let vendor = Vendor::start().await;
    let (authority, plain) = (Authority::new(), Upstream::ok().await);
    let other = Upstream::tls(authority.server("127.0.0.1", DEFAULT_VERSIONS, None)).await;
    let script = "get() { curl -sS -w '%{http_code} ' \"$@\"; }; get -o /dev/null $0 -o /dev/null $0; \
                  get --cacert $3 -o /dev/null $1 -o /dev/null $1; get -o /dev/null $2 -o /dev/null $2";
    let other_url = format!("https://{}", other.address());
    let file = authority.file();
    let command = ["sh", "-c", script, &vendor.url(), &other_url, &plain.url(), &file];
    let options = ["--limit", "1/h", "--max-wait", "0", "--host", "localhost"];
    let ended = exec(&vendor, &options, &command).await;
    assert_eq!(text(&ended.stdout), "200 429 200 200 200 200 ", "{ended:?}");
}

/// The gateway of a command is reached by its proxy alone, and not through that.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_does_not_reach_its_gateway() {
    let vendor = Vendor::start().await;
    let script = "for url in $HTTPS_PROXY/ http://169.254.169.254/ http://0.0.0.0:${HTTPS_PROXY##*:}/; do \
                  curl -sS -o /dev/null -w '%{http_code} ' --noproxy '' -x $HTTPS_PROXY $url; done; \
                  curl -sS -o /dev/null -w '%{http_code}' --noproxy '*' $HTTPS_PROXY/";
    let ended = exec(&vendor, &["--limit", "9/s"], &["sh", "-c", script]).await;
    assert_eq!(text(&ended.stdout), "403 403 403 400", "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_with_one_store_share_their_limits() {
    let (vendor, redis) = (Vendor::start().await, Redis::start());
    let url = redis.url();
    let script = "for i in 1 2 3 4 5 6; do curl -sS -o /dev/null $0/x; done";
    let target = vendor.url();
    let (options, command) = (["--limit", "5/s", "--store", &url], ["sh", "-c", script, &target]);
    let both = tokio::join!(exec(&vendor, &options, &command), exec(&vendor, &options, &command));
    assert!(both.0.status.success() && both.1.status.success(), "{both:?}");
    vendor.assert_paced(12);
    // Another name has limits of its own.
    let options = ["--limit", "1/h", "--max-wait", "0", "--store", &url, "--name", "other"];
    let ended = exec(&vendor, &options, &["curl", "-sS", "-f", &target]).await;
    assert_eq!(text(&ended.stdout), "ok", "{ended:?}");
}

/// While the store is away, each command has the limits for itself, and one line says so.
#[rstest]
#[case::dead(Redis::kill)]
#[case::silent(|redis: &mut Redis| redis.freeze())]
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_stops_no_command(#[case] end: fn(&mut Redis)) {
    let (vendor, mut redis) = (Vendor::start().await, Redis::start());
    let url = redis.url();
    end(&mut redis);
    let script = "for i in 1 2 3; do curl -sS -w '%{http_code} ' -o /dev/null $0; done";
    for _ in 0..2 {
        let options = ["--limit", "2/h", "--max-wait", "0", "--store", &url];
        let ended = exec(&vendor, &options, &["sh", "-c", script, &vendor.url()]).await;
        assert_eq!(text(&ended.stdout), "200 200 429 ", "{ended:?}");
        let stderr = text(&ended.stderr);
        let is_one_line = stderr.lines().count() == 1;
        assert!(is_one_line && stderr.contains(" WARN the store is away: limiters"), "{stderr}");
    }
}

/// `paceway ca` writes a key that others cannot read, and replaces nothing.
#[test]
fn an_authority_replaces_no_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let make =
        |cert: &str, key: &str| paceway_in(dir.path(), &["ca", "--cert", cert, "--key", key], &[]);
    assert!(make("a.pem", "a.key").status.success());
    let mode = |name: &str| {
        fs::metadata(dir.path().join(name)).expect("a file").permissions().mode() & 0o777
    };
    assert_eq!(mode("a.key"), 0o600);
    let before = fs::read(dir.path().join("a.key")).expect("a file");
    for (cert, key, taken) in [("b.pem", "a.key", "a.key"), ("a.pem", "b.key", "a.pem")] {
        let ended = make(cert, key);
        assert_eq!(ended.status.code(), Some(2));
        assert!(text(&ended.stderr).starts_with(&format!("error: {taken} exists")), "{ended:?}");
    }
    assert_eq!(fs::read(dir.path().join("a.key")).expect("a file"), before);
    assert!(!dir.path().join("b.pem").exists() && !dir.path().join("b.key").exists());
}
