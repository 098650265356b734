//! TLS on the connections to the servers of a store, with the feature `tls`; `no_tls.rs` takes its place without. Sends no
//! command.

use super::{
    reason::{ConnectError, failure},
    transport::RedisStream,
    url::Endpoint,
};
use crate::tls::client::{Chain, ClientTls, Connector};
use rustls::{
    AlertDescription as Alert, CertificateError as Bad, ClientConfig, Error, RootCertStore,
    crypto::aws_lc_rs, pki_types::ServerName,
};
use std::{io, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The settings for TLS of a URL.
pub(super) type Settings = ClientTls;

/// TLS with these settings.
pub(super) struct Tls {
    settings: Settings,
    connector: Connector,
}

/// The settings of a URL that asks for TLS and says no more.
pub(super) fn settings(_scheme: &str) -> Result<Box<Settings>, String> {
    Ok(Box::default())
}

/// Explains an error of TLS, with the cure.
pub(super) fn explain(error: &io::Error) -> Option<String> {
    let tls = error.get_ref()?.downcast_ref::<Error>()?;
    Some(format!("by TLS: {tls}{}", advice(tls)))
}

/// Whether the server at the other end of `stream`, whose name is `host`, takes the beginning of a handshake for one. `None`
/// if that cannot be seen.
pub(super) async fn is_spoken(host: &str, stream: TcpStream) -> Option<bool> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    // No authority is trusted: a refused certificate shows that the server speaks TLS.
    let config = builder.ok()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let error = TlsConnector::from(Arc::new(config)).connect(name, stream).await.err()?;
    let said = error.get_ref()?.downcast_ref::<Error>()?;
    Some(matches!(said, Error::InvalidCertificate(_) | Error::AlertReceived(_)))
}

// === impl Tls ===

impl Tls {
    /// Reads the certificates that the settings name.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Refused`] when a certificate or key cannot be read.
    pub(super) fn new(settings: &Settings) -> Result<Self, ConnectError> {
        let connector = Connector::new(settings, &[], &mut None);
        let connector = connector.map_err(|e| ConnectError::Refused(Chain(&e).to_string()))?;
        Ok(Self { settings: settings.clone(), connector })
    }

    /// Makes the handshake with the server at `endpoint`, whose name is `host`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
        endpoint: &Endpoint,
    ) -> Result<RedisStream, ConnectError> {
        let name = self.settings.name_of(host);
        let name = name.map_err(|error| ConnectError::Refused(Chain(&error).to_string()))?;
        let connector = self.connector.current("the store");
        let stream = connector.connect(name, stream).await;
        Ok(Box::new(stream.map_err(|error| failure(endpoint, &error))?))
    }
}

fn advice(error: &Error) -> &'static str {
    match error {
        Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "; name the authority of its certificate in `store.tls.ca`"
        }
        Error::InvalidCertificate(Bad::NotValidForNameContext { presented, .. })
            if presented.is_empty() =>
        {
            "; its certificate has no subjectAltName, and a common name alone is not read: make one that has it"
        }
        Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "; its certificate is for another name: write that one in `store.tls.server_name`"
        }
        Error::InvalidCertificate(_) => "; its certificate cannot be believed",
        Error::AlertReceived(
            Alert::CertificateRequired
            | Alert::HandshakeFailure
            | Alert::BadCertificate
            | Alert::UnknownCA
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::AccessDenied,
        ) => {
            "; it wants a certificate of ours: name one that it believes in `store.tls.cert` and `store.tls.key`"
        }
        _ => "",
    }
}
