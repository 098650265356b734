//! Origins that others wrote, and how they spell a path: nginx, Caddy, Express and Starlette. A spelling that one of them
//! serves as the limited resource is limited.

use crate::support::{Answer, Conn, Gateway, eventually, free_port};
use std::{
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
};
use tokio::net::TcpStream;

/// Spellings of `/search` and `/v2/search`, and the origins that are known to serve the limited resource for each.
const SPELLINGS: &[(&str, &[&str])] = &[
    ("/search", &["nginx", "caddy", "express", "starlette"]),
    ("/SEARCH", &["nginx", "caddy", "express"]),
    ("/%53earch", &["nginx", "caddy"]),
    ("/v2%2fsearch", &["nginx", "caddy", "starlette"]),
    ("/v2%2Fsearch", &["nginx", "caddy", "starlette"]),
    ("/V2%2FSEARCH", &["nginx", "caddy"]),
    ("/x%2f..%2fsearch", &["nginx", "caddy"]),
    ("/search.", &["caddy"]),
    ("/search...", &["caddy"]),
    ("/search%20", &["caddy"]),
    ("/search%2e%20", &["caddy"]),
    ("/search%0a", &["nginx", "starlette"]),
    ("/v2%2fsearch%0a", &["nginx", "starlette"]),
    ("/SEARCH%0A", &["nginx"]),
    ("//search", &["nginx", "caddy"]),
    ("/search/", &["express"]),
    ("/./search", &["nginx", "caddy"]),
    ("/x/../search", &["nginx", "caddy"]),
    ("/search;x", &[]),
    ("/search/;x", &[]),
    ("/search%00", &[]),
    ("/search%5c", &[]),
    ("\\search", &[]),
    ("/search/..", &[]),
    ("/search//..", &[]),
];

const ORIGINS: [&str; 4] = ["nginx", "caddy", "express", "starlette"];

/// A server in another process; it ends with the test.
struct Origin {
    child: Child,
    name: &'static str,
    port: u16,
    _dir: tempfile::TempDir,
}

// === impl Origin ===

impl Origin {
    async fn start(name: &'static str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let port = free_port();
        let mut command = command(name, port, dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{name}: {error}; `make test` installs what is missing")
        });
        let mut origin = Self { child, name, port, _dir: dir };
        eventually(&format!("{name} listens"), async || {
            if let Some(status) = origin.child.try_wait().expect("its state") {
                panic!("{name} ended: {status}");
            }
            TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop)
        })
        .await;
        origin
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // nginx has a worker, which ends with a master that is asked to.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
    }
}

fn command(name: &str, port: u16, dir: &Path) -> Command {
    let write = |file: &str, text: String| fs::write(dir.join(file), text).expect("a file");
    let clients = env::current_dir().expect("a directory").join("target/clients");
    match name {
        "nginx" | "nginx-h2" => {
            // After three requests its GOAWAY names the third, whatever came after it.
            let http2 = if name == "nginx" { "" } else { " http2; keepalive_requests 3" };
            let text = format!(
                "daemon off; master_process off; error_log stderr; pid {dir}/pid;\nevents {{}}\nhttp {{\n\
                 access_log off; client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;\n\
                 uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;\nserver {{ listen 127.0.0.1:{port}{http2};\n\
                 location ~* ^(/v2)?/search$ {{ return 200 limited; }}\nlocation / {{ return 200 other; }} }} }}\n",
                dir = dir.display()
            );
            write("nginx.conf", text);
            // Where Debian puts it, which is not on every PATH.
            let own = ["/usr/sbin/nginx", "/usr/bin/nginx"];
            let own = own.into_iter().find(|path| Path::new(path).exists()).unwrap_or("nginx");
            let mut command = Command::new(own);
            command.arg("-e").arg("stderr").arg("-c").arg(dir.join("nginx.conf"));
            command
        }
        "caddy" => {
            let text = format!(
                "{{\n\tadmin off\n\tauto_https off\n}}\nhttp://:{port} {{\n\tbind 127.0.0.1\n\
                 \t@limited path /search /v2/search\n\trespond @limited limited\n\trespond other\n}}\n"
            );
            write("Caddyfile", text);
            let mut command = Command::new("caddy");
            command.args(["run", "--adapter", "caddyfile", "--config"]).arg(dir.join("Caddyfile"));
            command.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
            command
        }
        "express" => {
            let path = env::var("PATH").unwrap_or_default();
            let mut command = Command::new("node");
            command.env("PATH", format!("{path}:{}", clients.join("python/bin").display()));
            command.env("CLIENTS", clients);
            command.args(["tests/clients/express_origin.mjs", &port.to_string()]);
            command
        }
        _ => {
            let mut command = Command::new(clients.join("python/bin/python"));
            command.args(["tests/clients/starlette_origin.py", &port.to_string()]);
            command
        }
    }
}

async fn ask(port: u16, host: &str, target: &str) -> Answer {
    let mut conn = Conn::to(([127, 0, 0, 1], port).into()).await.expect("connect");
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    conn.send(request).await.expect("send");
    conn.answer().await.expect("a whole answer")
}

/// Whether the answer is that of the limited resource, and not of another one.
fn is_limited(answer: &Answer) -> bool {
    answer.status == 200 && answer.text() == "limited"
}

/// One permit an hour is taken by an honest call. A spelling that reaches the resource then is a way around the limiter.
#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_evades_the_limiter_of_a_real_origin() {
    let mut origins = Vec::new();
    for name in ORIGINS {
        origins.push(Origin::start(name).await);
    }
    let each = |line: &dyn Fn(&Origin) -> String| origins.iter().map(line).collect::<String>();
    let yaml = format!(
        "upstreams:\n{}limiters:\n{}routes:\n{}",
        each(&|o| format!("  {}: http://127.0.0.1:{}\n", o.name, o.port)),
        each(&|o| format!("  {}: {{ rate: 1/h, burst: 1 }}\n", o.name)),
        each(&|o| {
            let name = o.name;
            format!(
                "- {{ name: {name}, suffix: /search, host: {name}.test, upstream: {name}, limiters: [{name}], max_wait: 0 }}\n\
                 - {{ name: {name} rest, suffix: '*', host: {name}.test, upstream: {name} }}\n"
            )
        }),
    );
    // A gateway with a wrong description of its upstreams lets them past: this test would see a hole.
    let wrong = "paths: { encoded_slash: data, fold_case: off, trailing_dots: keep }\n";
    let misled = Gateway::start(&format!("{wrong}{yaml}")).await;
    for (name, target) in [("nginx", "/v2%2fsearch"), ("express", "/SEARCH"), ("caddy", "/search.")]
    {
        let host = format!("{name}.test");
        assert!(is_limited(&ask(misled.listen.port(), &host, "/search").await), "{name}");
        assert!(is_limited(&ask(misled.listen.port(), &host, target).await), "{name} {target}");
    }
    let gateway = Gateway::start(&yaml).await;
    let port = gateway.listen.port();
    for origin in &origins {
        let (name, host) = (origin.name, format!("{}.test", origin.name));
        assert!(is_limited(&ask(port, &host, "/search").await), "{name}: the first call");
        assert_eq!(ask(port, &host, "/Other/x").await.text(), "other", "{name}");
        for (target, serve) in SPELLINGS {
            // The table of origins is true.
            let alone = ask(origin.port, &host, target).await;
            assert_eq!(is_limited(&alone), serve.contains(&name), "{name} and {target}");
            let through = ask(port, &host, target).await;
            assert!(!is_limited(&through), "{target} gets past the limiter of {name}");
            if serve.contains(&name) {
                assert!(matches!(through.status, 429 | 400), "{name} {target}: {}", through.status);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_nginx_that_takes_three_requests_on_each_connection_answers_all() {
    let origin = Origin::start("nginx-h2").await;
    let gateway = Gateway::start(&format!(
        "workers: 1\nupstreams: {{ vendor: {{ url: \"http://127.0.0.1:{}\", http2: true }} }}\n\
         limiters: {{ many: 100000/s }}\nroutes: [{{ suffix: \"*\", limiters: [many], max_wait: 20s }}]\n",
        origin.port
    ))
    .await;
    for _ in 0..3 {
        let mut conns = Vec::new();
        for _ in 0..20 {
            conns.push(gateway.ask("/search", &[]).await);
        }
        for conn in &mut conns {
            let answer = conn.answer().await.expect("an answer");
            assert_eq!((answer.status, answer.text().as_str()), (200, "limited"));
        }
    }
}
