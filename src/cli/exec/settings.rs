//! The configuration of a gateway for one command, made from the command's arguments.

use super::ExecArgs;
use crate::{
    cli::{
        CommandError,
        flags::{BRACKETS, FlagLimiters, PacingFlags, refuse_variables, scalar},
    },
    config::Config,
    tls::certificates,
    upstream::UrlOrigin,
};
use anyhow::Context;
use rustls::{RootCertStore, crypto::aws_lc_rs::default_provider, pki_types::CertificateDer};
use std::{fmt::Write, net::Ipv6Addr, path::Path, sync::Arc};

/// The names of the hosts that are paced, in the form in which they are compared; empty if all are.
pub(super) fn hosts(named: &[String]) -> Result<Vec<String>, CommandError> {
    let host = |name: &String| {
        // The letters that the host of a route may have.
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        let six = name.trim_start_matches('[').trim_end_matches(']').parse::<Ipv6Addr>();
        let origin = match six {
            Ok(six) => UrlOrigin::of(true, &format!("[{six}]")),
            Err(_) => UrlOrigin::of(true, name).filter(|_| is_name),
        };
        origin.map(|origin| String::from(origin.host)).ok_or_else(|| {
            let reason = "is no host; write its name alone, as in api.example";
            CommandError::usage(format!("error: --host: `{name}` {reason}"))
        })
    };
    let hosts: Result<Vec<String>, CommandError> = named.iter().map(host).collect();
    let mut hosts = hosts?;
    hosts.sort();
    hosts.dedup();
    Ok(hosts)
}

/// Makes the configuration.
///
/// # Errors
///
/// Names the arguments that are wrong, and what is wrong with each.
pub(super) fn config(args: &ExecArgs, only: &[String]) -> Result<Config, CommandError> {
    if args.pacing.limit.iter().any(|limit| limit.trim_matches(BRACKETS) == "auto") {
        let reason = "a command is too short to learn a rate; write one, as in `--limit 5/s`";
        return Err(CommandError::usage(format!("error: --limit: {reason}")));
    }
    refuse_variables(args.pacing.flags().chain([("--name", &args.name)]))?;
    let limiters = args.pacing.limiters(&args.name);
    limiters.config(&text(&args.pacing, only, &limiters)?)
}

fn text(
    pacing: &PacingFlags,
    only: &[String],
    limiters: &FlagLimiters,
) -> Result<String, CommandError> {
    // The time-outs are the command's own.
    let mut text = format!(
        "listen: 127.0.0.1:0\n\
         admin: {{ listen: 127.0.0.1:0, read: token, token: '{token}' }}\n\
         workers: 1\n\
         drain_timeout: 1s\n\
         client: {{ idle_timeout: 1h, body_timeout: 1h, header_timeout: 1min }}\n\
         limits: {{ headers: 1000, header_bytes: 1MiB, uri: 64000B }}\n\
         upstreams:\n  any: {{ url: 'http://192.0.2.1', connect_timeout: 10s, response_timeout: 1h }}\n\
         limiters:\n{limiters}",
        token = token()?,
        limiters = limiters.lines(),
    );
    if let Some(url) = pacing.store() {
        let _ = writeln!(text, "store: {{ url: {url}, timeout: 500ms }}");
    }
    let (names, max_wait) = (limiters.names(), pacing.max_wait());
    let route =
        format!("suffix: '*', limiters: {names}, max_wait: {max_wait}, max_waiting: 100000");
    text.push_str("routes:\n");
    if only.is_empty() {
        let _ = writeln!(text, "- {{ name: paced, {route} }}");
    } else {
        for (i, host) in only.iter().enumerate() {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            let _ = writeln!(text, "- {{ name: paced-{i}, host: {}, {route} }}", scalar(&host));
        }
        text.push_str("- { name: others, suffix: '*' }\n");
    }
    Ok(text)
}

/// A token that is never shown: other users of this machine can change nothing.
fn token() -> Result<String, CommandError> {
    let mut bytes = [0; 16];
    let filled = default_provider().secure_random.fill(&mut bytes);
    filled.ok().context("the system gives no random numbers")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The authorities by which vendors are checked: those that the command `inherited`, and those in a file.
pub(super) fn roots(
    inherited: &[CertificateDer<'static>],
    file: Option<&Path>,
) -> Result<Arc<RootCertStore>, CommandError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(inherited.iter().cloned());
    if let Some(file) = file {
        let all = certificates(file);
        let all =
            all.map_err(|error| CommandError::usage(format!("error: --upstream-ca: {error}")))?;
        if roots.add_parsable_certificates(all).0 == 0 {
            let file = file.display();
            return Err(CommandError::usage(format!(
                "error: --upstream-ca: {file}: holds no certificate that an authority can have"
            )));
        }
    }
    Ok(Arc::new(roots))
}
