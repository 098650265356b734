//! The proxy through which an upstream is reached: asks it for a tunnel (CONNECT, RFC 9110 section 9.3.6). Never shows its
//! password.

use super::target::Target;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use std::{error::Error, fmt, io, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The most bytes of the proxy's answer.
const ANSWER: usize = 16 << 10;
/// The most bytes of it that are read at one time.
const PIECE: usize = 1 << 10;
const HEADERS: usize = 100;

/// The URL of a proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Via {
    /// The proxy as connections are made to it.
    pub(super) proxy: Target,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
}

/// The error of an upstream that its proxy does not lead to.
#[derive(Debug)]
pub struct ViaError {
    /// The host and port of the proxy, without user and password.
    proxy: String,
    cause: ViaCause,
}

/// Why no tunnel through a proxy is open.
#[derive(Debug, thiserror::Error)]
pub(super) enum ViaCause {
    #[error("its name has no known address")]
    NoAddress(#[source] Arc<dyn Error + Send + Sync>),
    #[error("no DNS server answered for its name in time")]
    NameTimeout,
    #[error("it cannot be connected to")]
    Unconnected(#[source] io::Error),
    #[error("it did not accept a connection in time")]
    ConnectTimeout,
    #[error("it did not answer CONNECT in time")]
    AnswerTimeout,
    #[error(
        "it answered 407: it wants a user and a password, as in `via: http://USER:PASSWORD@{0}`"
    )]
    CredentialsMissing(String),
    #[error("it answered 407: it refuses the user or the password of `via`")]
    CredentialsRefused,
    #[error(
        "it answered 407 and takes {0} alone, but the gateway can only speak Basic to a proxy; have it take Basic, or \
         name a proxy that speaks {0} to it"
    )]
    OtherAuthentication(String),
    #[error("it answered {status} to the CONNECT to {to}")]
    Refused {
        /// The status of its answer.
        status: u16,
        /// The host and port that it was asked for.
        to: String,
    },
    #[error("its answer to CONNECT is not as HTTP/1.1 writes it; is it an HTTP proxy?")]
    NoHttp,
    #[error("the connection to it broke before it answered CONNECT")]
    Broken(#[from] io::Error),
}

/// The part of an answer to CONNECT that decides.
#[derive(Debug, PartialEq, Eq)]
struct ConnectAnswer {
    status: u16,
    /// The length of its head.
    length: usize,
    /// The ways to name a user that a 407 offers, in place of Basic; empty if Basic is one of them, or none is named.
    others: Vec<String>,
}

// === impl Via ===

impl Via {
    /// Reads `http://[USER:PASSWORD@]HOST:PORT`.
    ///
    /// # Errors
    ///
    /// The reason, which never quotes the URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        const SHAPE: &str = "write http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT";
        let rest = url.strip_prefix("http://").ok_or_else(|| {
            if url.contains("://") {
                format!("only proxies that are spoken to over http:// are known; {SHAPE}")
            } else {
                format!("it has no scheme; {SHAPE}")
            }
        })?;
        let (credentials, host) = match rest.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, rest),
        };
        let proxy = Target::parse(&format!("http://{host}")).ok();
        let is_whole = |proxy: &Target| proxy.base.is_empty() && proxy.origin.port().is_some();
        let proxy = proxy.filter(is_whole).ok_or(SHAPE)?;
        let authorization = credentials.map(|credentials| {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            let both = [decode(user)?, b":".to_vec(), decode(password)?].concat();
            Ok::<_, String>(format!("Basic {}", BASE64.encode(both)))
        });
        Ok(Self { proxy, authorization: authorization.transpose()? })
    }

    /// Whether it has a password.
    pub fn has_credentials(&self) -> bool {
        self.authorization.is_some()
    }

    /// The host and port of the proxy.
    pub(super) fn host_and_port(&self) -> String {
        String::from_utf8_lossy(self.proxy.host.as_bytes()).into_owned()
    }

    pub(super) fn error(&self, cause: ViaCause) -> ViaError {
        ViaError { proxy: self.host_and_port(), cause }
    }

    /// Asks the proxy at the other end of `stream` for a tunnel to `target`. Sets no time-out. Leaves the first bytes of the
    /// tunnel unread.
    pub(super) async fn open(
        &self,
        stream: &mut TcpStream,
        target: &Target,
        is_http2: bool,
    ) -> Result<(), ViaError> {
        // A server of HTTP/2 in clear text begins with its settings. TLS and HTTP/1.1 are silent until we speak.
        let is_silent = target.is_https() || !is_http2;
        self.ask(stream, target, is_silent).await.map_err(|cause| self.error(cause))
    }

    async fn ask(
        &self,
        stream: &mut TcpStream,
        target: &Target,
        is_silent: bool,
    ) -> Result<(), ViaCause> {
        let host = target.origin.host().unwrap_or_default();
        let authority = format!("{host}:{}", target.port());
        let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
        if let Some(value) = &self.authorization {
            request.push_str(&format!("Proxy-Authorization: {value}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        let (mut answer, mut piece) = (Vec::new(), [0; PIECE]);
        loop {
            let seen = stream.peek(&mut piece).await?;
            if seen == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let before = answer.len();
            answer.extend_from_slice(&piece[..seen]);
            let read = read(&answer)?;
            let taken = read.as_ref().map_or(seen, |read| read.length - before);
            stream.read_exact(&mut piece[..taken]).await?;
            let Some(ConnectAnswer { status, others, .. }) = read else { continue };
            return Err(match status {
                200..=299 if is_silent && taken < seen => ViaCause::NoHttp,
                200..=299 => return Ok(()),
                407 if !others.is_empty() => ViaCause::OtherAuthentication(others.join(" or ")),
                407 if self.has_credentials() => ViaCause::CredentialsRefused,
                407 => ViaCause::CredentialsMissing(self.host_and_port()),
                status => ViaCause::Refused { status, to: authority },
            });
        }
    }
}

impl fmt::Debug for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authorization = self.authorization.as_ref().map(|_| "***");
        f.debug_struct("Via")
            .field("proxy", &self.proxy.origin)
            .field("authorization", &authorization)
            .finish()
    }
}

// === impl ViaError ===

impl ViaError {
    /// The error of the attempt to connect to the proxy, if that failed.
    pub(super) fn of_tcp(&self) -> Option<&io::Error> {
        match &self.cause {
            ViaCause::Unconnected(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for ViaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { proxy, cause } = self;
        write!(f, "the upstream cannot be reached, because of the proxy {proxy} (`via`): {cause}")
    }
}

impl Error for ViaError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.source()
    }
}

/// Reads an answer; `None` if its head is not complete.
fn read(answer: &[u8]) -> Result<Option<ConnectAnswer>, ViaCause> {
    let mut fields = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Response::new(&mut fields);
    match head.parse(answer) {
        Ok(httparse::Status::Complete(end)) => {
            let status = head.code.ok_or(ViaCause::NoHttp)?;
            let others = other_schemes(head.headers);
            Ok(Some(ConnectAnswer { status, length: end, others }))
        }
        Ok(httparse::Status::Partial) if answer.len() < ANSWER => Ok(None),
        _ => Err(ViaCause::NoHttp),
    }
}

/// The authentication schemes of `Proxy-Authenticate` (RFC 9110 section 11.7.1), at most three; none if Basic is among them.
fn other_schemes(fields: &[httparse::Header<'_>]) -> Vec<String> {
    let of_name =
        |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case("proxy-authenticate");
    let values = fields.iter().filter(of_name).filter_map(|field| str::from_utf8(field.value).ok());
    // A list has parameters of a scheme, too: `Digest realm="x", qop="auth", Basic realm="x"`.
    let words =
        values.flat_map(|value| value.split(',')).filter_map(|item| item.split_whitespace().next());
    let is_scheme =
        |word: &&str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let mut schemes: Vec<_> =
        words.filter(is_scheme).map(|word| word[..word.len().min(20)].to_owned()).collect();
    if schemes.iter().any(|scheme| scheme.eq_ignore_ascii_case("basic")) {
        schemes.clear();
    }
    schemes.truncate(3);
    schemes
}

/// Reads a user or a password, in which `%40` stands for `@`.
fn decode(text: &str) -> Result<Vec<u8>, String> {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let [byte, after @ ..] = rest {
        let (read, left) = match after {
            [high, low, left @ ..] if *byte == b'%' => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let value = digit(high).zip(digit(low)).map(|(high, low)| 16 * high + low);
                (value.and_then(|value| u8::try_from(value).ok()), left)
            }
            _ => (Some(*byte).filter(|byte| *byte != b'%'), after),
        };
        let why = "its user or password has a % without two digits after it; a % is written %25";
        out.push(read.ok_or(why)?);
        rest = left;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::no_credentials("http://proxy.corp:3128", None)]
    #[case::a_user("http://me@proxy.corp:3128", Some("Basic bWU6"))]
    #[case::a_password("http://me:a%40b@proxy.corp:3128", Some("Basic bWU6YUBi"))]
    #[case::a_plain_at("http://me:a@b@proxy.corp:3128", Some("Basic bWU6YUBi"))]
    fn a_url_is_read(#[case] url: &str, #[case] authorization: Option<&str>) {
        let via = Via::parse(url).unwrap();
        assert_eq!(via.authorization.as_deref(), authorization);
        assert_eq!((via.proxy.host_name(), via.proxy.port()), ("proxy.corp", 3128));
        assert!(!format!("{via:?}").contains("bWU6"), "{via:?}");
    }

    #[rstest]
    #[case("proxy.corp:3128")]
    #[case("https://me:secret@proxy.corp:3128")]
    #[case("socks5://me:secret@proxy.corp:1080")]
    #[case("http://me:secret@proxy.corp")]
    #[case("http://me:secret@proxy.corp:3128/path")]
    #[case("http://me:secret%2@proxy.corp:3128")]
    #[case("http://me:secret@:3128")]
    fn a_mistake_never_quotes_the_password(#[case] url: &str) {
        let reason = Via::parse(url).unwrap_err();
        assert!(!reason.contains("secret"), "{reason}");
    }

    #[rstest]
    #[case::open("HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n", Some(Some(200)))]
    #[case::refused("HTTP/1.1 407 No\r\nContent-Length: 2\r\n\r\nno", Some(Some(407)))]
    #[case::the_beginning("HTTP/1.1 200 Conn", Some(None))]
    #[case::no_http("SSH-2.0-x\r\n", None)]
    fn an_answer_is_read(#[case] answer: &str, #[case] expected: Option<Option<u16>>) {
        let answer = read(answer.as_bytes()).ok();
        assert_eq!(answer.map(|read| read.map(|answer| answer.status)), expected);
    }

    #[rstest]
    #[case::none("", &[])]
    #[case::negotiate("Proxy-Authenticate: Negotiate\r\nproxy-authenticate: NTLM\r\n", &["Negotiate", "NTLM"])]
    #[case::digest("Proxy-Authenticate: Digest realm=\"a b\", qop=\"auth\", nonce=\"x\"\r\n", &["Digest"])]
    #[case::basic_too("Proxy-Authenticate: Negotiate, BASIC realm=\"x\"\r\n", &[])]
    #[case::basic_alone("Proxy-Authenticate: Basic\r\n", &[])]
    fn schemes_that_are_not_spoken_are_named(#[case] fields: &str, #[case] others: &[&str]) {
        let answer = format!("HTTP/1.1 407 No\r\n{fields}\r\n");
        assert_eq!(read(answer.as_bytes()).unwrap().unwrap().others, others);
    }
}
