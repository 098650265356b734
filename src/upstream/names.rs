//! Looks up the names of upstreams again whenever the time of their DNS answer is over. One task a name serves all
//! workers. Makes no connection to an upstream.

use super::{checks::check_all, cluster::Cluster};
use crate::tls::Stamp;
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::Name,
    system_conf::read_system_conf,
};
use std::{
    error::Error,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};

/// The shortest and the longest time that a DNS answer is used: servers give TTLs from 0 to days.
const USED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// The first and the longest pause after a failed lookup. It doubles with each further failure.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The time-out of one question to one DNS server; another server is asked after it.
const QUESTION: Duration = Duration::from_secs(2);
/// The time-out of a whole lookup, which may ask several servers for several search domains.
const LOOKUP: Duration = Duration::from_secs(10);
/// The files that configure names on the system. They are read again when one of them has changed.
const SYSTEM: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// Asks the DNS servers of the configuration (`resolver`), or those of the system if it names none.
struct Resolver {
    servers: Arc<[SocketAddr]>,
    made: Option<(TokioResolver, [Option<Stamp>; 2])>,
}

/// The reason why a lookup gave no address.
#[derive(Debug, thiserror::Error)]
enum NameError {
    #[error("the DNS servers did not answer in time")]
    Timeout,
    #[error("the name has no address")]
    Empty,
    #[error(transparent)]
    Net(#[from] NetError),
}

/// Keeps the addresses of all names fresh, and checks the addresses of upstreams with health checks, while their cluster
/// exists, by one task each on the current runtime. The DNS `servers` are asked in place of the system's; an empty list means
/// the system's.
pub fn follow(clusters: &[Arc<Cluster>], servers: &[SocketAddr]) {
    let servers: Arc<[SocketAddr]> = servers.into();
    check_all(clusters);
    for cluster in clusters {
        for (target, of) in cluster.unresolved() {
            let resolver = Resolver { servers: servers.clone(), made: None };
            let name = of.host_name().to_owned();
            tokio::spawn(refresh(Arc::downgrade(cluster), target, name, resolver));
        }
    }
}

/// Looks up the addresses of a name once, for a connection that no upstream makes. An empty list of `servers` means the
/// system's.
pub(super) async fn lookup(
    name: &str,
    servers: &[SocketAddr],
) -> Result<Vec<IpAddr>, Box<dyn Error + Send + Sync>> {
    let mut resolver = Resolver { servers: servers.into(), made: None };
    Ok(resolver.lookup(name).await?.0)
}

/// Looks up one name while its cluster exists, each time when the answer before is used up.
async fn refresh(cluster: Weak<Cluster>, target: usize, name: String, mut resolver: Resolver) {
    let mut pause = PAUSE.0;
    loop {
        let answer = resolver.lookup(&name).await;
        // A reload may have replaced it.
        let Some(cluster) = cluster.upgrade() else { return };
        let kept = match answer {
            Ok((ips, until)) => {
                cluster.resolved(target, ips.into_iter());
                pause = PAUSE.0;
                until.saturating_duration_since(Instant::now()).clamp(USED.0, USED.1)
            }
            Err(error) => {
                tracing::debug!(name, %error, "not resolved");
                cluster.not_resolved(target, error);
                let longer = (pause * 2).min(PAUSE.1);
                std::mem::replace(&mut pause, longer)
            }
        };
        drop(cluster);
        sleep(kept).await;
    }
}

// === impl Resolver ===

impl Resolver {
    /// The addresses of a name, and the instant until which the answer may be used.
    async fn lookup(&mut self, name: &str) -> Result<(Vec<IpAddr>, Instant), NameError> {
        let stamps = SYSTEM.map(|file| Stamp::of(Path::new(file)));
        let resolver = match &mut self.made {
            Some((resolver, made)) if *made == stamps => resolver,
            made => &mut made.insert((resolver(&self.servers)?, stamps)).0,
        };
        // Docker Compose makes names such as `stack_api`, which a strict reading by IDNA refuses.
        let asked = Name::from_str_relaxed(name).map_err(NetError::from)?;
        let answer = timeout(LOOKUP, resolver.lookup_ip(asked)).await;
        let answer = answer.map_err(|_| NameError::Timeout)??;
        let ips: Vec<_> = answer.iter().collect();
        if ips.is_empty() {
            return Err(NameError::Empty);
        }
        Ok((ips, Instant::from_std(answer.valid_until())))
    }
}

fn resolver(servers: &[SocketAddr]) -> Result<TokioResolver, NetError> {
    // Without /etc/resolv.conf the system asks a server on this machine. The names in /etc/hosts are read nevertheless.
    let (config, mut options) = read_system_conf().unwrap_or_else(|_| {
        let own = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
        (ResolverConfig::from_name_servers(vec![own]), ResolverOpts::default())
    });
    options.timeout = options.timeout.min(QUESTION);
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // The cluster keeps the answers.
    options.cache_size = 0;
    let config = match servers {
        [] => config,
        servers => {
            let (domain, search, _) = config.into_parts();
            let servers = servers.iter().map(|server| {
                let mut ways = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
                ways.iter_mut().for_each(|way| way.port = server.port());
                NameServerConfig::new(server.ip(), true, ways)
            });
            ResolverConfig::from_parts(domain, search, servers.collect())
        }
    };
    let provider = TokioRuntimeProvider::default();
    TokioResolver::builder_with_config(config, provider).with_options(options).build()
}
