//! The accounts of an upstream: several credentials, or several addresses, for one API. A request takes the account whose slot is
//! the earliest.

use crate::{
    key::AccountNames,
    throttle::{Condition, Style, ThrottleRules},
    upstream::Target,
};
use http::{HeaderName, HeaderValue, StatusCode};
use std::{fmt, time::Duration};

/// The accounts of one upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounts {
    /// At least one, in the order of the file.
    pub all: Vec<Account>,
    /// The answers by which the vendor rejects an account: it is not used then.
    pub park: ThrottleRules,
    /// How long it is not used.
    pub park_for: Duration,
}

/// One credential, or one address, of an upstream.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// The name in metrics, logs and pages, which is no secret.
    pub name: String,
    /// The name of the quota, which other accounts may share.
    pub quota: String,
    /// The headers that a request gets with this account. Their values are shown nowhere.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The address that it has of its own.
    pub(super) target: Option<Target>,
    /// The index of the upstream with its addresses: the one whose account it is, unless it has a URL of its own.
    pub upstream: usize,
    /// It is used only where the slots of accounts with a smaller number come later than this.
    pub after: Duration,
    /// The statuses of answers of other accounts after which a request moves to this one.
    pub on: Vec<StatusClass>,
}

/// A status, or all statuses with the same first digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusClass {
    /// Such as 503.
    One(StatusCode),
    /// Such as 5, for `5xx`.
    Class(u16),
}

// === impl Accounts ===

impl Accounts {
    /// The conditions of `park` unless they are written.
    pub const PARKS: [&'static str; 2] = ["401", "403 with json /message=Bad credentials"];

    /// The rules by which answers are read for `park`.
    pub fn parking(when: Vec<Condition>) -> ThrottleRules {
        ThrottleRules::new(Style::Auto, Some(when))
    }

    /// The names of all headers that some account sets: no request leaves with another account's credentials, or with those of
    /// its client.
    pub fn names(&self) -> Vec<HeaderName> {
        let mut names: Vec<HeaderName> = Vec::new();
        for (name, _) in self.all.iter().flat_map(|account| &account.headers) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}

// === impl Account ===

impl Account {
    /// Its names for keys.
    pub fn names(&self) -> AccountNames<'_> {
        AccountNames { name: &self.name, quota: &self.quota }
    }

    /// The URL that it has of its own.
    pub fn url(&self) -> Option<String> {
        let Target { origin, base, .. } = self.target.as_ref()?;
        Some(format!("{}{base}", origin.to_string().trim_end_matches('/')))
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("name", &self.name).finish_non_exhaustive()
    }
}

// === impl StatusClass ===

impl StatusClass {
    /// Reads `503` or `5xx`.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "4xx" => return Ok(Self::Class(4)),
            "5xx" => return Ok(Self::Class(5)),
            _ => {}
        }
        match StatusCode::from_bytes(text.as_bytes()) {
            Ok(status) if (400..600).contains(&status.as_u16()) => Ok(Self::One(status)),
            _ => Err("is no status of a failure; write one from 400 to 599, `4xx` or `5xx`"),
        }
    }

    /// Whether `status` is one of these.
    pub fn has(self, status: StatusCode) -> bool {
        match self {
            Self::One(own) => own == status,
            Self::Class(class) => status.as_u16() / 100 == class,
        }
    }
}
