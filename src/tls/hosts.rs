//! The TLS side of the hosts that the forward proxy stands for: a certificate for each, signed when it is first needed.

use super::{
    authority::{Authority, SigningError, unix_now},
    server::PROTOCOLS,
};
use hashlink::LruCache;
use parking_lot::Mutex;
use rustls::{ServerConfig, crypto::aws_lc_rs, server::NoServerSessionStorage};
use std::sync::Arc;

/// The most hosts whose certificates are kept. The one that was used longest ago makes room for another.
const MOST: usize = 1024;

/// Why TLS with a client cannot be set up for a host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No certificate can have the name.
    #[error(transparent)]
    Signing(#[from] SigningError),
    /// The TLS library refused the certificate.
    #[error("the certificate cannot be used")]
    Tls(#[from] rustls::Error),
}

/// The certificates for hosts, shared by all workers.
#[derive(Debug)]
pub struct HostCertificates {
    authority: Authority,
    known: Mutex<LruCache<Box<str>, KnownHost>>,
}

#[derive(Debug)]
struct KnownHost {
    config: Arc<ServerConfig>,
    renew_at: u64,
}

// === impl HostCertificates ===

impl HostCertificates {
    /// Begins without any host.
    pub fn new(authority: Authority) -> Self {
        Self { authority, known: Mutex::new(LruCache::new(MOST)) }
    }

    /// Returns the TLS configuration for a host, a DNS name in small letters or an IP address. Its certificate is signed if
    /// none is kept, or half of the time of the kept one is over.
    ///
    /// # Errors
    ///
    /// [`HostError`] if no certificate can have this name.
    pub fn config(&self, host: &str) -> Result<Arc<ServerConfig>, HostError> {
        let mut known = self.known.lock();
        if let Some(kept) = known.get(host).filter(|kept| unix_now() < kept.renew_at) {
            return Ok(kept.config.clone());
        }
        let signed = self.authority.sign(host)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
        let mut config = builder.with_single_cert(signed.chain, signed.key)?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        // The sessions of a thousand hosts would be kept for clients that are near.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let config = Arc::new(config);
        let kept = KnownHost { config: config.clone(), renew_at: signed.renew_at };
        known.insert(host.into(), kept);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_its_certificate_and_the_oldest_makes_room() {
        let hosts = HostCertificates::new(Authority::in_memory().unwrap());
        let first = hosts.config("0.example").unwrap();
        for i in 1..MOST {
            hosts.config(&format!("{i}.example")).unwrap();
        }
        assert!(Arc::ptr_eq(&first, &hosts.config("0.example").unwrap()));
        let second = hosts.config("1.example").unwrap();
        hosts.config("other.example").unwrap();
        assert_eq!(hosts.known.lock().len(), MOST);
        // 2.example was asked for longest ago.
        assert!(hosts.known.lock().peek("2.example").is_none());
        assert!(Arc::ptr_eq(&second, &hosts.config("1.example").unwrap()));
    }

    #[test]
    fn a_certificate_is_signed_again_when_half_of_its_time_is_over() {
        let hosts = HostCertificates::new(Authority::in_memory().unwrap());
        let first = hosts.config("a.example").unwrap();
        for (_, kept) in hosts.known.lock().iter_mut() {
            kept.renew_at = unix_now();
        }
        assert!(!Arc::ptr_eq(&first, &hosts.config("a.example").unwrap()));
        assert_eq!(hosts.known.lock().len(), 1);
    }
}
