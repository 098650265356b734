//! Reads `access_log` and `log`, a format or a section with it, and `tracing`.

use crate::config::{
    keys::{ACCESS_LOG, Keys, LEVEL, LOG, TRACING},
    reader::{ConfigReader, ConfigSection},
    settings::{AccessLog, EventFormat},
    traces::{CollectorUrl, OtlpProtocol, SampleRatio, TracingConfig},
    yaml::YamlValue,
};

const LEVELS: [&str; 7] = ["trace", "debug", "info", "warn", "warning", "error", "off"];

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
            None => {
                let field = root.get("log")?;
                let level = field.scalar().filter(|scalar| LEVELS.contains(&&*scalar.text));
                if let Some(level) = level {
                    let level = level.quoted("log");
                    self.note_at(&field, format!("{level} is a level; {LEVEL}"));
                    return None;
                }
                self.one_of(root, "log", &formats)
            }
        }
    }

    /// The collector of traces, and the requests that are traced.
    pub(super) fn tracing(&mut self, root: &ConfigSection<'_>) -> Option<TracingConfig> {
        let section = self.section(&root.get("tracing")?, &TRACING)?;
        let protocols = [("grpc", OtlpProtocol::Grpc), ("http", OtlpProtocol::Http)];
        let protocol = self.one_of(&section, "protocol", &protocols);
        let sample = self.get(&section, "sample", SampleRatio::default(), SampleRatio::parse);
        let field = self.required(&section, "otlp", ", as in `otlp: http://collector:4317`")?;
        let collector = self.scalar(&field, |text| CollectorUrl::parse(text, protocol))?;
        Some(TracingConfig { collector, sample })
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
