//! Reads `services`: for each service an address, or a section with the address and the access to it. Never quotes a token.

use crate::config::{
    reader::{ConfigReader, ConfigSection},
    services::{DecisionsConfig, ForwardAuthConfig, Service, ServiceListener, Services},
};
use http::StatusCode;
use std::net::SocketAddr;

/// The address of a listener, and the key that says it.
#[derive(Clone, Copy)]
pub(super) struct TakenAddress {
    pub(super) key: &'static str,
    pub(super) address: SocketAddr,
}

impl ConfigReader {
    /// Reads the services. `taken` has the addresses of the other listeners.
    pub(super) fn services(
        &mut self,
        root: &ConfigSection<'_>,
        taken: [TakenAddress; 2],
    ) -> Services {
        let Some(section) = self.section_at(root, "services") else { return Services::default() };
        let services = Services {
            forward_auth: self.forward_auth(&section),
            envoy_rate_limit: self
                .service_listener(&section, Service::EnvoyRateLimit)
                .map(|(listener, _)| listener),
            ext_authz: self
                .service_listener(&section, Service::ExtAuthz)
                .map(|(listener, _)| listener),
            decisions: self.decisions(&section),
        };
        let mut taken = Vec::from(taken);
        for (service, listener) in services.all() {
            let (name, listen) = (service.name(), listener.listen);
            let other = taken.iter().find(|other| other.address == listen && listen.port() != 0);
            if let (Some(TakenAddress { key, .. }), Some(field)) = (other, section.get(name)) {
                let reason = format!("the same address as `{key}`; a service needs its own");
                self.note_at(&field, reason);
            }
            taken.push(TakenAddress { key: service.key(), address: listen });
        }
        services
    }

    fn forward_auth(&mut self, services: &ConfigSection<'_>) -> Option<ForwardAuthConfig> {
        let (listener, section) = self.service_listener(services, Service::ForwardAuth)?;
        let denied: Option<&str> = self.read(&section, "denied_status");
        Some(ForwardAuthConfig {
            listener,
            original: self.read_or_default(&section, "original"),
            path_prefix: self.read_by(&section, "path_prefix", path_prefix).unwrap_or_default(),
            denied_status: denied.and_then(|status| status.parse::<StatusCode>().ok()),
        })
    }

    /// Reads the service of programs. It is closed to other hosts unless they show who they are: nothing is before it, while a
    /// proxy is before the other services (see the warnings).
    fn decisions(&mut self, services: &ConfigSection<'_>) -> Option<DecisionsConfig> {
        let name = Service::Decisions.name();
        let (listener, section) = self.service_listener(services, Service::Decisions)?;
        // After a mistake in its token the listener has none.
        if let (Some(field), None, true) =
            (services.get(name), section.get("token"), listener.is_open())
        {
            self.note_at(
                &field,
                "other hosts reach this address: set `token`, or `tls` with `client_ca`, or listen on a loopback address",
            );
        }
        Some(DecisionsConfig {
            listener,
            max_wait: self.read_or_default(&section, "max_wait"),
            max_waiting: self.read_or_default(&section, "max_waiting"),
        })
    }

    /// Reads the listener of a service, and its section, which is empty if the service is written as its address alone.
    fn service_listener<'n>(
        &mut self,
        services: &ConfigSection<'n>,
        service: Service,
    ) -> Option<(ServiceListener, ConfigSection<'n>)> {
        let name = service.name();
        let Some(section) = self.long_form(services, name) else {
            let listen = self.read(services, name)?;
            let listener = ServiceListener { listen, tls: None, token: None };
            return Some((listener, services.empty_at(name)));
        };
        let how = ", as in `listen: 127.0.0.1:8082`";
        let listen: Option<SocketAddr> = self.read_required(&section, "listen", how);
        let tls = self.server_tls(&section);
        let token = section.get("token").and_then(|field| self.token(&field));
        Some((ServiceListener { listen: listen?, tls, token }, section))
    }
}

/// Reads the path before the original path. It has no escapes, so that it is compared byte by byte.
fn path_prefix(text: &str) -> Result<String, &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let mut segments = text.split('/');
    let is_path = segments.next() == Some("") && text.len() > 1;
    let is_segment =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(is_plain);
    (is_path && segments.all(is_segment)).then(|| text.to_owned()).ok_or(
        "is no path such as `/paceway`: segments of letters, digits and - . _ ~, each after a `/`",
    )
}
