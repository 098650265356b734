//! Which headers and parameters hold a credential, as far as their names tell.

/// A name that holds one of these is a secret's. Names are compared in small letters, without `-` and `_`.
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
/// So is a name that is one of these.
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

/// Whether a name that [`fold`] made is that of a credential.
pub fn is_secret(folded: &str) -> bool {
    PARTS.iter().any(|secret| folded.contains(secret)) || WHOLE.contains(&folded)
}

/// In small letters, and without what spellings of one name differ in.
pub fn fold(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let kept = name.chars().filter(|c| !matches!(c, '-' | '_' | ' ' | '+'));
    kept.map(|c| c.to_ascii_lowercase()).collect()
}
