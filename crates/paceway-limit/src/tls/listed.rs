//! Certificates that are their own authority, as `openssl req -x509` makes them. The TLS library takes no certificate that
//! may sign others for that of a server or client. One that the file of authorities holds byte for byte is taken here: its
//! key could sign a certificate for any name. The date, the purpose and the name still count. Checks no chain.

use rustls::{
    CertificateError, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};
use std::{net::IpAddr, sync::Arc};
use x509_cert::{
    Certificate, TbsCertificate,
    der::{Decode, asn1::ObjectIdentifier},
    ext::pkix::{BasicConstraints, ExtendedKeyUsage, SubjectAltName},
};

/// The purpose of a server's certificate (RFC 5280 section 4.2.1.12).
const OF_SERVER: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
/// The purpose of a client's certificate.
const OF_CLIENT: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

/// The certificates of a file of authorities that may sign others.
#[derive(Debug, Clone)]
pub struct ListedCertificates(Vec<CertificateDer<'static>>);

/// Checks the certificate of a server as the TLS library does, and takes one that is listed itself.
#[derive(Debug)]
pub(super) struct ListedServers {
    pub(super) listed: ListedCertificates,
    pub(super) others: Arc<WebPkiServerVerifier>,
}

// === impl ListedCertificates ===

impl ListedCertificates {
    /// Picks those of `all` that the TLS library does not take for the certificate of a server or client.
    pub fn of(all: &[CertificateDer<'static>]) -> Self {
        let signs = |der: &&CertificateDer<'_>| {
            Certificate::from_der(der).is_ok_and(|parsed| is_authority(&parsed.tbs_certificate))
        };
        Self(all.iter().filter(signs).cloned().collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks the date and the purpose of a client's certificate that is listed itself; `None` for any other one.
    pub fn of_client(
        &self,
        shown: &CertificateDer<'_>,
        now: UnixTime,
    ) -> Option<Result<(), Error>> {
        self.usable(shown, now, OF_CLIENT)
    }

    fn usable(
        &self,
        shown: &CertificateDer<'_>,
        now: UnixTime,
        purpose: ObjectIdentifier,
    ) -> Option<Result<(), Error>> {
        let is_listed = self.0.iter().any(|listed| listed.as_ref() == shown.as_ref());
        is_listed.then(|| usable(shown, now, purpose).map_err(Error::from))
    }
}

fn usable(
    shown: &CertificateDer<'_>,
    now: UnixTime,
    purpose: ObjectIdentifier,
) -> Result<(), CertificateError> {
    let bad = |_| CertificateError::BadEncoding;
    let certificate = Certificate::from_der(shown).map_err(bad)?.tbs_certificate;
    in_time(&certificate, now)?;
    match certificate.get::<ExtendedKeyUsage>().map_err(bad)? {
        Some((_, ExtendedKeyUsage(purposes))) if !purposes.contains(&purpose) => {
            Err(CertificateError::InvalidPurpose)
        }
        _ => Ok(()),
    }
}

fn in_time(certificate: &TbsCertificate, now: UnixTime) -> Result<(), CertificateError> {
    let (validity, now) = (&certificate.validity, now.as_secs());
    if now < validity.not_before.to_unix_duration().as_secs() {
        return Err(CertificateError::NotValidYet);
    }
    if now > validity.not_after.to_unix_duration().as_secs() {
        return Err(CertificateError::Expired);
    }
    Ok(())
}

fn is_authority(certificate: &TbsCertificate) -> bool {
    certificate.get::<BasicConstraints>().is_ok_and(|found| found.is_some_and(|(_, of)| of.ca))
}

/// Says why no server called one of `names`, and no client if there are none, can be checked with a file of authorities;
/// `None` if one of its certificates may do.
pub fn flaw(authorities: &[CertificateDer<'_>], names: &[&str], now: UnixTime) -> Option<String> {
    let flaws = authorities.iter().map(|one| flaw_of(one, names, now));
    flaws.collect::<Option<Vec<_>>>()?.into_iter().next()
}

fn flaw_of(der: &CertificateDer<'_>, names: &[&str], now: UnixTime) -> Option<String> {
    let parsed = Certificate::from_der(der).ok()?.tbs_certificate;
    let (is_authority, is_own) = (is_authority(&parsed), parsed.issuer == parsed.subject);
    if !is_authority && !is_own {
        return Some("its certificate signs no others: name the file of its issuer".into());
    }
    let subject = parsed.subject.to_string();
    let is_called =
        |name: &&str| subject.split([',', '+']).any(|part| part == format!("CN={name}"));
    let is_for = |name: &&str| {
        let (shown, name) = (ParsedCertificate::try_from(der), ServerName::try_from(*name));
        shown.is_ok_and(|shown| name.is_ok_and(|name| verify_server_name(&shown, &name).is_ok()))
    };
    let (called, meant) =
        (names.iter().find(|name| is_called(name)), names.iter().find(|name| is_for(name)));
    let usable = usable(der, now, if names.is_empty() { OF_CLIENT } else { OF_SERVER });
    let is_misused = is_own && names.is_empty() && usable == Err(CertificateError::InvalidPurpose);
    // One that is for another name can be that of an authority, which signs the server's.
    if is_authority && called.is_none() && meant.is_none() && !is_misused {
        return None;
    }
    match usable {
        Err(CertificateError::Expired) => return Some("its certificate has expired".into()),
        Err(CertificateError::InvalidPurpose) => {
            return Some("its certificate has another purpose (extendedKeyUsage)".into());
        }
        Err(_) => return Some("its certificate is not valid yet".into()),
        Ok(()) => {}
    }
    let first = called.or(names.first()).filter(|_| meant.is_none())?;
    match parsed.get::<SubjectAltName>() {
        Ok(None) => Some(format!(
            "its certificate has no subjectAltName, and a common name alone is not read: make it with `-addext \
             subjectAltName={}:{first}`",
            if first.parse::<IpAddr>().is_ok() { "IP" } else { "DNS" }
        )),
        _ => Some(format!("its certificate is not for `{first}`")),
    }
}

// === impl ListedServers ===

impl ServerCertVerifier for ListedServers {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.listed.usable(shown, now, OF_SERVER) {
            None => self.others.verify_server_cert(shown, chain, name, ocsp, now),
            Some(usable) => {
                usable?;
                verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
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
