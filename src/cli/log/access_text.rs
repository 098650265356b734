//! The access line as text, short enough for a terminal. Lines of JSON have all fields.

use std::{collections::BTreeMap, fmt};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// The most characters of a path and of a key.
const MOST: usize = 32;
/// The last digits of a request id. The first half of the ids that a worker makes is the same.
const DIGITS: usize = 8;

/// Writes a request as `14:03:07.123Z 200 waited wait=1.2s GET /search key=acme upstream=34ms id=3f2a9c1d`.
pub(super) struct AccessText;

/// The fields of a line, as text.
#[derive(Default)]
struct LineFields(BTreeMap<&'static str, String>);

// === impl AccessText ===

impl<S, N> FormatEvent<S, N> for AccessText
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        // The time of day, in ms, of 2026-11-26T14:03:07.123456Z.
        let time = time.get(11..23).unwrap_or(&time);
        let mut fields = LineFields::default();
        event.record(&mut fields);
        let get = |name: &str| fields.0.get(name).map_or("-", String::as_str);
        let (status, outcome, wait) = (get("status"), get("outcome"), get("wait_ms"));
        write!(writer, "{time}Z {status} {outcome} wait={wait}")?;
        write!(writer, " {} {}", get("method"), shorten(get("path")))?;
        for (name, field) in [("key", "key"), ("upstream", "upstream_ms")] {
            if let Some(value) = fields.0.get(field) {
                write!(writer, " {name}={}", shorten(value))?;
            }
        }
        let id = get("request_id");
        let skipped = id.chars().count().saturating_sub(DIGITS);
        writeln!(writer, " id={}", id.chars().skip(skipped).collect::<String>())
    }
}

// === impl LineFields ===

impl Visit for LineFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_f64(&mut self, field: &Field, ms: f64) {
        let span = match ms {
            ms if ms <= 0.0 => "0".into(),
            ms if ms < 9.95 => format!("{ms:.1}ms"),
            ms if ms < 1_000.0 => format!("{ms:.0}ms"),
            ms => format!("{:.1}s", ms / 1_000.0),
        };
        self.0.insert(field.name(), span);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// The text up to [`MOST`] characters, without any that would move the cursor of a terminal.
fn shorten(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    let mut shown: String = text.chars().take(MOST).map(plain).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}
