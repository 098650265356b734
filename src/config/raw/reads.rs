//! Reads `share` and `revalidate`: reads that cost no permit.

use crate::config::{
    reader::{ConfigReader, ConfigSection},
    settings::{KeptMemory, Upstream},
    unit,
    value::Value as _,
    yaml::YamlValue,
};
use http::{
    HeaderName,
    header::{ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE},
};

/// The headers by which clients choose one of several forms of an answer (RFC 9110 section 12.5).
const CHOSEN_BY: [HeaderName; 3] = [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE];

impl ConfigReader {
    /// Reads `share` of a route: the headers in which identical requests agree.
    pub(super) fn share(&mut self, route: &ConfigSection<'_>) -> Option<Vec<HeaderName>> {
        let map = |_: &str| "a map, as in `share: { by: [accept] }`".into();
        let is_on = self.is_on(route, "share", map)?;
        let section = self.long_form(route, "share").filter(|own| own.get("by").is_some());
        let Some(section) = section else { return is_on.then(|| CHOSEN_BY.to_vec()) };
        Some(self.read_list(&section, "by", |reader, item| {
            reader.scalar(item, |text| text.parse().map_err(|_| "is no name of a header"))
        }))
    }

    /// Reads `revalidate` of a route whose upstream is known.
    pub(super) fn revalidate(
        &mut self,
        route: &ConfigSection<'_>,
        upstream: &Upstream,
    ) -> Option<KeptMemory> {
        if route.get("revalidate").is_none() {
            return upstream.revalidate.map(|bytes| KeptMemory { bytes, is_of_upstream: true });
        }
        self.kept_memory(route).map(|bytes| KeptMemory { bytes, is_of_upstream: false })
    }

    /// Reads `revalidate`: `on`, `off`, or a map. Returns the bytes; `None` if no answer is kept.
    pub(super) fn kept_memory(&mut self, parent: &ConfigSection<'_>) -> Option<usize> {
        let map = |written: &str| {
            let size = if unit::size(written).is_ok() { written } else { "64MiB" };
            format!("a map, as in `revalidate: {{ memory: {size} }}`")
        };
        let is_on = self.is_on(parent, "revalidate", map)?;
        let section = self.long_form(parent, "revalidate");
        let section = section.unwrap_or_else(|| parent.empty_at("revalidate"));
        is_on.then(|| self.read_or_default(&section, "memory"))
    }

    /// Whether a key that is `on`, `off` or a map is on. `None` if it is missing, or after a mistake, which says the `map` that
    /// may have been meant by a text.
    fn is_on(
        &mut self,
        parent: &ConfigSection<'_>,
        key: &str,
        map: impl Fn(&str) -> String,
    ) -> Option<bool> {
        let field = parent.get(key)?;
        match field.node.value {
            YamlValue::Map(_) => Some(true),
            YamlValue::Scalar(_) | YamlValue::Broken => {
                let kind = parent.keys.kind_of(key);
                self.scalar(&field, |text| {
                    bool::read(text, kind).map_err(|reason| {
                        // A word that is nearly `on` or `off` is no map.
                        let is_word = reason.contains("did you mean");
                        if is_word { reason } else { format!("{reason}, or {}", map(text)) }
                    })
                })
            }
            YamlValue::List(_) => {
                self.note_at(&field, format!("must be `on`, `off` or {}", map("")));
                None
            }
        }
    }
}
