//! Writes plain tables for terminals: columns of equal width, no colours, no lines.

/// Returns the lines of a table. A column whose cells are all numbers, or `-`, is aligned on the right.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let is_number = |cell: &str| {
        cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit()) && !cell.contains('/')
    };
    let columns = (0..N).map(|i| {
        let cells = || rows.iter().map(|row| row[i].as_str());
        let width = cells().chain([head[i]]).map(|cell| cell.chars().count()).max();
        (width.unwrap_or_default(), i > 0 && cells().all(is_number))
    });
    let columns: Vec<_> = columns.collect();
    let mut out = String::new();
    let head = head.map(str::to_owned);
    for row in [&head].into_iter().chain(rows) {
        let cells = row.iter().zip(&columns).map(|(cell, (width, is_right))| {
            if *is_right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Writes milliseconds in the unit that fits, such as `2.5s`.
pub(super) fn millis(span: f64) -> String {
    match span {
        span if span <= 0.0 => "0".into(),
        span if span < 1000.0 => format!("{}ms", (span * 10.0).round() / 10.0),
        span if span < 120_000.0 => format!("{}s", (span / 100.0).round() / 10.0),
        span if span < 7_200_000.0 => format!("{}min", (span / 6_000.0).round() / 10.0),
        span => format!("{}h", (span / 360_000.0).round() / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_right() {
        let rows = [["a", "5/s", "12"], ["longer", "20/min", "-"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        let expected = "NAME    RATE    LEVEL\na       5/s        12\nlonger  20/min      -\n";
        assert_eq!(table(["NAME", "RATE", "LEVEL"], &rows), expected);
    }

    #[test]
    fn durations_are_shown_in_a_fitting_unit() {
        let shown = [0.0, 12.34, 2500.0, 600_000.0, 7_200_000.0].map(millis);
        assert_eq!(shown, ["0", "12.3ms", "2.5s", "10min", "2h"]);
    }
}
