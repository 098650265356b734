//! The environment of a command: the variables by which its programs find the proxy and trust its authority.

use super::files::CommandFiles;
use crate::upstream::METADATA;
use ipnet::IpNet;
use std::{
    env,
    ffi::OsString,
    net::{IpAddr, SocketAddr},
};
use tokio::process::Command;

/// The variables that name a proxy. curl reads `http_proxy` in small letters only; cargo has one of its own.
const PROXY: [&str; 5] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "CARGO_HTTP_PROXY"];
/// The variables that name a file of authorities: of OpenSSL and Go, of Python, curl, Node, git, cargo, Amazon's tools, Deno,
/// gRPC, pip, Google's tools and Nix.
pub(super) const AUTHORITIES: [&str; 13] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "PIP_CERT",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "HTTPLIB2_CA_CERTS",
    "NIX_SSL_CERT_FILE",
];
const WITHOUT_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// Names of metadata services, to whose addresses the proxy does not lead.
const METADATA_NAMES: [&str; 2] = ["metadata.google.internal", "metadata.tencentyun.com"];

/// The variables that a command gets in addition to ours, or in their place.
pub(super) struct CommandEnvironment {
    variables: Vec<(&'static str, OsString)>,
    /// Removed with these variables.
    _files: CommandFiles,
}

// === impl CommandEnvironment ===

impl CommandEnvironment {
    /// Names the `proxy` and the files. `only` are the hosts that are paced; all are if it is empty.
    pub(super) fn new(proxy: SocketAddr, files: CommandFiles, only: &[String]) -> Self {
        let url: OsString = format!("http://{proxy}").into();
        let mut all: Vec<_> = PROXY.iter().map(|name| (*name, url.clone())).collect();
        all.extend(AUTHORITIES.iter().map(|name| (*name, files.authorities.clone().into())));
        // Node reads the variables of a proxy only if another one says so, and before version 24.5 only with a script.
        all.push(("NODE_USE_ENV_PROXY", "1".into()));
        let mut options = env::var_os("NODE_OPTIONS").unwrap_or_default();
        options.push(format!(" --require \"{}\"", files.node.display()));
        all.push(("NODE_OPTIONS", options));
        // A program reads one of the two.
        let inherited = WITHOUT_PROXY.iter().filter_map(|name| env::var(name).ok());
        let without = without_proxy(&inherited.collect::<Vec<_>>().join(","), only);
        all.extend(WITHOUT_PROXY.iter().map(|name| (*name, OsString::from(&without))));
        Self { variables: all, _files: files }
    }

    /// Gives the variables to a command.
    pub(super) fn set(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

/// The hosts that are reached without the proxy: those that are so already, unless they are to be paced.
fn without_proxy(inherited: &str, only: &[String]) -> String {
    let entries = inherited.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let stays = |entry: &&str| !only.is_empty() && !only.iter().any(|host| names(entry, host));
    let all = entries.filter(stays).chain(METADATA_NAMES).map(str::to_owned);
    all.chain(METADATA.map(|ip| ip.to_string())).collect::<Vec<_>>().join(",")
}

/// Whether an entry of `NO_PROXY` means a host.
fn names(entry: &str, host: &str) -> bool {
    if let (Ok(network), Ok(ip)) = (entry.parse::<IpNet>(), host.parse::<IpAddr>()) {
        return network.contains(&ip);
    }
    let entry = entry
        .rsplit_once(':')
        .filter(|(name, _)| !name.contains(':'))
        .map_or(entry, |(name, _)| name);
    let below = entry.trim_start_matches("*.").trim_start_matches('.').to_ascii_lowercase();
    entry == "*" || host == below || host.ends_with(&format!(".{below}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::all_are_paced("localhost,.corp", &[], "")]
    #[case::others_stay("localhost, .corp,", &["api.example"], "localhost,.corp,")]
    #[case::the_host("api.example:443,a", &["api.example"], "a,")]
    #[case::names_above_it(".example,*.example,example,xample", &["api.example"], "xample,")]
    #[case::everything("*", &["api.example"], "")]
    #[case::networks("10.0.0.0/8,11.0.0.0/8", &["10.1.2.3"], "11.0.0.0/8,")]
    fn paced_hosts_are_reached_through_the_proxy(
        #[case] inherited: &str,
        #[case] only: &[&str],
        #[case] expected: &str,
    ) {
        let only: Vec<_> = only.iter().map(|host| (*host).to_owned()).collect();
        let all = without_proxy(inherited, &only);
        let (own, metadata) = all.split_at(expected.len());
        assert_eq!(own, expected);
        assert!(metadata.starts_with("metadata.google.internal,"), "{metadata}");
        assert!(metadata.contains(",169.254.169.254,") && metadata.ends_with(",fd00:42::42"));
    }
}
