//! An authority of our own, which signs certificates for the hosts whose TLS the forward proxy opens. Writes no file.

use super::{KeyPair, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair as SigningPair, KeyUsagePurpose, SerialNumber, date_time_ymd,
};
use rustls::{
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime},
    sign::CertifiedKey,
};
use std::{fmt, iter, path::Path, time::Duration};
use x509_cert::{Certificate, der::Decode};

const DAY: u64 = 86_400;
/// A certificate is valid from the day before, because the clocks of clients differ.
const BEFORE: u64 = DAY;
/// A certificate for a host is valid for a week, and the next one is signed when half of it is over.
const HOST: u64 = 7 * DAY;
/// An authority that no file has ends with the process, or after a year.
const IN_MEMORY: u64 = 365 * DAY;
/// The longest common name (RFC 5280, appendix A.1). Clients read the alternative names alone.
const LONGEST_NAME: usize = 64;

/// An authority that signs certificates for hosts.
pub struct Authority {
    /// Its certificate, and those that lead from it to one that clients know.
    chain: Vec<CertificateDer<'static>>,
    issuer: Issuer<'static, SigningPair>,
    /// The key of all certificates for hosts, which is made for this process.
    host_key: SigningPair,
    /// The end of the authority's own certificate, in seconds of Unix time.
    end: u64,
}

/// A certificate for a host.
pub struct HostCertificate {
    /// The certificate, and that of the authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
    /// The time from which another one is to be signed, in seconds of Unix time.
    pub renew_at: u64,
}

/// A new authority in PEM, for the files that a user names.
pub struct NewAuthority {
    /// Its certificate.
    pub certificate: String,
    /// Its key, PKCS #8.
    pub key: String,
}

/// Why an authority cannot be made, or cannot sign a certificate.
#[derive(Debug, thiserror::Error)]
#[error("no certificate can be signed")]
pub struct SigningError(#[from] rcgen::Error);

// === impl NewAuthority ===

impl NewAuthority {
    /// Makes an authority that is valid for so many days.
    ///
    /// # Errors
    ///
    /// [`SigningError`] if the system gives no random numbers.
    pub fn make(days: u16) -> Result<Self, SigningError> {
        let key = SigningPair::generate()?;
        let params = authority_params(unix_now() + u64::from(days) * DAY);
        let certificate = params.self_signed(&key)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

// === impl Authority ===

impl Authority {
    /// Makes an authority for this process alone, whose key no file has. It is valid for a year.
    ///
    /// # Errors
    ///
    /// [`SigningError`] if the system gives no random numbers.
    pub fn in_memory() -> Result<Self, SigningError> {
        let (key, end) = (SigningPair::generate()?, unix_now() + IN_MEMORY);
        let params = authority_params(end);
        let chain = vec![params.self_signed(&key)?.der().clone()];
        let host_key = SigningPair::generate()?;
        Ok(Self { chain, issuer: Issuer::new(params, key), host_key, end })
    }

    /// Reads an authority from its files.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the file that cannot be read or used, and the reason.
    pub fn load(pair: &KeyPair) -> Result<Self, TlsError> {
        let unfit =
            |file: &Path, reason: &str| TlsError { file: file.into(), reason: reason.into() };
        let (chain, key) = pair.load()?;
        let parsed = Certificate::from_der(&chain[0]);
        let parsed =
            parsed.map_err(|_| unfit(&pair.cert, "holds a certificate that is no X.509"))?;
        let params = super::issuer::params(&parsed).map_err(|reason| unfit(&pair.cert, reason))?;
        let signing = SigningPair::try_from(&key);
        let signing = signing.map_err(|_| {
            unfit(&pair.key, "holds a private key of a kind that cannot sign certificates")
        })?;
        let host_key = SigningPair::generate();
        let host_key =
            host_key.map_err(|_| unfit(&pair.key, "cannot be used: no key can be made"))?;
        let end = parsed.tbs_certificate.validity.not_after.to_unix_duration().as_secs();
        if end <= unix_now() {
            return Err(unfit(&pair.cert, "has expired; `paceway ca` makes another one"));
        }
        // Each client would find the signatures wrong.
        CertifiedKey::from_der(chain.clone(), key, &default_provider())
            .map_err(|error| unfit(&pair.key, &format!("is no key of the certificate: {error}")))?;
        Ok(Self { chain, issuer: Issuer::new(params, signing), host_key, end })
    }

    /// The certificate of the authority, which clients have to trust.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.chain[0]
    }

    /// Signs a certificate for `host`, a DNS name or an IP address. It ends with the authority at the latest.
    ///
    /// # Errors
    ///
    /// [`SigningError`] if no certificate can have this name.
    pub fn sign(&self, host: &str) -> Result<HostCertificate, SigningError> {
        let now = unix_now();
        let mut params = CertificateParams::new([host.to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        if host.len() <= LONGEST_NAME {
            params.distinguished_name.push(DnType::CommonName, host);
        }
        let end = (now + HOST).min(self.end);
        set_validity(&mut params, now, end);
        params.serial_number = serial();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let signed = params.signed_by(&self.host_key, &self.issuer)?;
        let key = PrivatePkcs8KeyDer::from(self.host_key.serialize_der());
        Ok(HostCertificate {
            chain: iter::once(signed.der().clone()).chain(self.chain.iter().cloned()).collect(),
            key: key.into(),
            renew_at: now + HOST / 2,
        })
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("end", &self.end).finish_non_exhaustive()
    }
}

/// The wall clock, in seconds of Unix time: certificates name instants of it.
pub(super) fn unix_now() -> u64 {
    UnixTime::now().as_secs()
}

/// The parameters of an authority's own certificate, which ends at `end`, in seconds of Unix time. It may sign no other
/// authority.
fn authority_params(end: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = serial();
    // Two authorities with one name would be taken for each other.
    let number = params.serial_number.as_ref().map_or_else(Vec::new, SerialNumber::to_bytes);
    let number: String = number.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let name = format!("Paceway forward proxy {number}");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, unix_now(), end);
    params
}

fn set_validity(params: &mut CertificateParams, now: u64, end: u64) {
    let at = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    (params.not_before, params.not_after) = (at(now - BEFORE), at(end));
}

/// A random number, as each certificate of an authority needs another one (RFC 5280 section 4.1.2.2). `None`: the library
/// takes a hash.
fn serial() -> Option<SerialNumber> {
    let mut bytes = [0; 16];
    default_provider().secure_random.fill(&mut bytes).ok()?;
    // A positive number that does not begin with 0.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Some(SerialNumber::from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{RootCertStore, client::danger::ServerCertVerifier as _};
    use std::fs;

    fn files(new: &NewAuthority) -> (tempfile::TempDir, KeyPair) {
        let directory = tempfile::tempdir().unwrap();
        let pair = KeyPair {
            cert: directory.path().join("cert.pem"),
            key: directory.path().join("key.pem"),
        };
        fs::write(&pair.cert, &new.certificate).unwrap();
        fs::write(&pair.key, &new.key).unwrap();
        (directory, pair)
    }

    /// Checks a certificate as a client does that trusts the authority.
    fn verify(authority: &Authority, host: &str, signed: &HostCertificate) {
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate().clone()).unwrap();
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(
            roots.into(),
            default_provider().into(),
        );
        let name = rustls::pki_types::ServerName::try_from(host).unwrap();
        let checked = verifier.build().unwrap().verify_server_cert(
            &signed.chain[0],
            &[],
            &name,
            &[],
            UnixTime::now(),
        );
        checked.unwrap_or_else(|error| panic!("{host}: {error}"));
    }

    #[test]
    fn clients_of_the_authority_trust_its_hosts() {
        let authority = Authority::in_memory().unwrap();
        let long = format!("{}.example", "a".repeat(63));
        for host in ["api.vendor.example", "192.0.2.7", "2001:db8::1", &long] {
            verify(&authority, host, &authority.sign(host).unwrap());
        }
    }

    #[test]
    fn an_authority_of_files_is_the_same_each_time() {
        let (_directory, pair) = files(&NewAuthority::make(2).unwrap());
        let [one, other] = [(); 2].map(|()| Authority::load(&pair).unwrap());
        verify(&one, "a.example", &other.sign("a.example").unwrap());
        assert_eq!(one.end, other.end);
    }

    #[test]
    fn a_key_of_another_authority_and_an_authority_that_has_expired_are_found() {
        let (_directory, pair) = files(&NewAuthority::make(2).unwrap());
        let (_other, other) = files(&NewAuthority::make(2).unwrap());
        let mixed = KeyPair { cert: pair.cert, key: other.key.clone() };
        let error = Authority::load(&mixed).err().unwrap();
        assert_eq!(error.file, other.key);
        let (_expired, expired) = files(&NewAuthority::make(0).unwrap());
        let error = Authority::load(&expired).err().unwrap();
        assert!(error.reason.starts_with("has expired"), "{}", error.reason);
    }

    #[test]
    fn certificates_have_different_numbers_and_end_with_their_authority() {
        let (_directory, pair) = files(&NewAuthority::make(2).unwrap());
        let authority = Authority::load(&pair).unwrap();
        let [one, other] = [(); 2].map(|()| {
            let signed = authority.sign("a.example").unwrap();
            Certificate::from_der(&signed.chain[0]).unwrap().tbs_certificate
        });
        assert_ne!(one.serial_number, other.serial_number);
        assert_eq!(one.validity.not_after.to_unix_duration().as_secs(), authority.end);
    }

    #[test]
    fn a_certificate_of_a_server_is_no_authority() {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let (_directory, pair) = files(&NewAuthority { certificate, key });
        let error = Authority::load(&pair).unwrap_err();
        assert_eq!(
            (error.file, &*error.reason),
            (pair.cert, "holds a certificate that may sign no others; `paceway ca` makes one")
        );
    }
}
