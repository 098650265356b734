//! Reports the state of the process to a supervisor that has asked for it, such as systemd with `Type=notify-reload`. Without
//! `NOTIFY_SOCKET` it does nothing.

use sd_notify::NotifyState;

/// The gateway accepts clients.
pub(crate) fn ready() {
    report(&[NotifyState::Ready]);
}

/// The gateway reads its configuration again; [`ready`] follows. systemd wants the instant with it (`Type=notify-reload`).
pub(crate) fn reloading() {
    let instant = NotifyState::monotonic_usec_now();
    report(&match instant {
        Ok(instant) => vec![NotifyState::Reloading, instant],
        Err(_) => vec![NotifyState::Reloading],
    });
}

/// The gateway has begun to stop.
pub(crate) fn stopping() {
    report(&[NotifyState::Stopping]);
}

/// A supervisor that cannot be reached is no reason to stop serving.
fn report(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot reach the supervisor (NOTIFY_SOCKET)");
    }
}
