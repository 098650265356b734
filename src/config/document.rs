//! The text of a configuration as a tree. A [`super::Config`] keeps it, so that edits and rows of a database can replace or
//! add single values.

use super::yaml::{YamlNode, YamlValue};
use std::{fmt, path::PathBuf};

/// A configuration file as a tree, with variables and secrets filled in.
#[derive(Clone)]
pub(super) struct Document {
    pub(super) root: YamlNode,
    pub(super) directory: PathBuf,
    pub(super) file: String,
    /// Whether the files that the configuration names are left unread.
    pub(super) is_offline: bool,
}

// === impl Document ===

impl Document {
    /// Whether the map at the key `section` at the top has a value for `key`.
    pub(super) fn says(&self, section: &str, key: &str) -> bool {
        let YamlValue::Map(entries) = &self.root.value else { return false };
        entries.iter().any(|own| own.key.name == section && own.node.says(key))
    }

    /// Keeps the tree of a file, except for the tokens of the admin side and of services, of which only digests are kept.
    pub(super) fn without_tokens(mut self) -> Self {
        let hide = |section: Option<&mut YamlNode>| {
            if let Some(token) = section.and_then(|section| section.value_mut("token"))
                && let YamlValue::Scalar(token) = &mut token.value
            {
                (token.text, token.written) = ("***".into(), "***".into());
            }
        };
        hide(self.root.value_mut("admin"));
        if let Some(services) = self.root.value_mut("services") {
            hide(services.value_mut("forward_auth"));
            hide(services.value_mut("envoy_rate_limit"));
            hide(services.value_mut("ext_authz"));
            hide(services.value_mut("decisions"));
        }
        self
    }
}

/// Two configurations are equal if their settings are, however the files are written.
impl PartialEq for Document {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Document {}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document").field("file", &self.file).finish_non_exhaustive()
    }
}
