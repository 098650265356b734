//! Recognises headers and query parameters that hold a credential, by their names alone.

/// A name that contains one of these belongs to a credential. Names are compared in small letters, without `-` and `_`.
const PARTS: [&str; 15] = [
    "token",
    "secret",
    "passw",
    "passphrase",
    "signature",
    "credential",
    "apikey",
    "accesskey",
    "privatekey",
    "session",
    "jwt",
    "authoriz",
    "keypair",
    "passcode",
    "verifier",
];
/// A name that is exactly one of these belongs to a credential, too.
const WHOLE: [&str; 19] = [
    "key",
    "code",
    "auth",
    "sig",
    "pwd",
    "pass",
    "pin",
    "otp",
    "sid",
    "hmac",
    "bearer",
    "samlresponse",
    "samlrequest",
    "assertion",
    "sign",
    "hash",
    "ticket",
    "pw",
    "creds",
];

/// Whether a name, in the form that [`fold`] returns, belongs to a credential.
pub fn is_secret(folded: &str) -> bool {
    PARTS.iter().any(|secret| folded.contains(secret)) || WHOLE.contains(&folded)
}

/// Brings a name into one form for all its spellings: `X-Api_Key` and `xapikey` both become `xapikey`.
pub fn fold(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let kept = name.chars().filter(|c| !matches!(c, '-' | '_' | ' ' | '+'));
    kept.map(|c| c.to_ascii_lowercase()).collect()
}
