//! The TLS side of the hosts that the forward proxy stands for: a certificate for each, signed when it is first needed.

use super::{
    authority::{Authority, SigningError, unix_now},
    server::PROTOCOLS,
};
use parking_lot::Mutex;
use rustls::{ServerConfig, crypto::aws_lc_rs, server::NoServerSessionStorage};
use std::{collections::HashMap, sync::Arc};

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
    known: Mutex<KnownHosts>,
}

#[derive(Debug, Default)]
struct KnownHosts {
    by_name: HashMap<Box<str>, KnownHost>,
    /// Counts the questions, by which the oldest host is found.
    asked: u64,
}

#[derive(Debug)]
struct KnownHost {
    config: Arc<ServerConfig>,
    renew_at: u64,
    asked: u64,
}

// === impl HostCertificates ===

impl HostCertificates {
    /// Begins without any host.
    pub fn new(authority: Authority) -> Self {
        Self { authority, known: Mutex::default() }
    }

    /// Returns the TLS configuration for a host, a DNS name in small letters or an IP address. Its certificate is signed if
    /// none is kept, or half of the time of the kept one is over.
    ///
    /// # Errors
    ///
    /// [`HostError`] if no certificate can have this name.
    pub fn config(&self, host: &str) -> Result<Arc<ServerConfig>, HostError> {
        let mut known = self.known.lock();
        known.asked += 1;
        let asked = known.asked;
        if let Some(kept) = known.by_name.get_mut(host).filter(|kept| unix_now() < kept.renew_at) {
            kept.asked = asked;
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
        if known.by_name.len() >= MOST {
            let oldest = known.by_name.iter().min_by_key(|(_, kept)| kept.asked);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| known.by_name.remove(&name));
        }
        let kept = KnownHost { config: config.clone(), renew_at: signed.renew_at, asked };
        known.by_name.insert(host.into(), kept);
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
        assert_eq!(hosts.known.lock().by_name.len(), MOST);
        // 2.example was asked for longest ago.
        assert!(!hosts.known.lock().by_name.contains_key("2.example"));
        assert!(Arc::ptr_eq(&second, &hosts.config("1.example").unwrap()));
    }

    #[test]
    fn a_certificate_is_signed_again_when_half_of_its_time_is_over() {
        let hosts = HostCertificates::new(Authority::in_memory().unwrap());
        let first = hosts.config("a.example").unwrap();
        for kept in hosts.known.lock().by_name.values_mut() {
            kept.renew_at = unix_now();
        }
        assert!(!Arc::ptr_eq(&first, &hosts.config("a.example").unwrap()));
        assert_eq!(hosts.known.lock().by_name.len(), 1);
    }
}
