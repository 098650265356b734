//! Requests that ask for another protocol: HTTP/1.1 upgrades (RFC 9110 section 7.8), and WebSockets over HTTP/2 (RFC
//! 8441), which become HTTP/1.1 upgrades. It knows protocols by their names only.

use crate::upstream::{UpstreamError, headers::HeaderFlags};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE},
};
use hyper::{
    ext::Protocol,
    upgrade::{self, OnUpgrade},
};
use sha1::{Digest, Sha1};
use std::hash::{BuildHasher, RandomState};

/// The text that a server appends to a WebSocket key before it hashes the key (RFC 6455 section 1.3).
const WEBSOCKET: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The upgrade that a client asks for.
pub(super) struct Upgrade {
    /// The names of the protocols, as they are forwarded to the upstream.
    protocols: HeaderValue,
    /// The client's side of the tunnel, which is ready once the client has the answer.
    client: OnUpgrade,
    /// A WebSocket key for the upstream, if the client speaks HTTP/2, where it needs none.
    key: Option<HeaderValue>,
}

/// The protocol that the upstream agreed to.
pub(super) struct Switched {
    /// The client's side of the tunnel, once it is ready.
    pub(super) client: OnUpgrade,
    /// The protocol's name for the client; `None` for a WebSocket over HTTP/2, which has none.
    protocol: Option<HeaderValue>,
}

// === impl Upgrade ===

impl Upgrade {
    /// Reads the upgrade that `request` asks for; `seen` are its fields, and `is_bare` says that it has no body. A
    /// WebSocket over HTTP/2 becomes a GET. A request with a body cannot ask for an upgrade, because the body would have to be read to its end first.
    pub(super) fn of<B>(
        request: &mut Request<B>,
        is_bare: bool,
        seen: HeaderFlags,
    ) -> Option<Self> {
        if request.version() == Version::HTTP_2 {
            return Self::of_h2(request);
        }
        if request.version() != Version::HTTP_11
            || !seen.has(HeaderFlags::UPGRADE)
            || !is_bare
            || !tokens(request.headers(), &CONNECTION)
                .any(|word| word.eq_ignore_ascii_case("upgrade"))
        {
            return None;
        }
        let names: Vec<_> =
            tokens(request.headers(), &UPGRADE).filter(|name| may_go(name)).collect();
        let protocols = HeaderValue::from_str(&names.join(", ")).ok();
        let protocols = protocols.filter(|names| !names.is_empty())?;
        Some(Self { protocols, client: upgrade::on(request), key: None })
    }

    fn of_h2<B>(request: &mut Request<B>) -> Option<Self> {
        let protocol = request.extensions().get::<Protocol>()?;
        if request.method() != Method::CONNECT || protocol.as_str() != "websocket" {
            return None;
        }
        request.extensions_mut().remove::<Protocol>();
        *request.method_mut() = Method::GET;
        // The key need not be secret: it only has to differ each time.
        let nonce = [(); 2].map(|()| RandomState::new().hash_one(WEBSOCKET).to_be_bytes()).concat();
        let key = HeaderValue::from_str(&BASE64.encode(nonce)).ok()?;
        let protocols = HeaderValue::from_static("websocket");
        Some(Self { protocols, client: upgrade::on(request), key: Some(key) })
    }

    /// Whether it is a WebSocket over HTTP/2, which cannot be forwarded as an ordinary request.
    pub(super) fn is_by_h2(&self) -> bool {
        self.key.is_some()
    }

    /// Adds the fields that ask the upstream for the upgrade.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.append(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocols.clone());
        if let Some(key) = &self.key {
            headers.insert(SEC_WEBSOCKET_KEY, key.clone());
            headers.entry(SEC_WEBSOCKET_VERSION).or_insert(HeaderValue::from_static("13"));
        }
    }

    /// Returns the protocol that the upstream's 101 names, if the client has asked for it.
    fn protocol(&self, headers: &HeaderMap) -> Result<HeaderValue, UpstreamError> {
        const OTHER: UpstreamError = UpstreamError::Invalid("an upgrade to what was not asked for");
        let asked = self.protocols.to_str().unwrap_or_default();
        let is_asked = |name: &&str| words(asked).any(|asked| asked.eq_ignore_ascii_case(name));
        let names: Vec<_> = tokens(headers, &UPGRADE).collect();
        if names.is_empty() || !names.iter().all(is_asked) {
            return Err(OTHER);
        }
        if let Some(key) = &self.key
            && headers.get(SEC_WEBSOCKET_ACCEPT) != accepted(key).as_ref()
        {
            return Err(UpstreamError::Invalid("a WebSocket with another key"));
        }
        HeaderValue::from_str(&names.join(", ")).map_err(|_| OTHER)
    }
}

// === impl Switched ===

impl Switched {
    /// Reads the upstream's answer to `upgrade`; returns `None` if it is an ordinary response.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Invalid`] when the upstream switches to a protocol that the client did not ask for, and when it
    /// answers a WebSocket over HTTP/2 with success but without a switch, which the client would read as an open
    /// WebSocket (RFC 8441 section 5).
    pub(super) fn from<B>(
        upgrade: Option<Upgrade>,
        response: &Response<B>,
    ) -> Result<Option<Self>, UpstreamError> {
        let Some(upgrade) = upgrade else { return Ok(None) };
        if upgrade.is_by_h2() && response.status().is_success() {
            return Err(UpstreamError::Invalid("no WebSocket where one was asked for"));
        }
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(None);
        }
        let protocol = upgrade.protocol(response.headers())?;
        let protocol = upgrade.key.is_none().then_some(protocol);
        Ok(Some(Self { client: upgrade.client, protocol }))
    }

    /// Whether the protocol is the one whose frames the gateway can tell apart.
    pub(super) fn is_websocket(&self) -> bool {
        let name = self.protocol.as_ref().map(HeaderValue::as_bytes);
        name.is_none_or(|name| name.eq_ignore_ascii_case(b"websocket"))
    }

    /// Makes the upstream's 101 one for the client. The fields for a single hop have been removed before.
    pub(super) fn answer<B>(&self, response: &mut Response<B>) {
        let headers = response.headers_mut();
        match &self.protocol {
            Some(protocol) => {
                headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
                headers.insert(UPGRADE, protocol.clone());
            }
            None => {
                headers.remove(SEC_WEBSOCKET_ACCEPT);
                *response.status_mut() = StatusCode::OK;
            }
        }
    }
}

/// Returns the value of `Sec-WebSocket-Accept` for a key.
fn accepted(key: &HeaderValue) -> Option<HeaderValue> {
    let digest = Sha1::new().chain_update(key.as_bytes()).chain_update(WEBSOCKET).finalize();
    HeaderValue::from_str(&BASE64.encode(digest)).ok()
}

/// Whether an upgrade may be forwarded. HTTP and TLS concern the client's own connection, where the gateway has other
/// ways to them.
fn may_go(name: &str) -> bool {
    let name = name.split('/').next().unwrap_or_default();
    !["h2c", "h2", "http", "tls"].iter().any(|ours| name.eq_ignore_ascii_case(ours))
}

/// The words of a list in all fields of that name (RFC 9110 section 5.6.1).
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).flat_map(words)
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Empty;

    fn request(fields: &[(&str, &str)]) -> Request<Empty<bytes::Bytes>> {
        let builder = Request::get("/");
        let builder =
            fields.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
        builder.body(Empty::new()).expect("a request")
    }

    fn upgrade_of(request: &mut Request<Empty<bytes::Bytes>>) -> Option<Upgrade> {
        let seen = HeaderFlags::of(request.headers());
        Upgrade::of(request, true, seen)
    }

    #[test]
    fn the_key_of_the_rfc_gives_its_accept_value() {
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accepted(&key).expect("a value"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn connection_level_protocols_are_not_forwarded() {
        let names = "h2c, WebSocket, HTTP/2.0, TLS/1.0, irc/6.9";
        let mut wished = request(&[("connection", "keep-alive, Upgrade"), ("upgrade", names)]);
        let upgrade = upgrade_of(&mut wished).expect("some are left");
        let mut headers = HeaderMap::new();
        upgrade.ask(&mut headers);
        assert_eq!(headers["upgrade"], "WebSocket, irc/6.9");
        assert_eq!(headers["connection"], "upgrade");
        for (connection, names) in [("upgrade", "h2c"), ("keep-alive", "websocket")] {
            let mut other = request(&[("connection", connection), ("upgrade", names)]);
            assert!(upgrade_of(&mut other).is_none(), "{connection} {names}");
        }
    }

    #[test]
    fn an_answer_must_name_an_offered_protocol() {
        let mut wished = request(&[("connection", "upgrade"), ("upgrade", "websocket")]);
        let upgrade = upgrade_of(&mut wished).expect("a wish");
        let answer = |name| HeaderMap::from_iter([(UPGRADE, HeaderValue::from_static(name))]);
        assert_eq!(upgrade.protocol(&answer("WebSocket")).expect("asked for"), "WebSocket");
        for other in ["h2c", "", "websocket, h2c"] {
            assert!(upgrade.protocol(&answer(other)).is_err(), "{other}");
        }
        assert!(upgrade.protocol(&HeaderMap::new()).is_err());
    }
}
