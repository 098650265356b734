//! Reads `access_log` and `log`: a format, or a section with it.

use crate::config::{
    keys::{ACCESS_LOG, Keys, LOG},
    reader::{ConfigReader, ConfigSection},
    settings::{AccessLog, EventFormat},
    yaml::YamlValue,
};

impl ConfigReader {
    /// The form of access lines, and whether they have the user agent.
    pub(super) fn access_log(&mut self, root: &ConfigSection<'_>) -> (Option<AccessLog>, bool) {
        let formats =
            [("off", AccessLog::Off), ("text", AccessLog::Text), ("json", AccessLog::Json)];
        match self.long_form(root, "access_log", &ACCESS_LOG) {
            Some(section) => {
                let format = self.one_of(&section, "format", &formats);
                (format, self.switch(&section, "user_agent"))
            }
            None => (self.one_of(root, "access_log", &formats), false),
        }
    }

    /// The form of events.
    pub(super) fn log(&mut self, root: &ConfigSection<'_>) -> Option<EventFormat> {
        let formats = [("text", EventFormat::Text), ("json", EventFormat::Json)];
        match self.long_form(root, "log", &LOG) {
            Some(section) => self.one_of(&section, "format", &formats),
            None => self.one_of(root, "log", &formats),
        }
    }

    /// The section at `key`, if its value is one and not a single word.
    fn long_form<'n>(
        &mut self,
        root: &ConfigSection<'n>,
        key: &str,
        keys: &Keys,
    ) -> Option<ConfigSection<'n>> {
        let field = root.get(key)?;
        matches!(field.node.value, YamlValue::Map(_)).then(|| self.section(&field, keys)).flatten()
    }
}
