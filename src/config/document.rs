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
    /// Keeps the tree of a file, except for the token of the admin side, of which only a digest is kept.
    pub(super) fn without_token(mut self) -> Self {
        if let Some(admin) = self.root.value_mut("admin")
            && let Some(token) = admin.value_mut("token")
            && let YamlValue::Scalar(token) = &mut token.value
        {
            (token.text, token.written) = ("***".into(), "***".into());
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
