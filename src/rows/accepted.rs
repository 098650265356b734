//! The rows that are in use. A row that is invalid keeps its last valid value. Asks no database.

use super::MAX_LINES;
use crate::{
    config::LimitRow,
    live::{Live, ReloadError},
};
use std::collections::{HashMap, HashSet};

/// The most checks of the whole configuration that one change makes. Each may take as long as a start.
const MAX_CHECKS: usize = 64;

/// The rows that are in use, and those that the database had last.
#[derive(Default)]
pub(super) struct AcceptedRows {
    /// The hash of the file with which the rows were checked.
    file: String,
    seen: Vec<LimitRow>,
    used: Vec<LimitRow>,
    /// The number of rows that have a mistake now.
    invalid: usize,
}

/// A limiter that has changed: how, and its row, unless that is gone.
struct ChangedRow {
    limiter: String,
    change: &'static str,
    row: Option<String>,
}

/// The choice of valid rows among those that have changed.
struct Choice<'a> {
    live: &'a Live,
    /// The last valid values of the rows that the file names.
    needed: Vec<LimitRow>,
    /// Rows that are valid together.
    good: Vec<LimitRow>,
    /// The reasons why others are not.
    mistakes: Vec<(String, String)>,
    checks: usize,
}

// === impl AcceptedRows ===

impl AcceptedRows {
    pub(super) fn len(&self) -> usize {
        self.used.len()
    }

    pub(super) fn invalid(&self) -> usize {
        self.invalid
    }

    /// Takes what the database has now. Rows that are the same as last time are not checked again, unless the file is another
    /// one, so that a mistake is reported once.
    pub(super) fn take(&mut self, live: &Live, rows: Vec<LimitRow>) {
        let file = live.loaded().hash;
        if rows == self.seen && file == self.file {
            return;
        }
        let is_same_file = file == self.file;
        let seen: HashMap<&str, &LimitRow> = by_name(&self.seen);
        let used: HashMap<&str, &LimitRow> = by_name(&self.used);
        // A route cannot do without a limiter that it names, so these keep their last values.
        let needed = live.row_names();
        let needed = needed.iter().filter_map(|name| used.get(name.as_str()));
        let needed: Vec<LimitRow> = needed.map(|row| (*row).clone()).collect();
        let new = by_name(&rows);
        let gone: Vec<_> =
            needed.iter().filter(|row| !new.contains_key(row.name.as_str())).cloned().collect();
        let mistakes = gone.iter().map(|row| {
            let reason = format!("limits_from row {:?} is gone, and the file names it", row.name);
            (row.name.clone(), reason)
        });
        let mistakes = mistakes.collect();
        let mut choice = Choice { live, needed, good: Vec::new(), mistakes, checks: 0 };
        let (mut changed, mut names) = (Vec::new(), HashSet::new());
        for row in &rows {
            if !names.insert(row.name.as_str()) {
                let reason = "is there twice; the first one counts".to_owned();
                choice.mistakes.push((row.name.clone(), reason));
            } else if is_same_file && seen.get(row.name.as_str()) == Some(&row) {
                choice.good.extend(used.get(row.name.as_str()).map(|row| (*row).clone()));
            } else {
                changed.push(row.clone());
            }
        }
        choice.add(changed);
        let Choice { mut good, mistakes, .. } = choice;
        let lost: HashSet<&str> = mistakes.iter().map(|(name, _)| name.as_str()).collect();
        let is_good: HashSet<String> = good.iter().map(|row| row.name.clone()).collect();
        let kept = lost.iter().filter(|name| !is_good.contains(**name));
        good.extend(kept.filter_map(|name| used.get(name)).map(|row| (*row).clone()));
        for (_, reason) in mistakes.iter().take(MAX_LINES) {
            tracing::warn!(reason, "limits_from: a row is invalid; its last valid value stays");
        }
        if mistakes.len() > MAX_LINES {
            let more = mistakes.len() - MAX_LINES;
            tracing::warn!(more, "limits_from: further rows are invalid");
        }
        let good_rows = by_name(&good);
        let is_used = |row: &&LimitRow| good_rows.get(row.name.as_str()) == Some(row);
        let invalid = gone.len() + rows.iter().filter(|row| !is_used(row)).count();
        let changes = changes(&used, &good);
        match live.apply(|parts| parts.rows = good.clone().into()) {
            Ok(_) => log(&changes),
            Err(error) => {
                tracing::error!(%error, "limits_from: the rows cannot be used; all stay as they are");
                return;
            }
        }
        (self.seen, self.used, self.file, self.invalid) = (rows, good, file, invalid);
    }
}

fn by_name(rows: &[LimitRow]) -> HashMap<&str, &LimitRow> {
    // The first one counts.
    rows.iter().rev().map(|row| (row.name.as_str(), row)).collect()
}

/// The limiters that differ.
fn changes(before: &HashMap<&str, &LimitRow>, after: &[LimitRow]) -> Vec<ChangedRow> {
    let names = by_name(after);
    let new = after.iter().filter_map(|row| {
        let change = match before.get(row.name.as_str()) {
            None => "added",
            Some(old) if *old != row => "changed",
            Some(_) => return None,
        };
        Some(ChangedRow { limiter: row.name.clone(), change, row: Some(row.to_string()) })
    });
    let gone = before.keys().filter(|name| !names.contains_key(**name));
    let gone =
        gone.map(|name| ChangedRow { limiter: (*name).to_owned(), change: "removed", row: None });
    new.chain(gone).collect()
}

fn log(changes: &[ChangedRow]) {
    for ChangedRow { limiter, change, row } in changes.iter().take(MAX_LINES) {
        tracing::info!(limiter, change, row, "limits_from: a limiter was {change}");
    }
    if changes.len() > MAX_LINES {
        tracing::info!(
            more = changes.len() - MAX_LINES,
            "limits_from: more limiters were added, changed or removed"
        );
    }
}

// === impl Choice ===

impl Choice<'_> {
    /// Adds the rows that are valid together with those before them, and notes the mistakes of the others.
    fn add(&mut self, mut rows: Vec<LimitRow>) {
        while !rows.is_empty() {
            self.checks += 1;
            let mut all = self.good.clone();
            all.extend(rows.iter().cloned());
            let known = all.len();
            let names: HashSet<&str> = all.iter().map(|row| row.name.as_str()).collect();
            let others = self.needed.iter().filter(|row| !names.contains(row.name.as_str()));
            let others: Vec<_> = others.cloned().collect();
            all.extend(others);
            let error = match self.live.check_rows(all.clone().into()) {
                Ok(()) => {
                    all.truncate(known);
                    self.good = all;
                    return;
                }
                Err(error) => error,
            };
            let before = rows.len();
            if let ReloadError::Config(error) = &error {
                let named = error.mistakes.iter().filter_map(|mistake| {
                    let reason = format!("{}: {}", mistake.path, mistake.reason);
                    Some((mistake.row()?.to_owned(), reason))
                });
                let named: Vec<_> = named.collect();
                rows.retain(|row| !named.iter().any(|(name, _)| *name == row.name));
                self.mistakes.extend(named);
            }
            if rows.len() < before {
                continue;
            }
            // The mistake is in the file, such as a cost above the new burst: half of the rows after the other, it is found.
            if rows.len() == 1 || self.checks >= MAX_CHECKS {
                let text = error.to_string();
                let of = |row: LimitRow| {
                    let reason = format!("limits_from row {:?}: {text}", row.name);
                    (row.name, reason)
                };
                self.mistakes.extend(rows.into_iter().map(of));
                return;
            }
            let second = rows.split_off(rows.len() / 2);
            self.add(rows);
            rows = second;
        }
    }
}
