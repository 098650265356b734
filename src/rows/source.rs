//! The source of rows: a database with its connection, or a file. Checks no value.

use super::{
    FollowedRows,
    database::{Database, DatabaseError},
};
use crate::config::RowsSource;
use std::{
    fs::{self, File},
    io::Read as _,
    path::Path,
    thread,
    time::Duration,
};
use tokio::task::spawn_blocking;

/// The most bytes of a file.
const MAX_FILE: u64 = 32 << 20;
/// A file that is being written is read when two looks at this distance see the same content.
const SETTLE: Duration = Duration::from_millis(50);
/// How many looks a file gets to settle.
const LOOKS: usize = 20;

/// Reads the rows of one source.
pub(super) struct RowsReader {
    source: RowsSource,
    /// The connection to the database.
    database: Option<Database>,
    /// The content of the file as it was read last.
    text: Option<String>,
}

/// Why a source gives no rows.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowsError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("{path}: {reason}")]
    File { path: String, reason: String },
}

// === impl RowsReader ===

impl RowsReader {
    pub(super) fn new(source: &RowsSource) -> Self {
        Self { source: source.clone(), database: None, text: None }
    }

    /// Asks for all rows. `None` if the file is the same as last time.
    pub(super) async fn rows<F: FollowedRows>(&mut self) -> Result<Option<Vec<F::Row>>, RowsError> {
        match &self.source {
            RowsSource::Database { url, query } => {
                let database = match &mut self.database {
                    Some(database) => database,
                    None => self.database.insert(Database::connect(url).await?),
                };
                database.rows::<F>(query).await.map(Some)
            }
            RowsSource::File(path) => {
                let (path, before) = (path.clone(), self.text.take());
                let read = spawn_blocking(move || {
                    let text = read_settled(&path, before.as_deref())?;
                    let rows = (before.as_ref() != Some(&text)).then(|| read::<F>(&path, &text));
                    Ok::<_, RowsError>((rows.transpose()?, text))
                });
                // Fails only if it panics, which the log shows.
                let panicked =
                    |_| RowsError::File { path: String::new(), reason: "not read".into() };
                let (rows, text) = read.await.map_err(panicked)??;
                self.text = Some(text);
                Ok(rows)
            }
        }
    }
}

/// The rows of a file.
pub(super) fn read<F: FollowedRows>(path: &Path, text: &str) -> Result<Vec<F::Row>, RowsError> {
    F::read_file(text).map_err(|reason| RowsError::of(path, reason))
}

/// The content of a file that is not being written: as it was `before`, or the same at two looks.
fn read_settled(path: &Path, before: Option<&str>) -> Result<String, RowsError> {
    let mut text = content(path)?;
    for _ in 0..LOOKS {
        if before == Some(&text) {
            break;
        }
        thread::sleep(SETTLE);
        let next = content(path)?;
        if next == text {
            break;
        }
        text = next;
    }
    Ok(text)
}

/// The text of a file, of at most [`MAX_FILE`] bytes.
pub(super) fn content(path: &Path) -> Result<String, RowsError> {
    let mut text = String::new();
    // Opening a pipe would wait for its writer.
    let is_file = fs::metadata(path).map(|found| found.is_file());
    if let Ok(false) = is_file {
        return Err(RowsError::of(path, "is no regular file".into()));
    }
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(RowsError::of(path, format!("cannot be read: {error}"))),
        Ok(_) if text.len() as u64 > MAX_FILE => {
            Err(RowsError::of(path, "is larger than 32MiB".into()))
        }
        Ok(_) => Ok(text),
    }
}

// === impl RowsError ===

impl RowsError {
    fn of(path: &Path, reason: String) -> Self {
        Self::File { path: path.display().to_string(), reason }
    }
}
