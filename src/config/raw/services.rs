//! Reads `services`: for each service an address, or a section with the address and the access to it. Never quotes a token.

use super::address;
use crate::config::{
    keys::{DECISIONS, ENVOY_RATE_LIMIT, EXT_AUTHZ, FORWARD_AUTH, Keys, SERVICES},
    reader::{ConfigReader, ConfigSection, Field, positive, span},
    services::{
        DecisionsConfig, ForwardAuthConfig, OriginalRequest, Service, ServiceListener, Services,
    },
    yaml::YamlValue,
};
use http::StatusCode;
use std::{net::SocketAddr, time::Duration};

impl ConfigReader {
    /// Reads the services. `taken` has the addresses of the other listeners, with their keys.
    pub(super) fn services(
        &mut self,
        root: &ConfigSection<'_>,
        taken: [(&'static str, SocketAddr); 2],
    ) -> Services {
        let mut services = Services::default();
        let Some(field) = root.get("services") else { return services };
        let Some(section) = self.section(&field, &SERVICES) else { return services };
        if let Some(field) = section.get(Service::ForwardAuth.name()) {
            services.forward_auth = self.forward_auth(&field);
        }
        if let Some(field) = section.get(Service::EnvoyRateLimit.name()) {
            let listener = self.service_listener(&field, &ENVOY_RATE_LIMIT);
            services.envoy_rate_limit = listener.map(|(listener, _)| listener);
        }
        if let Some(field) = section.get(Service::ExtAuthz.name()) {
            let listener = self.service_listener(&field, &EXT_AUTHZ);
            services.ext_authz = listener.map(|(listener, _)| listener);
        }
        if let Some(field) = section.get(Service::Decisions.name()) {
            services.decisions = self.decisions(&field);
        }
        let mut taken = Vec::from(taken);
        for (service, listener) in services.all() {
            let (name, listen) = (service.name(), listener.listen);
            let other = taken.iter().find(|(_, other)| *other == listen && listen.port() != 0);
            if let (Some((other, _)), Some(field)) = (other, section.get(name)) {
                self.note_at(
                    &field,
                    format!("the same address as `{other}`; a service needs its own"),
                );
            }
            taken.push((service.key(), listen));
        }
        services
    }

    fn forward_auth(&mut self, field: &Field<'_>) -> Option<ForwardAuthConfig> {
        let (listener, section) = self.service_listener(field, &FORWARD_AUTH)?;
        let mut config = ForwardAuthConfig {
            listener,
            original: OriginalRequest::Auto,
            path_prefix: String::new(),
            denied_status: None,
        };
        if let Some(section) = section {
            let choices = [
                ("auto", OriginalRequest::Auto),
                ("x-forwarded", OriginalRequest::Forwarded),
                ("x-original", OriginalRequest::Original),
                ("target", OriginalRequest::Target),
            ];
            config.original =
                self.one_of(&section, "original", &choices).unwrap_or(config.original);
            config.path_prefix = self.get(&section, "path_prefix", String::new(), path_prefix);
            let statuses = [
                ("401", StatusCode::UNAUTHORIZED),
                ("403", StatusCode::FORBIDDEN),
                ("429", StatusCode::TOO_MANY_REQUESTS),
            ];
            config.denied_status = self.one_of(&section, "denied_status", &statuses);
        }
        Some(config)
    }

    /// Reads the service of programs.
    fn decisions(&mut self, field: &Field<'_>) -> Option<DecisionsConfig> {
        let (listener, section) = self.closed_listener(field, &DECISIONS)?;
        let mut config =
            DecisionsConfig { listener, max_wait: Duration::from_secs(30), max_waiting: 10_000 };
        if let Some(section) = section {
            config.max_wait = self.get(&section, "max_wait", config.max_wait, |text| {
                span(text, Duration::ZERO, Duration::from_secs(3600))
            });
            let most = self.get(&section, "max_waiting", 10_000, |text| positive(text, 10_000_000));
            config.max_waiting = usize::try_from(most).unwrap_or(usize::MAX);
        }
        Some(config)
    }

    /// Reads the listener of the service of programs. It is closed to other hosts unless they show who they are: nothing is
    /// before it, while a proxy is before the other services (see the warnings).
    fn closed_listener<'n>(
        &mut self,
        field: &Field<'n>,
        keys: &Keys,
    ) -> Option<(ServiceListener, Option<ConfigSection<'n>>)> {
        let (listener, section) = self.service_listener(field, keys)?;
        // After a mistake in its token the listener has none.
        let says_token = section.as_ref().is_some_and(|section| section.get("token").is_some());
        if listener.is_open() && !says_token {
            self.note_at(
                field,
                "other hosts reach this address: set `token`, or `tls` with `client_ca`, or listen on a loopback address",
            );
        }
        Some((listener, section))
    }

    /// Reads the listener of a service, and returns its section if it is written as one.
    fn service_listener<'n>(
        &mut self,
        field: &Field<'n>,
        keys: &Keys,
    ) -> Option<(ServiceListener, Option<ConfigSection<'n>>)> {
        let YamlValue::Map(_) = field.node.value else {
            let listen = self.scalar(field, address)?;
            return Some((ServiceListener { listen, tls: None, token: None }, None));
        };
        let section = self.section(field, keys)?;
        let listen = self.required(&section, "listen", ", as in `listen: 127.0.0.1:8082`");
        let listen = listen.and_then(|field| self.scalar(&field, address));
        let tls = self.server_tls(&section);
        let token = section.get("token").and_then(|field| self.token(&field));
        Some((ServiceListener { listen: listen?, tls, token }, Some(section)))
    }
}

/// Reads the path before the original path. It has no escapes, so that it is compared byte by byte.
fn path_prefix(text: &str) -> Result<String, &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let mut segments = text.split('/');
    let is_path = segments.next() == Some("") && text.len() > 1;
    let is_segment =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(is_plain);
    match is_path && segments.all(is_segment) {
        true => Ok(text.to_owned()),
        false => Err(
            "is no path such as `/paceway`: segments of letters, digits and - . _ ~, each after a `/`",
        ),
    }
}
