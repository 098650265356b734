//! TLS with clients: which certificate, which protocol, whose clients, and new files without a restart.

mod protocols;
mod reload;

use crate::support::{Conn, Gateway, Upstream, eventually, request, self_signed};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rstest::rstest;
use std::{fs, path::Path, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        version::{TLS12, TLS13},
    },
};

/// A certificate authority of these tests, which signs certificates for servers and clients.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (params.signed_by(&key, &self.issuer).expect("a certificate"), key)
    }

    /// Writes a certificate for `name` and its key; the certificate.
    fn write(&self, directory: &Path, name: &str) -> CertificateDer<'static> {
        let (certificate, key) = self.sign(name);
        let file = |end: &str| directory.join(format!("{}.{end}", name.replace('*', "any")));
        fs::write(file("pem"), certificate.pem()).expect("write");
        fs::write(file("key"), key.serialize_pem()).expect("write");
        certificate.der().clone()
    }

    fn client(&self, alpn: &[&str]) -> ClientConfig {
        let mut config = self.builder().with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    fn builder(
        &self,
    ) -> tokio_rustls::rustls::ConfigBuilder<
        ClientConfig,
        tokio_rustls::rustls::client::WantsClientCert,
    > {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).expect("a root");
        ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
    }
}

async fn start(upstream: &Upstream, tls: &str, more: &str) -> Gateway {
    let routes = "routes: [{ name: all, suffix: \"*\" }]";
    Gateway::start(&format!("upstream: {}\ntls: {tls}\n{routes}\n{more}\n", upstream.url())).await
}

/// The keys `cert` and `key` of the configuration, for the files of a name.
fn pair(directory: &Path, name: &str) -> String {
    let file = directory.join(name);
    let file = file.display();
    format!("cert: {file}.pem, key: {file}.key")
}

async fn connect(
    gateway: &Gateway,
    config: ClientConfig,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(gateway.listen).await?;
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

#[rstest]
#[case::tls_1_2(&TLS12)]
#[case::tls_1_3(&TLS13)]
#[tokio::test(flavor = "multi_thread")]
async fn requests_pass_over_tls(
    #[case] version: &'static tokio_rustls::rustls::SupportedProtocolVersion,
) {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let authority = Authority::new();
    authority.write(directory.path(), "a.example");
    let gateway =
        start(&upstream, &format!("{{ {} }}", pair(directory.path(), "a.example")), "").await;
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate.der().clone()).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = connect(&gateway, config, "a.example").await.expect("a handshake");
    let mut conn = Conn::over(stream);
    for _ in 0..3 {
        conn.send(request("GET", "/", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").text(), "ok");
    }
    // A body larger than any buffer on the way.
    let body = vec![b'a'; 3 << 20];
    let length = body.len().to_string();
    conn.send(request("POST", "/", &[("Content-Length", &length)])).await.expect("send");
    conn.send(&body).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[3].body.len(), body.len());
}

#[rstest]
#[case::first("a.example", "a.example")]
#[case::second("b.example", "b.example")]
#[case::wildcard("x.w.example", "*.w.example")]
#[case::nobodys("c.example", "a.example")]
#[case::an_address("127.0.0.1", "a.example")]
#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_is_chosen_by_the_name(#[case] asked: &str, #[case] expected: &str) {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let (authority, path) = (Authority::new(), directory.path());
    let mut all = Vec::new();
    for name in ["a.example", "b.example", "*.w.example"] {
        all.push((name, authority.write(path, name)));
    }
    let tls = format!(
        "{{ {}, certificates: [{{ {} }}, {{ {} }}] }}",
        pair(path, "a.example"),
        pair(path, "b.example"),
        pair(path, "any.w.example"),
    );
    let gateway = start(&upstream, &tls, "").await;
    let mut config = authority.client(&[]);
    let seen = Arc::new(parking_lot::Mutex::new(None));
    config.dangerous().set_certificate_verifier(Arc::new(Looks(seen.clone())));
    connect(&gateway, config, asked).await.expect("a handshake");
    let (_, expected) = all.iter().find(|(name, _)| *name == expected).expect("one of them");
    assert_eq!(seen.lock().as_ref(), Some(expected));
}

/// Trusts every certificate, and remembers the last one.
#[derive(Debug)]
struct Looks(Arc<parking_lot::Mutex<Option<CertificateDer<'static>>>>);

impl tokio_rustls::rustls::client::danger::ServerCertVerifier for Looks {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: tokio_rustls::rustls::pki_types::UnixTime,
    ) -> Result<tokio_rustls::rustls::client::danger::ServerCertVerified, tokio_rustls::rustls::Error>
    {
        *self.0.lock() = Some(certificate.clone().into_owned());
        Ok(tokio_rustls::rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &tokio_rustls::rustls::DigitallySignedStruct,
    ) -> Result<
        tokio_rustls::rustls::client::danger::HandshakeSignatureValid,
        tokio_rustls::rustls::Error,
    > {
        Ok(tokio_rustls::rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &tokio_rustls::rustls::DigitallySignedStruct,
    ) -> Result<
        tokio_rustls::rustls::client::danger::HandshakeSignatureValid,
        tokio_rustls::rustls::Error,
    > {
        Ok(tokio_rustls::rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<tokio_rustls::rustls::SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_show_a_certificate_of_the_right_authority() {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let (authority, path) = (Authority::new(), directory.path());
    let (ours, theirs) = (Authority::new(), Authority::new());
    authority.write(path, "a.example");
    fs::write(path.join("ca.pem"), ours.certificate.pem()).expect("write");
    let ca = path.join("ca.pem");
    let tls = format!("{{ {}, client_ca: {} }}", pair(path, "a.example"), ca.display());
    let gateway = start(&upstream, &tls, "").await;
    let config = |signer: Option<&Authority>| match signer {
        None => authority.builder().with_no_client_auth(),
        Some(signer) => {
            let (certificate, key) = signer.sign("client");
            let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
            let chain = vec![certificate.der().clone()];
            authority.builder().with_client_auth_cert(chain, key).expect("a certificate")
        }
    };
    for (signer, served) in [(None, false), (Some(&theirs), false), (Some(&ours), true)] {
        // With TLS 1.3 a client sees a refusal only when it reads.
        let answer = async {
            let mut conn = Conn::over(connect(&gateway, config(signer), "a.example").await?);
            conn.send(request("GET", "/", &[])).await?;
            conn.answer().await
        };
        assert_eq!(answer.await.is_ok_and(|answer| answer.status == 200), served);
    }
    assert_eq!(upstream.calls().len(), 1);
    gateway.until_refused("tls", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_shows_a_self_signed_certificate_that_is_its_own_authority() {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let (authority, path) = (Authority::new(), directory.path());
    authority.write(path, "a.example");
    let (listed, other) = (self_signed("client", |_| {}), self_signed("client", |_| {}));
    fs::write(path.join("ca.pem"), &listed.0).expect("write");
    let ca = path.join("ca.pem");
    let tls = format!("{{ {}, client_ca: {} }}", pair(path, "a.example"), ca.display());
    let gateway = start(&upstream, &tls, "").await;
    for ((certificate, key), served) in [(listed, true), (other, false)] {
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("one")];
        let config = authority.builder().with_client_auth_cert(chain, key).expect("a certificate");
        let answer = async {
            let mut conn = Conn::over(connect(&gateway, config, "a.example").await?);
            conn.send(request("GET", "/", &[])).await?;
            conn.answer().await
        };
        assert_eq!(answer.await.is_ok_and(|answer| answer.status == 200), served);
    }
    assert_eq!(upstream.calls().len(), 1);
}

fn said(gateway: &Gateway, message: &str) -> usize {
    gateway.events().iter().filter(|event| event["message"] == message).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_waiting_is_noticed_over_tls() {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let authority = Authority::new();
    authority.write(directory.path(), "a.example");
    let yaml = format!(
        "upstream: {}\ntls: {{ {} }}\nlimiters: {{ slow: 1/min }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [slow], max_wait: 5m }}]\n",
        upstream.url(),
        pair(directory.path(), "a.example")
    );
    let gateway = Gateway::start(&yaml).await;
    let ask = async || {
        let stream = connect(&gateway, authority.client(&[]), "a.example").await.expect("TLS");
        let mut conn = Conn::over(stream);
        conn.send(request("POST", "/", &[("Content-Length", "5")])).await.expect("send");
        conn.send("hello").await.expect("send");
        conn
    };
    assert_eq!(ask().await.answer().await.expect("an answer").status, 200);
    let waiting = ask().await;
    gateway.until_waiting("all", 1).await;
    drop(waiting);
    gateway.until_waiting("all", 0).await;
    gateway.until_counted("all", "cancelled", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_connections_above_max_connections_are_closed() {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let authority = Authority::new();
    authority.write(directory.path(), "a.example");
    let tls = format!("{{ {} }}", pair(directory.path(), "a.example"));
    let gateway = start(&upstream, &tls, "client: { max_connections: 1 }").await;
    let stream = connect(&gateway, authority.client(&[]), "a.example").await.expect("TLS");
    assert!(connect(&gateway, authority.client(&[]), "a.example").await.is_err());
    gateway.until_refused("limit", 1).await;
    drop(stream);
    eventually("there is room", async || {
        connect(&gateway, authority.client(&[]), "a.example").await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_header_comes_before_tls() {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let authority = Authority::new();
    authority.write(directory.path(), "a.example");
    let tls = format!("{{ {} }}", pair(directory.path(), "a.example"));
    let more = "proxy_protocol: on\ntrusted_proxies: [127.0.0.1]";
    let gateway = start(&upstream, &tls, more).await;
    let mut tcp = TcpStream::connect(gateway.listen).await.expect("connect");
    let header = b"PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut tcp, header).await.expect("send");
    let name = ServerName::try_from("a.example").expect("a name");
    let connector = TlsConnector::from(Arc::new(authority.client(&[])));
    let mut conn = Conn::over(connector.connect(name, tcp).await.expect("a handshake"));
    conn.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].head.all("x-forwarded-for"), ["192.0.2.1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_no_response_over_tls_is_disconnected() {
    let upstream = Upstream::raw(|mut conn| async move {
        let Ok(Some(_)) = conn.head().await else { return };
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n";
        conn.send(head).await.expect("send");
        let piece = vec![b'a'; 1 << 20];
        while conn.send(&piece).await.is_ok() {}
    })
    .await;
    let (directory, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    authority.write(directory.path(), "a.example");
    let tls = format!("{{ {} }}", pair(directory.path(), "a.example"));
    let gateway = start(&upstream, &tls, "client: { body_timeout: 300ms }").await;
    let stream = connect(&gateway, authority.client(&[]), "a.example").await.expect("TLS");
    let mut conn = Conn::over(stream);
    conn.send(request("GET", "/", &[])).await.expect("send");
    gateway.until_refused("stalled", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_usable_files_the_gateway_does_not_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("paceway.yaml");
    fs::write(directory.path().join("bad.pem"), "nothing").expect("write");
    let text = "upstream: http://127.0.0.1:1\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\n\
                tls: { cert: bad.pem, key: bad.pem }\nroutes: [{ name: all, suffix: \"*\" }]\n";
    fs::write(&file, text).expect("write");
    let output = crate::support::paceway_in(
        directory.path(),
        &["run", "--config", file.to_str().expect("text")],
        &[],
    );
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("bad.pem"), "{said}");
}
