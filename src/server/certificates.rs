//! The certificates that clients see, read again when their files change. Files that cannot be used replace nothing.

use super::error::{ServerError, system};
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

/// How often the files are checked for a change. A check finds what a file notification misses: symbolic links that are
/// swapped, which is how Kubernetes updates a secret.
const LOOK: Duration = Duration::from_secs(2);

/// The certificates for the next handshake.
pub(super) type CurrentCertificates = watch::Receiver<Arc<ServerConfig>>;

/// Reads the certificates, and reads them again on SIGHUP and within 2 s of a change, until the last receiver is dropped.
///
/// # Errors
///
/// [`ServerError::Tls`] names the file that cannot be used at the start.
pub(super) fn open(tls: config::ServerTls) -> Result<CurrentCertificates, ServerError> {
    let hangup = signal(SignalKind::hangup()).map_err(system)?;
    // Stamped before they are read, so that a change in between is found.
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
