//! The task that reads the configuration again, on SIGHUP.

use super::Live;
use std::{sync::Arc, time::Duration};
use tokio::{signal::unix::Signal, task::spawn_blocking, time::sleep};

/// How often the files are checked for a change.
const LOOK: Duration = Duration::from_secs(2);

/// Reads the configuration again on each of `hangups`, and certificates within 2 s of a change, for as long as the process
/// runs.
pub async fn watch_file(live: Arc<Live>, mut hangups: Signal) {
    loop {
        let asked = tokio::select! {
            signal = hangups.recv() => signal.is_some(),
            () = sleep(LOOK) => false,
        };
        let live = live.clone();
        // Reading files may block.
        let done = spawn_blocking(move || match asked {
            true => drop(live.reload()),
            false => live.refresh_certificates(),
        });
        // Fails only if it panics, which the log shows.
        drop(done.await);
    }
}
