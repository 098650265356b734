//! The measured figures as tables, for a terminal and for `docs/performance.md`.

use crate::rounds::Spread;
use std::{fs, io, path::Path};

/// `make bench` replaces the lines of the document between these two marks. People write the rest.
const BEGIN: &str = "<!-- measured: `make bench` writes all lines from here on -->";
const END: &str = "<!-- measured: end -->";

/// A figure with the targets that it is judged by.
#[derive(Debug)]
pub struct Row {
    pub what: &'static str,
    /// `None` for a figure without a target, which is there for comparison.
    pub target: Option<Target>,
    pub decimals: usize,
    /// The figure, or the reason why it is missing.
    pub measured: Result<Spread, String>,
}

#[derive(Debug, Clone, Copy)]
pub enum Target {
    AtMost { must: f64, aim: Option<f64> },
    AtLeast { must: f64 },
}

/// A table of figures that are not ratios, such as µs and requests/s.
#[derive(Debug)]
pub struct Table {
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// One bar of `docs/performance.svg`.
#[derive(Debug)]
pub struct Bar {
    pub group: &'static str,
    pub name: &'static str,
    pub value: f64,
}

/// All that the parts have measured so far.
#[derive(Debug, Default)]
pub struct Report {
    pub rows: Vec<Row>,
    pub tables: Vec<Table>,
    pub bars: Vec<Bar>,
}

// === impl Row ===

impl Row {
    pub fn new(
        what: &'static str,
        decimals: usize,
        target: Option<Target>,
        measured: Spread,
    ) -> Self {
        Self { what, target, decimals, measured: Ok(measured) }
    }

    fn cells(&self) -> Vec<String> {
        let number = |value: f64| format!("{value}");
        let (must, aim) = match self.target {
            None => (String::new(), String::new()),
            Some(Target::AtMost { must, aim }) => (
                format!("≤ {}", number(must)),
                aim.map_or(String::new(), |aim| format!("≤ {}", number(aim))),
            ),
            Some(Target::AtLeast { must }) => (format!("≥ {}", number(must)), String::new()),
        };
        let measured = match &self.measured {
            Ok(spread) => format!("{spread:.*}", self.decimals),
            Err(why) => format!("not measured: {why}"),
        };
        vec![self.what.to_owned(), must, aim, measured, self.verdict().to_owned()]
    }

    /// Says which targets the median keeps: `aim`, `must`, or neither.
    fn verdict(&self) -> &'static str {
        let (Some(target), Ok(Spread { median, .. })) = (self.target, &self.measured) else {
            return "";
        };
        match target {
            Target::AtMost { aim: Some(aim), .. } if *median <= aim => "aim",
            Target::AtMost { must, .. } if *median <= must => "must",
            Target::AtLeast { must } if *median >= must => "must",
            _ => "**missed**",
        }
    }
}

// === impl Report ===

impl Report {
    pub fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.tables.extend(other.tables);
        self.bars.extend(other.bars);
    }

    /// Returns whether every row has a figure.
    pub fn is_complete(&self) -> bool {
        self.rows.iter().all(|row| row.measured.is_ok())
    }

    /// Writes all tables in Markdown.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.rows.is_empty() {
            let head = vec!["", "must", "aim", "measured", "kept"];
            text += &markdown(&head, &self.rows.iter().map(Row::cells).collect::<Vec<_>>());
        }
        for table in &self.tables {
            text.push('\n');
            text += &markdown(&table.head, &table.rows);
        }
        text
    }

    /// Replaces the lines between the marks of `file` with `intro` and the tables.
    pub fn write(&self, file: &Path, intro: &str) -> io::Result<()> {
        let text = fs::read_to_string(file)?;
        let marked = text
            .split_once(BEGIN)
            .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let Some((before, after)) = marked else {
            return Err(io::Error::other(format!(
                "{} has lost its marks: {BEGIN} and {END}",
                file.display()
            )));
        };
        fs::write(file, format!("{before}{BEGIN}\n\n{intro}\n{}\n{END}{after}", self.text()))
    }
}

/// Writes a table with aligned columns, which is readable as plain text, too.
fn markdown(head: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |(column, name): (usize, &&str)| {
        let longest = cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        longest.max(name.chars().count())
    };
    let widths: Vec<usize> = head.iter().enumerate().map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).map(|(cell, width)| format!(" {cell:<width$} |"));
        format!("|{}\n", cells.collect::<String>())
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut text = line(&mut head.iter().copied());
    text += &line(&mut rule.iter().map(String::as_str));
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}
