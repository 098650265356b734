//! The certificates of the data plane, read again when their files change. What cannot be used replaces nothing.

use super::{ServerError, system};
use crate::{
    config,
    tls::{Stamp, TlsError, server},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::sleep,
};
use tokio_rustls::rustls::ServerConfig;

/// How often the files are looked at. Looking finds what a notification may miss: files behind symbolic links that are
/// swapped, as secrets of Kubernetes are.
const LOOK: Duration = Duration::from_secs(2);

/// What connections take from.
pub(super) type Current = watch::Receiver<Arc<ServerConfig>>;

/// Reads them, and again on SIGHUP and when a file has changed, for as long as somebody takes them.
pub(super) fn open(tls: config::ServerTls) -> Result<Current, ServerError> {
    let hangup = signal(SignalKind::hangup()).map_err(system)?;
    // Before they are read, so that a change meanwhile is seen.
    let stamps = stamps(&tls);
    let (sender, current) = watch::channel(Arc::new(load(&tls).map_err(ServerError::Tls)?));
    tokio::spawn(follow(tls, stamps, hangup, sender));
    Ok(current)
}

fn load(tls: &config::ServerTls) -> Result<ServerConfig, TlsError> {
    server::config(&tls.certificates, tls.client_ca.as_deref())
}

fn stamps(tls: &config::ServerTls) -> Vec<Option<Stamp>> {
    let files = server::files(&tls.certificates, tls.client_ca.as_deref());
    files.map(Stamp::of).collect()
}

async fn follow(
    tls: config::ServerTls,
    mut seen: Vec<Option<Stamp>>,
    mut hangup: Signal,
    sender: watch::Sender<Arc<ServerConfig>>,
) {
    while !sender.is_closed() {
        let asked = tokio::select! {
            signal = hangup.recv() => signal.is_some(),
            () = sleep(LOOK) => false,
        };
        let now = stamps(&tls);
        if !asked && now == seen {
            continue;
        }
        seen = now;
        match load(&tls) {
            Ok(config) => {
                sender.send_replace(Arc::new(config));
                tracing::info!("certificates read again");
            }
            Err(TlsError { file, reason }) => {
                let file = file.display();
                tracing::error!(%file, reason, "new certificates cannot be used; the old ones stay");
            }
        }
    }
}
