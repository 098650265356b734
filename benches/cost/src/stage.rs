//! The servers of a measurement, all on loopback: the origin, the gateway, its peers, Redis.

use crate::{
    certificate::Certificate,
    client::page,
    machine::{Cores, Layout, find, free_port, line_of},
    process::Process,
};
use std::{
    env, fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

const PACEWAY: &str = include_str!("../peers/paceway.yaml");
/// The gateway before an origin that answers calls of gRPC.
const CALLS: &str = include_str!("../peers/grpc.yaml");
const NGINX: &str = include_str!("../peers/nginx.conf");
const HAPROXY: &str = include_str!("../peers/haproxy.cfg");
const LUA: &str = include_str!("../peers/limit.lua");
/// The Lua scripts of wrk, which are written to the temporary directory.
const SCRIPTS: [(&str, &str); 4] = [
    ("close.lua", include_str!("../peers/close.lua")),
    ("keys.lua", include_str!("../peers/keys.lua")),
    ("paths.lua", include_str!("../peers/paths.lua")),
    ("upload.lua", include_str!("../peers/upload.lua")),
];

/// The origin, and all that is needed to start the other servers of a measurement.
#[derive(Debug)]
pub struct Stage {
    pub layout: Layout,
    /// A temporary directory for configurations and output.
    pub dir: PathBuf,
    pub origin: Server,
    gateway: PathBuf,
}

/// How clients speak to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Clear,
    /// TLS, with HTTP/2 and HTTP/1.1 by ALPN.
    Tls,
    /// HTTP/2 in clear text, for calls of gRPC, which the origin gets in the same way.
    Calls,
}

/// A server whose cost is measured.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    /// The admin address, if the server is a gateway.
    pub admin: Option<SocketAddr>,
    pub door: Door,
    pub process: Process,
}

/// The settings in which a gateway differs from the usual one.
#[derive(Debug, Clone)]
pub struct Gateway {
    pub origin: SocketAddr,
    pub redis: Option<SocketAddr>,
    /// `store.timeout` of the configuration.
    pub timeout: &'static str,
    pub workers: usize,
    pub door: Door,
    pub cores: Cores,
    /// The number of additional routes, `/r0` and so on.
    pub routes: usize,
    /// Whether refusals of the origin would be handled; `throttle: off` if not.
    pub throttle: bool,
    /// A command that runs the gateway, such as valgrind with its arguments.
    pub under: Vec<String>,
}

// === impl Server ===

impl Server {
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.door == Door::Tls { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.address)
    }
}

// === impl Stage ===

impl Stage {
    pub fn set(dir: &Path, gateway: &Path) -> io::Result<Self> {
        let gateway = fs::canonicalize(gateway)
            .map_err(|error| io::Error::other(format!("{}: {error}", gateway.display())))?;
        for (name, text) in SCRIPTS.iter().chain(&[("limit.lua", LUA)]) {
            fs::write(dir.join(name), text)?;
        }
        let layout = Layout::new();
        let origin = origin("--serve", dir, &layout.load)?;
        Ok(Self { layout, dir: dir.into(), origin, gateway })
    }

    /// Returns the program that plays gateways, which `benches/run.sh` builds beside the gateway with the profile `counted`.
    pub fn fleet(&self) -> io::Result<PathBuf> {
        let target = self.gateway.parent().unwrap_or(&self.gateway);
        let program = target.with_file_name("counted").join("examples/fleet");
        fs::canonicalize(&program)
            .map_err(|error| io::Error::other(format!("{}: {error}", program.display())))
    }

    /// Starts another origin, on other cores.
    pub fn another_origin(&self, cores: &Cores) -> io::Result<Server> {
        origin("--serve", &self.dir, cores)
    }

    /// Starts an origin that answers calls of gRPC.
    pub fn grpc_origin(&self) -> io::Result<Server> {
        origin("--serve-grpc", &self.dir, &self.layout.load)
    }

    /// Returns the certificate of all servers with TLS, which the first of them makes.
    fn certificate(&self) -> io::Result<Certificate> {
        Certificate::of(&self.dir)
    }

    /// The usual gateway: one worker with the memory store, on the measured core.
    pub fn usual(&self) -> Gateway {
        let cores = self.layout.measured.clone();
        let origin = self.origin.address;
        // Valgrind is slow: no request may reach the usual time-out.
        let timeout = "10s";
        Gateway {
            origin,
            redis: None,
            timeout,
            workers: 1,
            door: Door::Clear,
            cores,
            routes: 0,
            throttle: true,
            under: Vec::new(),
        }
    }

    pub fn paceway(&self, gateway: &Gateway) -> io::Result<Server> {
        let (address, admin) = (free_port()?, free_port()?);
        let file = self.configuration(gateway, address, admin)?;
        let mut command = gateway.under.clone();
        command.extend([path(&self.gateway), "run".into(), "--config".into(), path(&file)]);
        let process = Process::start(&gateway.cores, &self.dir, &command)?
            .until_open(&[address, admin], &command)?;
        page(admin, "/readyz")?;
        Ok(Server { address, admin: Some(admin), door: gateway.door, process })
    }

    /// Starts `program`, which serves the routes of the usual gateway by `front` and has no admin side.
    pub fn mounted(&self, program: &Path, front: &str, under: &[String]) -> io::Result<Server> {
        let address = free_port()?;
        let file = self.configuration(&self.usual(), address, free_port()?)?;
        let mut command = under.to_vec();
        command.extend([path(program), front.to_owned(), path(&file)]);
        let process = Process::start(&self.layout.measured, &self.dir, &command)?
            .until_open(&[address], &command)?;
        Ok(Server { address, admin: None, door: Door::Clear, process })
    }

    /// Writes the configuration file of `gateway`.
    fn configuration(
        &self,
        gateway: &Gateway,
        address: SocketAddr,
        admin: SocketAddr,
    ) -> io::Result<PathBuf> {
        let store = gateway.redis.map_or("memory".into(), |redis| {
            format!("{{ url: \"redis://{redis}\", timeout: {} }}", gateway.timeout)
        });
        let secure = match gateway.door {
            Door::Tls => {
                let Certificate { chain, key, .. } = self.certificate()?;
                format!("tls: {{ cert: {}, key: {} }}", path(&chain), path(&key))
            }
            Door::Clear | Door::Calls => String::new(),
        };
        let mut text = self.fill(
            if gateway.door == Door::Calls { CALLS } else { PACEWAY },
            address,
            &[
                ("ADMIN", &admin.to_string()),
                ("ORIGIN", &gateway.origin.to_string()),
                ("WORKERS", &gateway.workers.to_string()),
                ("STORE", &store),
                ("SECURE", &secure),
            ],
        );
        if !gateway.throttle {
            let url = format!("http://{}", gateway.origin);
            let off = format!("upstreams: {{ origin: {{ url: \"{url}\", throttle: off }} }}");
            text = text.replacen(&format!("upstream: {url}"), &off, 1);
        }
        for i in 0..gateway.routes {
            text.push_str(&format!(
                "  - {{ suffix: /r{i:04}, limiters: [plenty], max_wait: 2s }}\n"
            ));
        }
        let file = self.dir.join(format!("paceway-{}.yaml", address.port()));
        fs::write(&file, text)?;
        Ok(file)
    }

    /// Starts nginx with `limit_req`, or with a decision in `redis` for each request.
    pub fn nginx(
        &self,
        door: Door,
        redis: Option<SocketAddr>,
        under: &[String],
    ) -> io::Result<Server> {
        self.nginx_to(self.origin.address, door, redis, under)
    }

    /// Starts nginx before another origin than the usual one.
    pub fn nginx_to(
        &self,
        origin: SocketAddr,
        door: Door,
        redis: Option<SocketAddr>,
        under: &[String],
    ) -> io::Result<Server> {
        let (modules, lua, limit) = match redis {
            None => {
                (String::new(), String::new(), "limit_req zone=plenty burst=100000 nodelay;".into())
            }
            Some(redis) => {
                let modules =
                    nginx_modules().ok_or_else(|| io::Error::other("nginx has no Lua"))?;
                let (host, port) = (redis.ip(), redis.port());
                (
                    modules.map(|module| format!("load_module {};\n", path(&module))).concat(),
                    format!("lua_package_path \"{}/?.lua;;\";", path(&self.dir)),
                    format!(
                        "access_by_lua_block {{ return require(\"limit\").pass(\"{host}\", {port}) }}"
                    ),
                )
            }
        };
        let address = free_port()?;
        let (secure, certificate) = match door {
            Door::Clear => ("", String::new()),
            Door::Calls => (" http2", String::new()),
            Door::Tls => {
                let Certificate { chain, key, .. } = self.certificate()?;
                let files = (path(&chain), path(&key));
                let lines = format!(
                    "ssl_certificate {}; ssl_certificate_key {}; ssl_protocols TLSv1.2 TLSv1.3;",
                    files.0, files.1
                );
                (" ssl http2", lines)
            }
        };
        let values = [
            ("MODULES", modules.as_str()),
            ("LUA", &lua),
            ("LIMIT", &limit),
            ("DIR", &path(&self.dir)),
            ("SECURE", secure),
            ("CERTIFICATE", &certificate),
            ("ORIGIN", &origin.to_string()),
        ];
        let text = self.fill(NGINX, address, &values);
        let file = self.dir.join(format!("nginx-{}.conf", address.port()));
        fs::write(&file, text)?;
        let command = ["-p", &path(&self.dir), "-e", "stderr", "-c", &path(&file)];
        self.peer("nginx", &command, address, door, under)
    }

    pub fn haproxy(&self, door: Door, under: &[String]) -> io::Result<Server> {
        let address = free_port()?;
        let secure = match door {
            Door::Tls => {
                let both = path(&self.certificate()?.both);
                format!(" ssl crt {both} alpn h2,http/1.1")
            }
            Door::Clear | Door::Calls => String::new(),
        };
        let file = self.dir.join(format!("haproxy-{}.cfg", address.port()));
        fs::write(&file, self.fill(HAPROXY, address, &[("SECURE", &secure)]))?;
        self.peer("haproxy", &["-db", "-f", &path(&file)], address, door, under)
    }

    fn peer(
        &self,
        name: &str,
        args: &[&str],
        address: SocketAddr,
        door: Door,
        under: &[String],
    ) -> io::Result<Server> {
        let mut command = under.to_vec();
        command.push(find(name).map_or(name.to_owned(), |file| path(&file)));
        command.extend(args.iter().map(|arg| (*arg).to_owned()));
        let process = Process::start(&self.layout.measured, &self.dir, &command)?
            .until_open(&[address], &command)?;
        Ok(Server { address, admin: None, door, process })
    }

    /// Starts an empty Redis on the cores of the load.
    pub fn redis(&self) -> io::Result<Server> {
        self.redis_on(&self.layout.load)
    }

    /// Starts an empty Redis on the measured core.
    pub fn measured_redis(&self) -> io::Result<Server> {
        self.redis_on(&self.layout.measured)
    }

    fn redis_on(&self, cores: &Cores) -> io::Result<Server> {
        let address = free_port()?;
        let port = address.port().to_string();
        let words = [
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--port",
            &port,
            "--save",
            "",
            "--appendonly",
            "no",
        ];
        let command = words.map(String::from).to_vec();
        let process =
            Process::start(cores, &self.dir, &command)?.until_open(&[address], &command)?;
        Ok(Server { address, admin: None, door: Door::Clear, process })
    }

    fn fill(&self, template: &str, listen: SocketAddr, values: &[(&str, &str)]) -> String {
        let text = template.replace("@LISTEN@", &listen.to_string());
        let text = values
            .iter()
            .fold(text, |text, (name, value)| text.replace(&format!("@{name}@"), value));
        // The usual origin, unless the caller has filled in another one.
        text.replace("@ORIGIN@", &self.origin.address.to_string())
    }
}

fn origin(role: &str, dir: &Path, cores: &Cores) -> io::Result<Server> {
    let address = free_port()?;
    let command = own(&[role, &address.to_string()])?;
    let process = Process::start(cores, dir, &command)?.until_open(&[address], &command)?;
    Ok(Server { address, admin: None, door: Door::Clear, process })
}

/// The command that starts this program in another role.
pub fn own(args: &[&str]) -> io::Result<Vec<String>> {
    let program = path(&env::current_exe()?);
    Ok([program].into_iter().chain(args.iter().map(|arg| (*arg).to_owned())).collect())
}

/// Finds the modules that nginx needs for Lua, if the distribution has them.
pub fn nginx_modules() -> Option<[PathBuf; 2]> {
    let arguments = nginx_arguments();
    let folder = arguments.split(' ').find_map(|word| word.strip_prefix("--modules-path="))?;
    let files =
        ["ndk_http_module.so", "ngx_http_lua_module.so"].map(|file| Path::new(folder).join(file));
    files.iter().all(|file| file.is_file()).then_some(files)
}

fn nginx_arguments() -> String {
    let Some(nginx) = find("nginx") else { return String::new() };
    let output = std::process::Command::new(nginx).arg("-V").output();
    output
        .map_or(String::new(), |output| String::from_utf8_lossy(&output.stderr).replace('\n', " "))
}

/// Names the versions of the installed programs.
pub fn versions() -> String {
    let version = |line: String, before: &str| {
        let rest = line.split_once(before)?.1.to_owned();
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        Some(rest[..end].to_owned())
    };
    let found = [
        ("nginx", version(line_of("nginx", &["-v"]), "nginx/")),
        ("haproxy", version(line_of("haproxy", &["-v"]), "version ")),
        ("redis-server", version(line_of("redis-server", &["--version"]), "v=")),
        ("rustc", version(line_of("rustc", &["--version"]), "rustc ")),
    ];
    let words =
        found.into_iter().filter_map(|(name, version)| Some(format!("{name} {}", version?)));
    words.collect::<Vec<_>>().join(", ")
}

pub fn path(path: &Path) -> String {
    path.display().to_string()
}
