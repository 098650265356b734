//! Active health checks: asks each address of an upstream, at intervals, whether it works. A check is no request of a caller:
//! it passes no limiter, takes no permit, and is counted by a metric of its own.

use super::{
    balance::Address,
    cluster::Cluster,
    connect::{OpenError, OpenProgress, open},
    health::HealthCheck,
};
use http::{Request, StatusCode, Uri, header};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// A check that takes longer has failed, also where `every` is longer.
const LONGEST: Duration = Duration::from_secs(10);
const USER_AGENT: &str = concat!("paceway/", env!("CARGO_PKG_VERSION"), " health check");

/// Why a check has failed.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the check had no answer")]
    Http(#[from] hyper::Error),
    #[error("the check was answered with {0}")]
    Status(StatusCode),
    #[error("the check had no answer in time")]
    Timeout,
    /// The path and the host make no request. The configuration has checked both.
    #[error("the check is no request")]
    Request(#[from] http::Error),
}

/// Checks the addresses of those clusters that have checks, for as long as each of them exists, by one task each on the
/// current runtime.
pub(super) fn check_all(clusters: &[Arc<Cluster>]) {
    for cluster in clusters {
        if let Some(check) = cluster.settings.health.clone() {
            tokio::spawn(rounds(Arc::downgrade(cluster), check));
        }
    }
}

async fn rounds(cluster: Weak<Cluster>, check: HealthCheck) {
    loop {
        // A reload may have replaced it.
        let Some(cluster) = cluster.upgrade() else { return };
        let addresses = cluster.group.load().addresses.clone();
        let mut checks = JoinSet::new();
        for address in addresses {
            let (cluster, check) = (cluster.clone(), check.clone());
            checks.spawn(async move { once(&cluster, &check, &address).await });
        }
        drop(cluster);
        while checks.join_next().await.is_some() {}
        sleep(check.every).await;
    }
}

/// Checks one address, and notes the result.
async fn once(cluster: &Cluster, check: &HealthCheck, address: &Arc<Address>) {
    // A gateway without file descriptors learns nothing about the address.
    let Some(_socket) = cluster.settings.sockets.take().await else { return };
    let limit = check.every.min(LONGEST);
    let result = timeout(limit, ask(cluster, check, address)).await;
    let result = result.unwrap_or(Err(CheckError::Timeout));
    if matches!(&result, Err(CheckError::Open(error)) if error.is_own()) {
        return;
    }
    let changes = address.health.note(result.is_ok(), check);
    cluster.checked(address, changes, result.as_ref().err().map(|error| error as _));
}

async fn ask(cluster: &Cluster, check: &HealthCheck, address: &Address) -> Result<(), CheckError> {
    let (stream, is_http2) = open(cluster, address, &OpenProgress::default()).await?;
    let io = TokioIo::new(stream);
    let target = &cluster.settings.targets[address.target];
    let request = Request::get(check.path.as_str()).header(header::USER_AGENT, USER_AGENT);
    let response = if is_http2 {
        let uri = Uri::builder()
            .scheme(target.origin.scheme_str().unwrap_or("http"))
            .authority(target.host.as_bytes())
            .path_and_query(check.path.clone())
            .build()?;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        sender.send_request(request.uri(uri).body(String::new())?).await?
    } else {
        let (mut sender, connection) = http1::handshake(io).await?;
        // The task ends with this check.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let request = request.header(header::HOST, &target.host);
        let request = request.header(header::CONNECTION, "close");
        sender.send_request(request.body(String::new())?).await?
    };
    match response.status() {
        status if status.is_success() || status.is_redirection() => Ok(()),
        status => Err(CheckError::Status(status)),
    }
}
