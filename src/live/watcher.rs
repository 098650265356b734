//! The task that reads the configuration again: on SIGHUP, and when a file has changed.

use super::{Live, supervisor};
use std::{mem, sync::Arc, thread, time::Duration};
use tokio::{signal::unix::Signal, task::spawn_blocking, time::sleep};

/// How often the files are looked at. A look finds what a file notification misses: symbolic links that are swapped, which is
/// how Kubernetes updates a ConfigMap, and files on another host.
const LOOK: Duration = Duration::from_secs(2);
/// A file that is being written is read when two looks at this distance see the same content.
const SETTLE: Duration = Duration::from_millis(50);
/// How many looks a file gets to settle. One that is written all the time is read as it is then.
const LOOKS: usize = 20;

/// Reads the configuration again on each of `hangups`, and within 2 s of a change unless `watch` is off. Reads certificates
/// again within 2 s of a change in any case. Runs for as long as the process.
pub async fn watch_file(live: Arc<Live>, mut hangups: Signal) {
    loop {
        let asked = tokio::select! {
            signal = hangups.recv() => signal.is_some(),
            () = sleep(LOOK) => false,
        };
        let live = live.clone();
        // Reading files may block.
        let looked = spawn_blocking(move || {
            if asked {
                // The log has the result.
                supervisor::reloading();
                drop(live.reload());
                supervisor::ready();
            } else {
                live.look();
            }
        });
        // Fails only if it panics, which the log shows.
        drop(looked.await);
    }
}

// === impl Live ===

impl Live {
    /// Reloads if a file has changed since the last reload, or if a mistake has been corrected elsewhere.
    fn look(&self) {
        self.refresh_certificates();
        self.keep_up_with_time();
        if !self.plan().config.watch {
            return;
        }
        let mut now = self.fingerprint();
        if now != self.seen() {
            for _ in 0..LOOKS {
                thread::sleep(SETTLE);
                let next = self.fingerprint();
                if mem::replace(&mut now, next) == next {
                    break;
                }
            }
        } else if !self.is_corrected() {
            return;
        }
        // The log has the result.
        drop(self.reload());
    }
}
