//! A PostgreSQL or MariaDB server of the test's own, without durability.

use super::{eventually, free_port};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use tokio::net::TcpStream;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Postgres,
    MariaDb,
}

pub(crate) struct DatabaseServer {
    kind: ServerKind,
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

/// PostgreSQL says so when it starts while a child of the server that was killed before it has not noticed that yet.
const STILL_IN_USE: &str = "pre-existing shared memory block";

// === impl DatabaseServer ===

impl DatabaseServer {
    pub(crate) async fn start(kind: ServerKind) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        if is_root() {
            done(Command::new("chown").arg("nobody").arg(dir.path()));
        }
        let data = dir.path().join("data");
        match kind {
            ServerKind::Postgres => {
                done(command(&postgres("initdb"), dir.path()).arg("-D").arg(&data).args([
                    "-U",
                    "paceway",
                    "-A",
                    "trust",
                    "--no-sync",
                    "-E",
                    "UTF8",
                    "--locale=C",
                ]))
            }
            ServerKind::MariaDb => done(
                command(Path::new("mariadb-install-db"), dir.path())
                    .args(["--no-defaults", "--auth-root-authentication-method=normal"])
                    .arg("--skip-test-db")
                    .arg(format!("--datadir={}", data.display())),
            ),
        }
        let port = free_port();
        let child = spawn(kind, dir.path(), port);
        let mut server = Self { kind, child, port, dir };
        server.until_up().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        match self.kind {
            ServerKind::Postgres => format!("postgres://paceway@127.0.0.1:{}/postgres", self.port),
            ServerKind::MariaDb => format!("mysql://root@127.0.0.1:{}/mysql", self.port),
        }
    }

    /// Executes statements.
    pub(crate) async fn execute(&self, sql: &str) {
        use sqlx::{Connection, Executor};
        let (url, what) = (self.url(), "a statement");
        match self.kind {
            ServerKind::Postgres => {
                let mut connection = sqlx::PgConnection::connect(&url).await.expect("a connection");
                connection.execute(sqlx::raw_sql(sql)).await.expect(what);
            }
            ServerKind::MariaDb => {
                let mut connection =
                    sqlx::MySqlConnection::connect(&url).await.expect("a connection");
                connection.execute(sqlx::raw_sql(sql)).await.expect(what);
            }
        }
    }

    /// Kills the server, as a power failure would.
    pub(crate) fn kill(&mut self) {
        // Postgres has children, which end when they notice that it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(self.dir.path().join("data/postmaster.pid"));
    }

    pub(crate) async fn restart(&mut self) {
        self.child = spawn(self.kind, self.dir.path(), self.port);
        self.until_up().await;
    }

    async fn until_up(&mut self) {
        let url = self.url();
        eventually("the database answers", async || {
            use sqlx::Connection;
            if let Some(status) = self.child.try_wait().expect("its state") {
                let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                let last = &log[log.rfind("starting PostgreSQL").unwrap_or(0)..];
                assert!(last.contains(STILL_IN_USE), "the database ended: {status}\n{log}");
                self.child = spawn(self.kind, self.dir.path(), self.port);
            }
            TcpStream::connect(("127.0.0.1", self.port)).await.ok()?;
            match self.kind {
                ServerKind::Postgres => drop(sqlx::PgConnection::connect(&url).await.ok()?),
                ServerKind::MariaDb => drop(sqlx::MySqlConnection::connect(&url).await.ok()?),
            }
            Some(())
        })
        .await;
    }
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        // PostgreSQL ends its children. MariaDB has none, and waits for SIGTERM alone.
        let signal = match self.kind {
            ServerKind::Postgres => "-INT",
            ServerKind::MariaDb => "-KILL",
        };
        let _ = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

fn spawn(kind: ServerKind, dir: &Path, port: u16) -> Child {
    let data = dir.join("data");
    let mut command = match kind {
        ServerKind::Postgres => {
            let mut command = command(&postgres("postgres"), dir);
            command.arg("-D").arg(data).args(["-p", &port.to_string(), "-F"]);
            command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
            command
        }
        ServerKind::MariaDb => {
            let mut command = command(Path::new("mariadbd"), dir);
            command.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-grant-tables"]);
            command.arg(format!("--port={port}")).arg(format!("--datadir={}", data.display()));
            command.arg(format!("--socket={}", dir.join("socket").display()));
            command.arg(format!("--pid-file={}", dir.join("pid").display()));
            command
        }
    };
    let log = || fs::File::options().create(true).append(true).open(dir.join("log"));
    command.stdout(log().expect("a log")).stderr(log().expect("a log"));
    command.spawn().unwrap_or_else(|error| missing(&command, &error))
}

/// A command as an unprivileged user: both servers refuse to run as root.
fn command(program: &Path, dir: &Path) -> Command {
    let mut command = match is_root() {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]).arg(program);
            command
        }
        false => Command::new(program),
    };
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin")).env("HOME", dir).current_dir(dir);
    command.stdin(Stdio::null());
    command
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program of PostgreSQL where Debian puts it, which is not on the PATH.
fn postgres(program: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(program));
    found.filter(|path| path.exists()).max().unwrap_or_else(|| program.into())
}

fn done(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| missing(command, &error));
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn missing(command: &Command, error: &std::io::Error) -> ! {
    panic!("{command:?}: {error}; `make test` installs what is missing")
}
