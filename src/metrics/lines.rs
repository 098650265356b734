//! The lines of the text format that are not values: help, type and labels. Names no metric.

use metrics_exporter_prometheus::formatting::{
    sanitize_label_value, write_help_line, write_type_line,
};

/// Appends the help and the type of the metric `name`, which come before its values.
pub(super) fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    write_help_line(text, name, None, None, help);
    write_type_line(text, name, None, None, kind);
}

/// Returns a label as the text contains it, such as `route="search"`.
pub(super) fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", sanitize_label_value(value))
}
