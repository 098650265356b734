//! Proxies that others wrote, with the configurations of docs/services: only addresses and the time-outs of Envoy are replaced.

use super::{Gateway, eventually, free_port};
use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use tokio::net::TcpStream;

/// A proxy of another maker that asks a service of the gateway, and ends with the test.
pub(crate) struct OtherProxy {
    child: Child,
    pub(crate) address: SocketAddr,
    _dir: tempfile::TempDir,
}

/// The proxies that `make test-tools` installs, each with a page in docs/services; Envoy in each of its ways.
pub(crate) const OTHER_PROXIES: [&str; 6] =
    ["nginx", "caddy", "haproxy", "envoy", "envoy grpc", "envoy rate limit"];

/// The service that a proxy asks, the page of the proxy, and the index of the YAML there that configures the service.
pub(crate) fn service_of(proxy: &str) -> (&'static str, &'static str, usize) {
    match proxy {
        "nginx" => ("forward_auth", "docs/services/nginx.md", 0),
        "caddy" => ("forward_auth", "docs/services/caddy.md", 0),
        "haproxy" => ("forward_auth", "docs/services/haproxy.md", 0),
        "envoy grpc" => ("ext_authz", "docs/services/envoy.md", 2),
        "envoy rate limit" => ("envoy_rate_limit", "docs/services/envoy.md", 4),
        _ => ("forward_auth", "docs/services/envoy.md", 0),
    }
}

/// The address of a service, as the gateway says it.
pub(crate) fn service_address(gateway: &Gateway, service: &str) -> SocketAddr {
    let events = gateway.events();
    let line = events.iter().find(|line| line["message"] == "listening").expect("a line");
    line[service].as_str().expect("an address").parse().expect("an address")
}

/// The blocks of a language in a page, such as `nginx`.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let begin = format!("```{language}\n");
    let rest = text.split(&begin).skip(1);
    rest.map(|rest| rest.split("\n```").next().expect("an end").to_owned() + "\n").collect()
}

/// Envoy, where `deploy/tools/clients.sh` installs it.
fn envoy() -> PathBuf {
    let clients = env::current_dir().expect("a directory").join("target/clients/python/lib");
    let versions = fs::read_dir(clients).expect("the clients, by `make test-tools`").flatten();
    let mut own = versions.map(|version| version.path().join("site-packages/envoy/_bin/envoy"));
    own.find(|path| path.exists()).expect("envoy, by `make test-tools`")
}

// === impl OtherProxy ===

impl OtherProxy {
    /// Starts a proxy that asks the service at `paceway` and forwards to `app`.
    pub(crate) async fn start(name: &'static str, paceway: SocketAddr, app: SocketAddr) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let port = free_port();
        let set = |text: &str| {
            text.replace("8082", &paceway.port().to_string())
                .replace("8081", &paceway.port().to_string())
                .replace("8083", &paceway.port().to_string())
                .replace("timeout: 10s", "timeout: 600s")
                .replace("8000", &port.to_string())
                .replace("3000", &app.port().to_string())
        };
        let mut command = command(name, dir.path(), set);
        let log = fs::File::create(dir.path().join("log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let child = command.current_dir(dir.path()).spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{name}: {error}; `make test` installs what is missing")
        });
        let address = ([127, 0, 0, 1], port).into();
        let mut proxy = Self { child, address, _dir: dir };
        eventually(&format!("{name} listens"), async || {
            if let Some(status) = proxy.child.try_wait().expect("its state") {
                let log = fs::read_to_string(proxy._dir.path().join("log"));
                panic!("{name} ended: {status} {}", log.unwrap_or_default());
            }
            TcpStream::connect(address).await.ok().map(drop)
        })
        .await;
        proxy
    }
}

impl Drop for OtherProxy {
    fn drop(&mut self) {
        // Some have workers, which end with a master that is asked to.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

/// The command that starts a proxy, with the configuration of its page.
fn command(name: &str, dir: &Path, set: impl Fn(&str) -> String) -> Command {
    let (_, page, settings) = service_of(name);
    let write = |file: &str, text: &str| fs::write(dir.join(file), set(text)).expect("a file");
    let block = |language: &str, i: usize| blocks(page, language)[i].clone();
    let own = |name: &str| {
        // Where Debian puts it, which is not on every PATH.
        let own = format!("/usr/sbin/{name}");
        Command::new(if Path::new(&own).exists() { own } else { name.to_owned() })
    };
    match name {
        "nginx" => {
            let text = format!(
                "daemon off; master_process off; pid {dir}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n\
                 client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;\n\
                 uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;\n",
                dir = dir.display()
            );
            let text = text + &set(&block("nginx", 0)) + "}\n";
            fs::write(dir.join("nginx.conf"), text).expect("a file");
            let mut command = own("nginx");
            command.args(["-e", "stderr", "-c"]).arg(dir.join("nginx.conf"));
            command
        }
        "caddy" => {
            let text = "{\n\tadmin off\n\tauto_https off\n}\n".to_owned() + &block("caddyfile", 0);
            write("Caddyfile", &text);
            let mut command = own("caddy");
            command.args(["run", "--adapter", "caddyfile", "--config"]).arg(dir.join("Caddyfile"));
            command.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
            command
        }
        "haproxy" => {
            write("paceway.lua", &block("lua", 0));
            write("haproxy.cfg", &block("haproxy", 0));
            let mut command = own("haproxy");
            command.args(["-db", "-f", "haproxy.cfg"]);
            command
        }
        _ => {
            write("envoy.yaml", &block("yaml", settings + 1));
            let mut command = Command::new(envoy());
            command.args([
                "--use-dynamic-base-id",
                "--concurrency",
                "1",
                "-l",
                "warning",
                "-c",
                "envoy.yaml",
            ]);
            command
        }
    }
}
