//! Reads `access_log` and `log`, a format or a section with it, and `tracing`.

use crate::config::{
    keys::LEVEL,
    reader::{ConfigReader, ConfigSection},
    settings::{AccessLog, EventFormat},
    traces::{CollectorUrl, SampleRatio, TracingConfig},
};

const LEVELS: [&str; 7] = ["trace", "debug", "info", "warn", "warning", "error", "off"];

impl ConfigReader {
    /// The form of access lines, and whether they have the user agent.
    pub(super) fn access_log(&mut self, root: &ConfigSection<'_>) -> (Option<AccessLog>, bool) {
        match self.long_form(root, "access_log") {
            Some(section) => {
                let format = self.read(&section, "format");
                (format, self.read_or_default(&section, "user_agent"))
            }
            None => (self.read(root, "access_log"), false),
        }
    }

    /// The form of events.
    pub(super) fn log(&mut self, root: &ConfigSection<'_>) -> Option<EventFormat> {
        if let Some(section) = self.long_form(root, "log") {
            return self.read(&section, "format");
        }
        let field = root.get("log")?;
        let level = field.scalar().filter(|scalar| LEVELS.contains(&&*scalar.text));
        if let Some(level) = level {
            let level = level.quoted("log");
            self.note_at(&field, format!("{level} is a level; {LEVEL}"));
            return None;
        }
        self.read(root, "log")
    }

    /// The collector of traces, and the requests that are traced.
    pub(super) fn tracing(&mut self, root: &ConfigSection<'_>) -> Option<TracingConfig> {
        let section = self.section_at(root, "tracing")?;
        let protocol = self.read(&section, "protocol");
        let sample = self.read_by_or_default(&section, "sample", SampleRatio::parse);
        let how = ", as in `otlp: http://collector:4317`";
        let read = |text: &str| CollectorUrl::parse(text, protocol);
        let collector = self.require_by(&section, "otlp", how, read)?;
        Some(TracingConfig { collector, sample })
    }
}
