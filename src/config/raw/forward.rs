//! Reads `forward`. Its authority is read and checked here, and read again at the start.

use super::services::TakenAddress;
use crate::{
    config::{
        forward::{ForwardConfig, HostPattern, OtherHosts},
        reader::{ConfigReader, ConfigSection},
        services::Services,
    },
    tls::Authority,
};
use std::net::SocketAddr;

impl ConfigReader {
    /// Reads the forward proxy. `taken` has the addresses of the listeners beside those of services.
    pub(super) fn forward(
        &mut self,
        root: &ConfigSection<'_>,
        taken: &[TakenAddress],
        services: &Services,
    ) -> Option<ForwardConfig> {
        let section = self.section_at(root, "forward")?;
        let how = ", as in `listen: 127.0.0.1:8888`";
        let listen: Option<SocketAddr> = self.read_required(&section, "listen", how);
        let of_services = services.all();
        let of_services =
            of_services.map(|(of, own)| TakenAddress { key: of.key(), address: own.listen });
        let mut taken = taken.iter().copied().chain(of_services);
        let other = taken.find(|of| Some(of.address) == listen && of.address.port() != 0);
        if let (Some(TakenAddress { key, .. }), Some(field)) = (other, section.get("listen")) {
            let reason = format!("the same address as `{key}`; the forward proxy needs its own");
            self.note_at(&field, reason);
        }
        let how = ": the authority that clients trust, as in `ca: { cert: ca.pem, key: ca.key }`; `paceway ca` makes one";
        self.required(&section, "ca", how);
        let ca = self.section_at(&section, "ca").and_then(|ca| self.pair(&ca));
        if let (Some(pair), Some(field), false) = (&ca, section.get("ca"), self.is_offline)
            && let Err(error) = Authority::load(pair)
        {
            self.note_at(&field, error);
        }
        let others = self.read_or_default(&section, "others");
        let allow = self
            .read_list(&section, "allow", |reader, item| reader.scalar(item, HostPattern::parse));
        match (others, section.get("allow")) {
            (OtherHosts::Refuse, Some(field)) if !allow.is_empty() => {
                self.note_at(
                    &field,
                    "is for `others: tunnel`; with `others: refuse` no other host is reached",
                );
            }
            (OtherHosts::Tunnel, field) if allow.is_empty() => {
                let place = field.or(section.get("others"));
                let place = place.map_or(section.place, |field| field.node.place);
                let reason =
                    "names no host that `others: tunnel` may reach, as in `allow: [\"*.example\"]`";
                self.note(place, "forward.allow", reason);
            }
            _ => {}
        }
        Some(ForwardConfig { listen: listen?, ca: ca?, allow })
    }
}
