//! An authority that signs what a test needs, and a redis-server that speaks TLS with it.

use super::{Redis, free_port};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::{fs, path::Path, sync::Arc};
use tokio_rustls::rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};

/// A certificate authority that signs the certificates of one test.
#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

// === impl Authority ===

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // No two have one name: a client that meets the wrong one does not know it.
        let name = format!("authority {:x}", fastrand::u64(..));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("ca.pem"), &pem).expect("a file");
        Self { pem, issuer: Issuer::new(params, key), dir }
    }

    /// A certificate for `name` and its key, in PEM.
    pub(crate) fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// A server called `name`; with `clients` it asks for a certificate of that authority.
    pub(crate) fn server(
        &self,
        name: &str,
        versions: &[&'static SupportedProtocolVersion],
        clients: Option<&Self>,
    ) -> ServerConfig {
        let (certificate, key) = self.sign(name);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(versions).expect("versions");
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(der(&clients.pem)).expect("an authority");
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(verifier.expect("a verifier"))
            }
        };
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
        builder.with_single_cert(vec![der(&certificate)], key).expect("a certificate")
    }

    /// The path of the file with the authority's own certificate.
    pub(crate) fn file(&self) -> String {
        text(&self.dir.path().join("ca.pem"))
    }

    /// The files of a new certificate for `name` and of its key.
    pub(crate) fn files(&self, name: &str) -> (String, String) {
        let (certificate, key) = self.sign(name);
        let path = |kind: &str| self.dir.path().join(format!("{name}.{kind}.pem"));
        fs::write(path("cert"), certificate).expect("a file");
        fs::write(path("key"), key).expect("a file");
        (text(&path("cert")), text(&path("key")))
    }

    /// Arguments for a server called `name` that speaks TLS on a port, and that port; it lets in `who`: `yes` only
    /// those with a certificate of this authority, `no` all.
    pub(crate) fn arguments(&self, name: &str, who: &str) -> (Vec<String>, u16) {
        let (cert, key) = self.files(name);
        let port = free_port();
        let words = [
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &cert,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &self.file(),
            "--tls-auth-clients",
            who,
        ];
        (words.map(str::to_owned).into(), port)
    }

    /// A server called `localhost`, and the port on which it speaks TLS.
    pub(crate) fn redis(&self, who: &str) -> (Redis, u16) {
        let (words, port) = self.arguments("localhost", who);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        (Redis::with(&words), port)
    }
}

/// A certificate for `name` that is its own authority, as `openssl req -x509` makes it, and its key, in PEM.
pub(crate) fn self_signed(
    name: &str,
    change: impl FnOnce(&mut CertificateParams),
) -> (String, String) {
    let mut params = CertificateParams::new([name.to_owned()]).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    change(&mut params);
    let key = KeyPair::generate().expect("a key");
    (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
}

/// A server that shows this certificate.
pub(crate) fn showing((certificate, key): &(String, String)) -> ServerConfig {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let builder = builder.with_no_client_auth();
    builder.with_single_cert(vec![der(certificate)], key).expect("a certificate")
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

fn text(path: &Path) -> String {
    path.to_str().expect("a readable path").to_owned()
}
