//! Paths and queries as a log may show them: without the values of parameters that have the name of a secret, and
//! bounded in length. Never logs by itself.

use crate::key::{Template, fold, is_secret, shown};
use std::{borrow::Cow, collections::HashSet};

/// The most bytes of a path, or of a query, that a log shows.
const MOST: usize = 1024;
const HIDDEN: &str = "***";
/// Knows the names of parameters whose values no log may show.
#[derive(Debug)]
pub(crate) struct Redactor {
    /// The names that the operator has added, in lower case and without `-` and `_`.
    own: HashSet<String>,
}

// === impl Redactor ===

impl Redactor {
    pub(crate) fn new(names: &[String]) -> Self {
        Self { own: names.iter().map(|name| fold(name.as_bytes())).collect() }
    }

    /// Returns the path as it was sent, except for the values of its parameters (`;jsessionid=...`) that are secrets.
    pub(crate) fn path<'a>(&self, path: &'a str) -> Cow<'a, str> {
        if !path.contains(';') {
            return short(path.into());
        }
        short(self.hide(path, &[';', '/']))
    }

    /// Returns a key as pages show it, or `***` if a part of it has a name that the operator has added.
    pub(crate) fn key(&self, template: Option<&Template>, key: &str) -> String {
        let mut names = template.into_iter().flat_map(Template::names);
        let is_hidden = |name: &str| self.own.contains(&fold(name.as_bytes()));
        if !self.own.is_empty() && names.any(is_hidden) { HIDDEN.to_owned() } else { shown(key) }
    }

    /// Returns the query, without its `?`, with the values of secrets hidden.
    pub(crate) fn query<'a>(&self, query: &'a str) -> Cow<'a, str> {
        short(self.hide(query, &['&', ';']))
    }

    /// Returns `text` with the values of secrets hidden; `delimiters` separate its parameters.
    fn hide<'a>(&self, text: &'a str, delimiters: &[char]) -> Cow<'a, str> {
        let mut hidden = String::new();
        let mut shown = 0;
        for parameter in text.split(delimiters) {
            let Some((name, value)) = parameter.split_once('=') else { continue };
            if value.is_empty() || !(self.is_secret(name) || self.holds_secret(value)) {
                continue;
            }
            // The value is a part of `text`, so the difference of the addresses is its place there.
            let start = value.as_ptr() as usize - text.as_ptr() as usize;
            hidden.push_str(&text[shown..start]);
            hidden.push_str(HIDDEN);
            shown = start + value.len();
        }
        if shown == 0 {
            return text.into();
        }
        hidden.push_str(&text[shown..]);
        hidden.into()
    }

    /// Whether a value is a URL or a form with a secret in it, as in `?to=https%3A%2F%2Fx%2F%3Ftoken%3D...`.
    fn holds_secret(&self, value: &str) -> bool {
        if !value.contains(['=', '%']) {
            return false;
        }
        let value = decode(value.as_bytes());
        let inner = value.split(|byte| matches!(byte, b'?' | b'&' | b';' | b'#'));
        inner.into_iter().any(|parameter| {
            let name = parameter.split(|byte| *byte == b'=').next().unwrap_or_default();
            name.len() < parameter.len() && self.is_secret_name(name)
        })
    }

    fn is_secret(&self, name: &str) -> bool {
        self.is_secret_name(&decode(name.as_bytes()))
    }

    /// Whether a name, or a part of one such as `a[token]` or `a.token`, is that of a secret.
    fn is_secret_name(&self, name: &[u8]) -> bool {
        let parts = name.split(|byte| matches!(byte, b'[' | b']' | b'.'));
        parts.map(fold).any(|part| is_secret(&part) || self.own.contains(&part))
    }
}

/// Decodes percent-encoding; a broken escape stays as it is.
fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'%') {
        return text.into();
    }
    let hex = |byte: Option<&u8>| (*byte? as char).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut i = 0;
    while i < text.len() {
        let escape =
            (text[i] == b'%').then(|| Some((hex(text.get(i + 1))?, hex(text.get(i + 2))?)));
        match escape.flatten() {
            Some((high, low)) => {
                out.push((high << 4 | low) as u8);
                i += 3;
            }
            None => {
                out.push(text[i]);
                i += 1;
            }
        }
    }
    out.into()
}

fn short(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= MOST {
        return text;
    }
    let end = (0..=MOST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    match text {
        Cow::Borrowed(text) => text[..end].into(),
        Cow::Owned(mut text) => {
            text.truncate(end);
            text.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::none("a=1&b=&c", "a=1&b=&c")]
    #[case::token("a=1&token=s3&b=2", "a=1&token=***&b=2")]
    #[case::api_key("api_key=s3", "api_key=***")]
    #[case::in_capitals("API-KEY=s3", "API-KEY=***")]
    #[case::escaped("%74oken=s3&api%5Fkey=s3", "%74oken=***&api%5Fkey=***")]
    #[case::within_a_name(
        "X-Amz-Signature=s3&refresh_token=s3",
        "X-Amz-Signature=***&refresh_token=***"
    )]
    #[case::in_brackets("user[password]=s3&a%5Btoken%5D=s3", "user[password]=***&a%5Btoken%5D=***")]
    #[case::behind_a_semicolon("a=1;token=s3", "a=1;token=***")]
    #[case::with_an_equals_sign("sig=s3==&a", "sig=***&a")]
    #[case::code("code=s3&zip_code=1&encode=2", "code=***&zip_code=1&encode=2")]
    #[case::in_a_url("to=http://x/?token=s3", "to=***")]
    #[case::in_an_escaped_url("to=http%3A%2F%2Fx%2F%3Fa%3D1%26token%3Ds3&b", "to=***&b")]
    #[case::of_the_operator("Shop-Pass_Word=1&vendor-id=s3", "Shop-Pass_Word=***&vendor-id=***")]
    #[case::author_is_none("author=me&keyword=x&pinned=1", "author=me&keyword=x&pinned=1")]
    fn redacts_queries(#[case] query: &str, #[case] shown: &str) {
        let redactor = Redactor::new(&["VENDOR_ID".into()]);
        assert_eq!(redactor.query(query), shown);
    }

    #[rstest]
    #[case::plain("/a/b", "/a/b")]
    #[case::a_session("/a;jsessionid=s3/b;v=1", "/a;jsessionid=***/b;v=1")]
    fn redacts_paths(#[case] path: &str, #[case] shown: &str) {
        assert_eq!(Redactor::new(&[]).path(path), shown);
    }

    #[test]
    fn long_queries_are_cut_after_hidden_values() {
        let query = format!("{}&token={}", "é".repeat(500), "s3".repeat(1000));
        let shown = Redactor::new(&[]).query(&query).into_owned();
        assert_eq!(shown, format!("{}&token=***", "é".repeat(500)));
        let path = format!("/{}", "é".repeat(1000));
        assert_eq!(Redactor::new(&[]).path(&path).len(), 1023);
    }

    proptest! {
        #[test]
        fn no_secret_in_any_query_is_shown(before in "[a=&;%\\[é]{0,12}", name in "(token|%74oken|X-API-KEY|a\\[sig\\])") {
            let query = format!("{before}&{name}=s3cr3t");
            let shown = Redactor::new(&[]).query(&query).into_owned();
            prop_assert!(!shown.contains("s3cr3t"), "{}", shown);
        }
    }
}
