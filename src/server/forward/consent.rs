//! Decides which hosts a CONNECT may name. Opens nothing.

use super::{DoorHosts, ForwardDoor};
use crate::{answer::Failure, config::HostPattern, plan::Plan, upstream::UrlOrigin};
use rustls::pki_types::ServerName;

/// The decision about a CONNECT.
pub(super) enum Consent {
    /// The gateway answers as the host.
    Open,
    /// A tunnel, which may lead to this machine if the host was named.
    Tunnel { may_be_local: bool },
}

// === impl ForwardDoor ===

impl ForwardDoor {
    /// Decides a CONNECT.
    pub(super) fn consent(&self, plan: &Plan, origin: &UrlOrigin) -> Result<Consent, Failure> {
        let consent = match &self.hosts {
            DoorHosts::Any { only, .. }
                if only.is_empty() || only.iter().any(|own| **own == *origin.host) =>
            {
                Consent::Open
            }
            DoorHosts::Any { .. } => Consent::Tunnel { may_be_local: true },
            DoorHosts::Upstreams => {
                let forward = plan.forward.as_ref();
                let allow = plan.config.forward.iter().flat_map(|own| &own.allow);
                let mut patterns = allow.filter(|pattern| pattern.takes(origin)).peekable();
                if forward.is_some_and(|routes| routes.has_host(origin)) {
                    Consent::Open
                } else if patterns.peek().is_some() {
                    Consent::Tunnel { may_be_local: patterns.any(HostPattern::is_exact) }
                } else {
                    let host = origin.host_and_port();
                    let why = format!("no upstream of this gateway is at {host}");
                    return Err(Failure::Forbidden(why.into()));
                }
            }
        };
        if ServerName::try_from(&*origin.host).is_err() {
            return Err(Failure::Malformed(
                "CONNECT names no host that a certificate can have".into(),
            ));
        }
        Ok(consent)
    }
}
