//! Reads `admin`: an address, or a section with the address and the access to it. Never quotes a token.

use crate::config::{
    admin::{AdminConfig, AdminRead, AdminToken},
    reader::{ConfigReader, ConfigSection, Field},
};

/// The most bytes of a token: it has to fit into a header.
const MAX_TOKEN: usize = 4096;

impl ConfigReader {
    pub(super) fn admin(&mut self, root: &ConfigSection<'_>) -> AdminConfig {
        let section = self.long_form(root, "admin");
        let listen = match &section {
            Some(section) => self.read_or_default(section, "listen"),
            None => self.read_or_default(root, "admin"),
        };
        let section = section.unwrap_or_else(|| root.empty_at("admin"));
        let token = section.get("token");
        let admin = AdminConfig {
            listen,
            token: token.as_ref().and_then(|field| self.token(field)),
            read: self.read_or_default(&section, "read"),
        };
        if let (AdminRead::Token, None, Some(read)) = (admin.read, token, section.get("read")) {
            let reason = "needs a `token`, as in `token: \"${file:/run/secrets/admin}\"`";
            self.note_at(&read, reason);
        }
        admin
    }

    pub(super) fn token(&mut self, field: &Field<'_>) -> Option<AdminToken> {
        let Some(scalar) = field.scalar() else {
            self.note_at(field, "must be a single value");
            return None;
        };
        let text = scalar.text.as_str();
        let reason = match text.len() {
            0 => "is empty; without a token, leave the key out",
            length if length > MAX_TOKEN => "is longer than 4KiB",
            _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                "holds a space, a line break or a letter outside ASCII, which no `Authorization` header may"
            }
            _ => {
                if !scalar.is_from_outside() {
                    self.clear_secrets.push(field.path.clone());
                }
                return Some(AdminToken::new(text));
            }
        };
        self.note_at(field, reason);
        None
    }
}
