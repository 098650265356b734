//! Tells whether two reads are the same, by a hash of all that decides their answer, so that no table holds a credential.

use crate::key::{fold, is_secret};
use http::{
    HeaderMap, HeaderName,
    header::{AUTHORIZATION, COOKIE},
};
use sha2::{Digest, Sha256};

/// The hash of all that identical reads have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity([u8; 32]);

/// The parts of a read, as far as they are known. Each is hashed with its length, so that no two lists of parts look alike.
pub struct Fingerprint(Sha256);

// === impl Identity ===

impl Identity {
    /// The first 16 bits, in hex digits.
    pub(crate) fn shortened(&self) -> String {
        format!("{:02x}{:02x}", self.0[0], self.0[1])
    }
}

// === impl Fingerprint ===

impl Fingerprint {
    /// The fingerprint of a read with this method of the URL that the parts are.
    pub fn new<'p>(url: impl IntoIterator<Item = &'p [u8]>) -> Self {
        let mut new = Self(Sha256::new());
        url.into_iter().for_each(|part| new.add(part));
        new
    }

    /// Adds a part.
    pub fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    /// Adds the values of the headers with these names, and says the end of each list.
    pub fn add_headers<'n>(
        &mut self,
        headers: &HeaderMap,
        names: impl IntoIterator<Item = &'n HeaderName>,
    ) {
        for name in names {
            self.add(name.as_str().as_bytes());
            let values = headers.get_all(name);
            self.0.update((values.iter().count() as u64).to_be_bytes());
            values.iter().for_each(|value| self.add(value.as_bytes()));
        }
    }

    /// Adds all headers that tell calls of one URL apart: credentials, and the names of callers.
    pub fn add_callers(&mut self, headers: &HeaderMap) {
        self.add_headers(headers, &[AUTHORIZATION, COOKIE]);
        self.add_headers(headers, headers.keys().filter(|name| tells_calls_apart(name)));
    }

    /// The identity of the read.
    pub fn end(self) -> Identity {
        Identity(self.0.finalize().into())
    }
}

/// Parts of the names of headers that name a caller, an account or a method, as `X-Forwarded-User`, `Stripe-Account`,
/// `X-Amzn-Oidc-Identity` and `X-HTTP-Method-Override` do.
const WHOSE: [&str; 14] = [
    "account",
    "clientcert",
    "consumer",
    "dpop",
    "email",
    "identity",
    "impersonate",
    "method",
    "oidc",
    "organization",
    "principal",
    "profile",
    "tenant",
    "userid",
];

/// Whether calls that differ in a header of this name may have different answers: it is a credential, such as `X-Api-Key` or
/// `Ocp-Apim-Subscription-Key`, or names the caller, the method or the host of the call.
fn tells_calls_apart(name: &HeaderName) -> bool {
    let folded = fold(name.as_str().as_bytes());
    let is_user = folded.ends_with("user") || WHOSE.iter().any(|part| folded.contains(part));
    let is_of_the_way = matches!(name.as_str(), "x-forwarded-proto" | "x-forwarded-host");
    is_secret(&folded)
        || folded.ends_with("key")
        || folded.contains("auth")
        || is_user
        || is_of_the_way
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use rstest::rstest;

    fn identity(url: &[&str], headers: &[(&'static str, &'static str)]) -> Identity {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let headers = HeaderMap::from_iter(headers);
        let mut of = Fingerprint::new(url.iter().map(|part| part.as_bytes()));
        of.add_callers(&headers);
        of.add_headers(&headers, &[http::header::ACCEPT]);
        of.end()
    }

    #[rstest]
    #[case::parts(&["a", "bc"], &[])]
    #[case::authorization(&["ab", "c"], &[("authorization", "Bearer 1")])]
    #[case::cookie(&["ab", "c"], &[("cookie", "a=1")])]
    #[case::key(&["ab", "c"], &[("x-api-key", "1")])]
    #[case::subscription(&["ab", "c"], &[("ocp-apim-subscription-key", "1")])]
    #[case::token(&["ab", "c"], &[("private-token", "1")])]
    #[case::user(&["ab", "c"], &[("x-forwarded-user", "1")])]
    #[case::account(&["ab", "c"], &[("stripe-account", "1")])]
    #[case::method(&["ab", "c"], &[("x-http-method-override", "DELETE")])]
    #[case::scheme(&["ab", "c"], &[("x-forwarded-proto", "https")])]
    #[case::named(&["ab", "c"], &[("accept", "text/html")])]
    fn reads_that_differ_in_a_part_are_not_the_same(
        #[case] url: &[&str],
        #[case] headers: &[(&'static str, &'static str)],
    ) {
        assert_ne!(identity(url, headers), identity(&["ab", "c"], &[]));
    }

    #[test]
    fn headers_that_no_rule_names_make_no_difference() {
        let of = |agent| identity(&["a"], &[("user-agent", agent), ("accept", "*/*")]);
        assert_eq!(of("a"), of("b"));
    }
}
