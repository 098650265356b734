//! Reads from the certificate of an authority what the certificates that it signs repeat: its name and the number of its key.

use rcgen::{
    CertificateParams, DistinguishedName, DnType, DnValue, KeyIdMethod,
    string::{BmpString, Ia5String, PrintableString, TeletexString},
};
use x509_cert::{
    Certificate,
    attr::AttributeTypeAndValue,
    der::{Tag, Tagged},
    ext::pkix::{BasicConstraints, KeyUsage, SubjectKeyIdentifier},
};

/// Makes the parameters of an issuer from its certificate.
///
/// # Errors
///
/// The reason why it cannot sign other certificates, in words that follow the name of its file.
pub(super) fn params(certificate: &Certificate) -> Result<CertificateParams, &'static str> {
    let own = &certificate.tbs_certificate;
    let constraints = own.get::<BasicConstraints>().ok().flatten();
    let usage = own.get::<KeyUsage>().ok().flatten();
    let is_authority = constraints.is_some_and(|(_, constraints)| constraints.ca);
    if !is_authority || usage.is_some_and(|(_, usage)| !usage.key_cert_sign()) {
        return Err("holds a certificate that may sign no others; `paceway ca` makes one");
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for part in &own.subject.0 {
        let [attribute] = part.0.as_slice() else { return Err(NAME) };
        let kind = DnType::CustomDnType(attribute.oid.arcs().map(u64::from).collect());
        let value = value_of(attribute).ok_or(NAME)?;
        if params.distinguished_name.get(&kind).is_some() {
            return Err(NAME);
        }
        params.distinguished_name.push(kind, value);
    }
    if let Some((_, number)) = own.get::<SubjectKeyIdentifier>().ok().flatten() {
        params.key_identifier_method = KeyIdMethod::PreSpecified(number.0.as_bytes().to_vec());
    }
    Ok(params)
}

const NAME: &str =
    "holds a certificate with a name that cannot be repeated; `paceway ca` makes one";

/// Reads the value of one part of a name. Clients compare the bytes of names, so its kind of string stays.
fn value_of(attribute: &AttributeTypeAndValue) -> Option<DnValue> {
    let bytes = attribute.value.value();
    let text = || str::from_utf8(bytes).ok();
    Some(match attribute.value.tag() {
        Tag::Utf8String => DnValue::Utf8String(text()?.to_owned()),
        Tag::PrintableString => DnValue::PrintableString(PrintableString::try_from(text()?).ok()?),
        Tag::Ia5String => DnValue::Ia5String(Ia5String::try_from(text()?).ok()?),
        Tag::TeletexString => DnValue::TeletexString(TeletexString::try_from(text()?).ok()?),
        Tag::BmpString => DnValue::BmpString(BmpString::from_utf16be(bytes.to_vec()).ok()?),
        _ => return None,
    })
}
