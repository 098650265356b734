//! The mistakes of a configuration file, each with its place and a reason that says what to write instead.

use std::{fmt, io};

/// The most mistakes that a message lists.
const MOST_SHOWN: usize = 20;

/// A line and a column of the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted in characters from 1.
    pub column: usize,
}

/// One mistake in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The line and column; `None` if the mistake concerns the whole file, such as one that cannot be read.
    pub place: Option<Position>,
    /// The path of the key, such as `routes[0].suffix`.
    pub path: String,
    /// The reason, and what to write instead.
    pub reason: String,
}

/// All mistakes in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file, as the user named it.
    pub file: String,
    /// At least one mistake, in the order of the file.
    pub mistakes: Vec<Mistake>,
}

// === impl Mistake ===

impl Mistake {
    pub(super) fn new(place: Position, path: &str, reason: impl Into<String>) -> Self {
        Self { place: Some(place), path: path.to_owned(), reason: reason.into() }
    }
}

// === impl ConfigError ===

impl ConfigError {
    pub(super) fn new(file: &str, mut mistakes: Vec<Mistake>) -> Self {
        mistakes.sort_by_key(|mistake| mistake.place);
        Self { file: file.to_owned(), mistakes }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.mistakes.iter().take(MOST_SHOWN).enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{}", self.file)?;
            if let Some(Position { line, column }) = mistake.place {
                write!(f, ":{line}:{column}")?;
            }
            if !mistake.path.is_empty() {
                write!(f, ": {}", mistake.path)?;
            }
            write!(f, ": {}", mistake.reason)?;
        }
        match self.mistakes.len().saturating_sub(MOST_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n{}: and {more} more", self.file),
        }
    }
}

/// Returns the reason why a file cannot be read, and where to look.
pub(super) fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => match std::env::current_dir() {
            Ok(here) => {
                format!("there is no such file; a relative path starts at {}", here.display())
            }
            Err(_) => "there is no such file".into(),
        },
        io::ErrorKind::PermissionDenied => "this process may not read it".into(),
        io::ErrorKind::IsADirectory => "it is a directory".into(),
        io::ErrorKind::InvalidData => "it is not text in UTF-8".into(),
        _ => error.to_string(),
    }
}
