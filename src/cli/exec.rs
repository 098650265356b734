//! `paceway exec`: a command whose calls are paced by a gateway in this process, which ends with it. Prints nothing on stdout.

mod child;
mod environment;
mod files;
mod settings;

use super::{CommandError, flags::PacingFlags, log};
use crate::{
    server::{BesideCommand, ForwardHosts, ForwardSettings, Server},
    tls::Authority,
};
use anyhow::{Context, anyhow};
use child::{DescriptorLimit, run_to_end};
use environment::CommandEnvironment;
use files::{CommandFiles, inherited_authorities};
use std::{ffi::OsString, path::PathBuf, sync::atomic::Ordering::Relaxed, thread};
use tokio::sync::oneshot;

const PROGRAMS: &str = "\
Paced are programs that find a proxy by HTTPS_PROXY or HTTP_PROXY and an authority by SSL_CERT_FILE or a variable of their \
own: curl, Python (requests, httpx, urllib), Node, Go, git, cargo, Terraform and its providers. Not paced are Python's \
http.client, Java without -Dhttps.proxyHost, calls of Go to loopback addresses, and programs with authorities of their own. \
docs/forward.md says more.";

#[derive(Debug, clap::Args)]
#[command(override_usage = "paceway exec [OPTIONS] --limit <RATE> -- <COMMAND>...", after_help = PROGRAMS)]
pub(super) struct ExecArgs {
    #[command(flatten)]
    pacing: PacingFlags,
    /// A host whose calls are paced; all others are passed on as they are. By default all are paced.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    host: Vec<String>,
    /// Authorities of vendors beside those that the command trusts, in PEM.
    #[arg(long, value_name = "FILE")]
    upstream_ca: Option<PathBuf>,
    /// The name of the limits in the store: commands with one name share them.
    #[arg(long, default_value = "exec")]
    name: String,
    /// The command and its arguments.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

pub(super) fn exec(args: &ExecArgs) -> Result<(), CommandError> {
    let _flush = log::start_quietly()?;
    let only = settings::hosts(&args.host)?;
    let config = settings::config(args, &only)?;
    // Before it is raised for the gateway.
    let descriptors = DescriptorLimit::current();
    let authority = Authority::in_memory().context("cannot make an authority")?;
    let mut trusted = inherited_authorities();
    let roots = settings::roots(&trusted, args.upstream_ca.as_deref())?;
    trusted.push(authority.certificate().clone());
    let hosts = ForwardHosts::Any { only: only.clone(), roots };
    let forward = ForwardSettings::new(authority, hosts);
    let is_used = forward.is_used();
    let server = Server::bind_for_command(config, forward);
    let server = server.map_err(anyhow::Error::new)?;
    let (proxy, _) = server.addresses();
    let (ready, is_ready) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let gateway = thread::Builder::new().name("gateway".into());
    let gateway = gateway.spawn(move || server.run_with_command(BesideCommand { ready, ended }));
    let gateway = gateway.context("cannot start the gateway")?;
    if is_ready.blocking_recv().is_err() {
        let failed = gateway.join().unwrap_or(Ok(()));
        failed.map_err(anyhow::Error::new)?;
        return Err(anyhow!("the gateway did not start; this is a bug").into());
    }
    let environment = || Ok(CommandEnvironment::new(proxy, CommandFiles::write(&trusted)?, &only));
    let code = run_to_end(&args.command, environment, &descriptors);
    drop(end);
    // The command has ended, and with it all that the gateway is for.
    drop(gateway.join());
    let code = code?;
    if !is_used.load(Relaxed) {
        tracing::warn!(
            "no call was paced: the command made none, none through the proxy, or none to a `--host`; `paceway exec --help` says \
             which programs use the proxy"
        );
    }
    match code {
        0 => Ok(()),
        code => Err(CommandError { code, message: String::new() }),
    }
}
