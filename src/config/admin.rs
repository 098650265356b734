//! The settings of the admin side: its address, and the access to it. Keeps no token, only its digest.

use super::keys::Choice;
use sha2::{Digest, Sha256};
use std::{fmt, net::SocketAddr};
use subtle::ConstantTimeEq;

/// The address of the admin side, and the access to its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// The address on which the admin side listens.
    pub listen: SocketAddr,
    /// The token that every change needs. `None` lets loopback addresses change everything, and others nothing.
    pub token: Option<AdminToken>,
    /// The access to pages that change nothing.
    pub read: AdminRead,
}

/// The access to the pages of the admin side that change nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminRead {
    /// Every page can be read without the token.
    Open,
    /// Only `/metrics`, `/healthz` and `/readyz` can be read without the token.
    Token,
}

/// The SHA-256 digest of a token, so that no dump of the configuration holds the token itself.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken([u8; 32]);

// === impl AdminRead ===

impl Choice for AdminRead {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("open", Self::Open), ("token", Self::Token)];
}

// === impl AdminToken ===

impl AdminToken {
    /// The digest of `text`.
    pub fn new(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Whether `text` is the token. The time that the comparison takes says nothing about the token.
    pub fn is(&self, text: &[u8]) -> bool {
        let other: [u8; 32] = Sha256::digest(text).into();
        self.0.ct_eq(&other).into()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(***)")
    }
}
