//! The certificates that clients see, read again when their files change. Files that cannot be used replace nothing.

use crate::{
    config, metrics,
    tls::{Stamp, TlsError, server},
};
use ::metrics::Gauge;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;

/// The certificates that clients see. Each handshake takes the current ones.
pub(super) struct Certificates {
    files: Mutex<CertificateFiles>,
    current: watch::Sender<Option<Arc<ServerConfig>>>,
}

/// The files of the certificates, as they were read last.
struct CertificateFiles {
    tls: Option<config::ServerTls>,
    /// A stamp finds what a file notification misses: symbolic links that are swapped, which is how Kubernetes updates a
    /// secret.
    stamps: Vec<Option<Stamp>>,
    /// The ends of the certificates as metrics, which last as long as these handles.
    _expiries: Vec<Gauge>,
}

/// Certificates that were read and are not shown yet, with the stamps of their files before they were read.
pub(super) struct NewCertificates {
    stamps: Vec<Option<Stamp>>,
    config: Option<Arc<ServerConfig>>,
}

// === impl Certificates ===

impl Certificates {
    /// Reads the certificates; `None` means that clients speak clear text.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the file that cannot be used.
    pub(super) fn open(tls: Option<config::ServerTls>) -> Result<Self, TlsError> {
        let NewCertificates { stamps, config } = NewCertificates::read(&tls)?;
        let _expiries = expiries(&tls);
        let files = Mutex::new(CertificateFiles { tls, stamps, _expiries });
        Ok(Self { files, current: watch::Sender::new(config) })
    }

    pub(super) fn current(&self) -> watch::Receiver<Option<Arc<ServerConfig>>> {
        self.current.subscribe()
    }

    /// Reads the certificates of `tls`; `None` if these are the files that are in use.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the file that cannot be used.
    pub(super) fn of(
        &self,
        tls: &Option<config::ServerTls>,
    ) -> Result<Option<NewCertificates>, TlsError> {
        if self.files.lock().tls == *tls { Ok(None) } else { NewCertificates::read(tls).map(Some) }
    }

    /// Shows the certificates that [`Self::of`] has read for `tls` from now on.
    pub(super) fn set(&self, tls: Option<config::ServerTls>, new: Option<NewCertificates>) {
        let Some(NewCertificates { stamps, config }) = new else { return };
        let _expiries = expiries(&tls);
        *self.files.lock() = CertificateFiles { tls, stamps, _expiries };
        self.current.send_replace(config);
    }

    /// Reads the files again if one has changed, or if an operator has `asked` for it.
    pub(super) fn refresh(&self, asked: bool) {
        let mut files = self.files.lock();
        if files.tls.is_none() {
            return;
        }
        let stamps = stamps(&files.tls);
        if !asked && stamps == files.stamps {
            return;
        }
        files.stamps = stamps;
        match NewCertificates::read(&files.tls) {
            Ok(new) => {
                files._expiries = expiries(&files.tls);
                self.current.send_replace(new.config);
                tracing::info!("certificates read again");
            }
            Err(TlsError { file, reason }) => {
                let file = file.display();
                tracing::error!(%file, reason, "new certificates cannot be used; the old ones stay");
            }
        }
    }
}

// === impl NewCertificates ===

impl NewCertificates {
    fn read(tls: &Option<config::ServerTls>) -> Result<Self, TlsError> {
        // Stamped before they are read, so that a change in between is found.
        let stamps = stamps(tls);
        let load = |tls: &config::ServerTls| {
            server::config(&tls.certificates, tls.client_ca.as_deref()).map(Arc::new)
        };
        Ok(Self { stamps, config: tls.as_ref().map(load).transpose()? })
    }
}

/// Sets the metric with the end of each certificate.
fn expiries(tls: &Option<config::ServerTls>) -> Vec<Gauge> {
    let pairs = tls.iter().flat_map(|tls| &tls.certificates);
    let shown = pairs.filter_map(|pair| {
        let gauge = metrics::CERTIFICATES.level(&[&pair.cert.display().to_string()]);
        gauge.set(server::expiry(pair)? as f64);
        Some(gauge)
    });
    shown.collect()
}

fn stamps(tls: &Option<config::ServerTls>) -> Vec<Option<Stamp>> {
    let files = |tls: &config::ServerTls| {
        let config::ServerTls { certificates, client_ca } = tls;
        server::files(certificates, client_ca.as_deref()).map(Stamp::of).collect()
    };
    tls.as_ref().map(files).unwrap_or_default()
}
