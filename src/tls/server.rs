//! The server side of TLS: chooses a certificate by the name that a client asks for. Never accepts less than TLS 1.2.

use super::{KeyPair, ListedCertificates, TlsError, certificates};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, UnixTime},
    server::{
        ClientHello, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};
use webpki::EndEntityCert;
use x509_cert::{Certificate, der::Decode};

/// The protocols that the gateway offers inside TLS, the preferred one first (ALPN, RFC 7301).
pub(super) const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The certificates that clients can see.
#[derive(Debug)]
struct ServedCertificates {
    /// The first one of the configuration, for clients that name no host, or one that no certificate names.
    first: Arc<CertifiedKey>,
    /// Certificates by name in lower case. `*.example.com` matches names with one more label.
    by_name: HashMap<String, Arc<CertifiedKey>>,
}

/// Checks the certificate of a client as the TLS library does, and takes one that is listed itself.
#[derive(Debug)]
struct ListedClients {
    listed: ListedCertificates,
    others: Arc<dyn ClientCertVerifier>,
}

/// Reads the certificates, their keys and the authorities of client certificates, and makes the TLS configuration of the
/// listener.
///
/// # Errors
///
/// [`TlsError`] names the file that cannot be read or used, and the reason.
pub fn config(pairs: &[KeyPair], client_ca: Option<&Path>) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let shown = ServedCertificates::load(pairs, &provider)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&pairs[0].cert, error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let all = certificates(file)?;
            let (listed, mut roots) = (ListedCertificates::of(&all), RootCertStore::empty());
            for certificate in all {
                roots.add(certificate).map_err(|error| unusable(file, error))?;
            }
            let others = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let others = others.build().map_err(|error| unusable(file, error))?;
            builder.with_client_cert_verifier(Arc::new(ListedClients { listed, others }))
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(shown));
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    Ok(config)
}

/// Returns when the certificate of `pair` expires, in seconds of Unix time; `None` if it cannot be read.
pub fn expiry(pair: &KeyPair) -> Option<u64> {
    let chain = certificates(&pair.cert).ok()?;
    let certificate = Certificate::from_der(chain.first()?).ok()?;
    Some(certificate.tbs_certificate.validity.not_after.to_unix_duration().as_secs())
}

/// Returns the files that [`config`] reads, so that a change of one of them can be noticed.
pub fn files<'a>(
    pairs: &'a [KeyPair],
    client_ca: Option<&'a Path>,
) -> impl Iterator<Item = &'a Path> {
    pairs.iter().flat_map(|pair| [pair.cert.as_path(), pair.key.as_path()]).chain(client_ca)
}

fn unusable(file: &Path, error: impl ToString) -> TlsError {
    TlsError { file: file.to_owned(), reason: format!("cannot be used: {}", error.to_string()) }
}

// === impl ServedCertificates ===

impl ServedCertificates {
    fn load(pairs: &[KeyPair], provider: &CryptoProvider) -> Result<Self, TlsError> {
        let (mut first, mut by_name) = (None, HashMap::new());
        for pair in pairs {
            let (chain, key) = pair.load()?;
            let names = names(&chain[0]).map_err(|error| unusable(&pair.cert, error))?;
            let key = CertifiedKey::from_der(chain, key, provider);
            let key = Arc::new(key.map_err(|error| unusable(&pair.key, error))?);
            for name in names {
                // If two certificates have one name, clients see the first.
                by_name.entry(name).or_insert_with(|| key.clone());
            }
            first.get_or_insert(key);
        }
        let nothing = || TlsError { file: PathBuf::new(), reason: "no certificate".into() };
        Ok(Self { first: first.ok_or_else(nothing)?, by_name })
    }

    fn find(&self, name: Option<&str>) -> &Arc<CertifiedKey> {
        let Some(name) = name else { return &self.first };
        let name = name.to_ascii_lowercase();
        let wildcard = || Some(format!("*.{}", name.split_once('.')?.1));
        let found = self.by_name.get(&name).or_else(|| self.by_name.get(&wildcard()?));
        found.unwrap_or(&self.first)
    }
}

impl ResolvesServerCert for ServedCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.find(hello.server_name()).clone())
    }
}

// === impl ListedClients ===

impl ClientCertVerifier for ListedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.others.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.listed.of_client(shown, now) {
            None => self.others.verify_client_cert(shown, chain, now),
            Some(usable) => usable.map(|()| ClientCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.others.verify_tls12_signature(message, shown, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.others.verify_tls13_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.others.supported_verify_schemes()
    }
}

/// Returns the names that a certificate is for: its subject alternative names, never its common name (RFC 9525
/// section 6.3).
fn names(certificate: &CertificateDer<'_>) -> Result<Vec<String>, webpki::Error> {
    let certificate = EndEntityCert::try_from(certificate)?;
    Ok(certificate.valid_dns_names().map(str::to_ascii_lowercase).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;

    fn pair(directory: &Path, file: &str, names: &[&str]) -> KeyPair {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let file = directory.join(file);
        fs::write(&file, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
        KeyPair { cert: file.clone(), key: file }
    }

    #[rstest]
    #[case::no_name(None, 0)]
    #[case::exact(Some("b.example"), 1)]
    #[case::case_is_nothing(Some("B.Example"), 1)]
    #[case::wildcard(Some("x.w.example"), 2)]
    #[case::exact_before_wildcard(Some("a.w.example"), 3)]
    #[case::one_label_only(Some("x.y.w.example"), 0)]
    #[case::the_bare_name(Some("w.example"), 0)]
    #[case::unknown(Some("other.example"), 0)]
    fn the_certificate_is_the_one_that_names_the_host(
        #[case] name: Option<&str>,
        #[case] shown: usize,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let pairs = [
            pair(directory.path(), "0", &["a.example"]),
            pair(directory.path(), "1", &["b.example"]),
            pair(directory.path(), "2", &["*.w.example"]),
            pair(directory.path(), "3", &["a.w.example"]),
        ];
        let all = ServedCertificates::load(&pairs, &aws_lc_rs::default_provider()).unwrap();
        let expected = pairs[shown].load().unwrap().0;
        assert_eq!(all.find(name).cert, expected);
    }

    #[test]
    fn the_end_of_a_certificate_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        let mut parameters = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        parameters.not_after = rcgen::date_time_ymd(2031, 5, 6);
        let key = rcgen::KeyPair::generate().unwrap();
        let made = parameters.self_signed(&key).unwrap();
        fs::write(&file, made.pem()).unwrap();
        let pair = |cert: &Path| KeyPair { cert: cert.to_owned(), key: cert.to_owned() };
        assert_eq!(expiry(&pair(&file)), Some(1_935_792_000));
        assert_eq!(expiry(&pair(&directory.path().join("b"))), None);
    }

    #[test]
    fn a_key_of_another_certificate_is_found_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) =
            (pair(directory.path(), "0", &["a"]), pair(directory.path(), "1", &["a"]));
        let mixed = KeyPair { cert: one.cert, key: other.key.clone() };
        let error = config(&[mixed], None).unwrap_err();
        assert_eq!(error.file, other.key);
    }
}
