//! The settings for clients: the time-outs of their connections, the size of their requests, our certificates, and the form of our answers.

use super::keys::Choice;
use crate::tls::KeyPair;
use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

/// The time-outs of clients' connections, and how many may be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// The time from the first byte of a request to the end of its headers. It also bounds a TLS handshake and a PROXY header.
    pub header_timeout: Duration,
    /// The time between two requests on one connection.
    pub idle_timeout: Duration,
    /// The time between two pieces of a body, whether the client sends or reads it.
    pub body_timeout: Duration,
    /// The number of connections that may be open at the same time; `None` means that the limit of open files decides.
    pub max_connections: Option<NonZeroUsize>,
    /// The number of connections that one client address may have open; `None` means any number.
    pub max_connections_per_address: Option<NonZeroUsize>,
}

/// The greatest size of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of the request line and the headers together.
    pub header_bytes: usize,
    /// The number of headers.
    pub headers: usize,
    /// The bytes of the body; `None` means any number.
    pub body: Option<u64>,
    /// The bytes of a body that are read for limiters.
    pub json_body: usize,
    /// The bytes of the target in the request line.
    pub uri: usize,
    /// The bytes of all bodies together that the gateway keeps for further attempts of their requests.
    pub retry_bodies: usize,
}

/// The certificates for TLS with clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// At least one certificate. The first is shown to clients that name no host, or a host of no certificate.
    pub certificates: Vec<KeyPair>,
    /// A file of authorities. If set, clients must show a certificate of one of them.
    pub client_ca: Option<PathBuf>,
}

/// The form of the gateway's own answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnswerForm {
    /// Problems of RFC 9457.
    Problem,
    /// Errors as OpenAI's.
    OpenAi,
    /// Errors as Anthropic's.
    Anthropic,
    /// Errors as those of Google APIs.
    Google,
    /// Errors as GitHub's.
    GitHub,
    /// A GraphQL response with errors.
    GraphQl,
}

// === impl AnswerForm ===

impl Choice for AnswerForm {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("problem", Self::Problem),
        ("openai", Self::OpenAi),
        ("anthropic", Self::Anthropic),
        ("google", Self::Google),
        ("github", Self::GitHub),
        ("graphql", Self::GraphQl),
    ];
}
