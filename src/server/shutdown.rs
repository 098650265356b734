//! The end of the gateway: what ends it, and the phases in which its workers drain.

use super::{
    error::ServerError,
    phase::{LINGER, Phase},
};
use crate::{
    live::{Live, supervisor},
    log,
};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, timeout},
};

/// A second signal ends the process after up to 200 ms, in which the last lines of the log are written.
const LAST_LINES: Duration = Duration::from_millis(200);
/// How long before the end of the drain WebSockets get a close frame.
const GOODBYE: Duration = Duration::from_millis(500);

/// The life of the command beside which a gateway runs.
pub(crate) struct BesideCommand {
    /// Told when the gateway serves requests.
    pub(crate) ready: oneshot::Sender<()>,
    /// Resolves when the command has ended.
    pub(crate) ended: oneshot::Receiver<()>,
}

/// The end of the gateway: what its parts watch, and the workers that have ended.
pub(super) struct Shutdown {
    /// The gateway is about to drain, which `/ready` shows.
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) draining: Arc<AtomicBool>,
    /// The instant at which the drain ends.
    pub(super) drain_end: Arc<OnceLock<Instant>>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) ends: mpsc::Receiver<Result<(), ServerError>>,
}

// === impl Shutdown ===

impl Shutdown {
    pub(super) fn new(ends: mpsc::Receiver<Result<(), ServerError>>) -> Self {
        let (phase, _) = watch::channel(Phase::Running);
        Self {
            stopping: Arc::default(),
            draining: Arc::default(),
            drain_end: Arc::default(),
            phase,
            ends,
        }
    }

    /// Shows that the gateway stops, and accepts clients for `shutdown_delay` yet.
    pub(super) async fn delay(&mut self, live: &Live, signal: &str) -> Result<(), ServerError> {
        self.stopping.store(true, Relaxed);
        supervisor::stopping();
        let delay = live.plan().config.shutdown_delay;
        if !delay.is_zero() {
            let delay_s = delay.as_secs_f64();
            tracing::info!(signal, delay_s, "stopping: clients are accepted during the delay");
            tokio::select! {
                () = sleep(delay) => {}
                _ = self.ends.recv() => return Err(ServerError::Worker),
            }
        }
        Ok(())
    }

    /// Lets the workers drain for up to `drain_timeout`, and shares what their answers said, for at most a second more.
    pub(super) async fn drain(&mut self, live: &Live, signal: &str) -> Result<(), ServerError> {
        let limit = live.plan().config.drain_timeout;
        tracing::info!(
            signal,
            waiting = live.plan().waiting(),
            limit_s = limit.as_secs_f64(),
            "the gateway drains"
        );
        self.draining.store(true, Relaxed);
        let _ = self.drain_end.set(Instant::now() + limit);
        let drained = drain(&self.phase, &mut self.ends, limit).await;
        live.finish_learning().await;
        drained
    }
}

/// Ends the process at the next signal.
async fn stop_at_once(second: impl Future<Output = &'static str>) {
    let signal = second.await;
    tracing::warn!(signal, "second signal: stopping at once");
    log::flush(LAST_LINES);
    std::process::exit(1);
}

/// Ends the workers, one phase after the other. Returns as soon as all of them have ended.
async fn drain(
    phase: &watch::Sender<Phase>,
    ends: &mut mpsc::Receiver<Result<(), ServerError>>,
    limit: Duration,
) -> Result<(), ServerError> {
    phase.send_replace(Phase::Draining);
    let goodbye = GOODBYE.min(limit / 4);
    let linger = LINGER.min(limit - goodbye);
    let all_ended = async {
        while let Some(result) = ends.recv().await {
            result?;
        }
        Ok(())
    };
    tokio::pin!(all_ended);
    if let Ok(result) = timeout(linger, &mut all_ended).await {
        tracing::info!("the gateway has stopped");
        return result;
    }
    phase.send_replace(Phase::ClosingIdle);
    if let Ok(result) = timeout(limit - linger - goodbye, &mut all_ended).await {
        tracing::info!("the gateway has stopped");
        return result;
    }
    phase.send_replace(Phase::ClosingTunnels);
    if let Ok(result) = timeout(goodbye, &mut all_ended).await {
        tracing::info!("the gateway has stopped");
        return result;
    }
    tracing::warn!(limit_s = limit.as_secs_f64(), "drain_timeout is over: closing what is left");
    phase.send_replace(Phase::Aborting);
    all_ended.await
}

/// The reason why a gateway ends.
pub(super) enum Stop<S> {
    Signal(S),
    Command(BesideCommand),
}

impl Stop<()> {
    /// Catches signals from now on, unless a command runs beside the gateway.
    pub(super) fn of(
        beside: Option<BesideCommand>,
    ) -> Result<Stop<impl Future<Output = &'static str>>, ServerError> {
        Ok(match beside {
            None => Stop::Signal(shutdown_signal()?),
            Some(command) => Stop::Command(command),
        })
    }
}

impl<S: Future<Output = &'static str>> Stop<S> {
    /// Tells that the gateway is ready, and waits for its end. Returns the name of what ends it. A further signal then ends
    /// the process.
    pub(super) async fn wait(self) -> Result<&'static str, ServerError> {
        match self {
            Self::Signal(stop) => {
                supervisor::ready();
                let signal = stop.await;
                tokio::spawn(stop_at_once(shutdown_signal()?));
                Ok(signal)
            }
            Self::Command(BesideCommand { ready, ended }) => {
                // Fails only if the command is not waited for any more, and then it has ended.
                let _ = ready.send(());
                let _ = ended.await;
                Ok("the command's end")
            }
        }
    }
}

/// Catches SIGTERM and SIGINT from now on. The future resolves with the name of the first one.
fn shutdown_signal() -> Result<impl Future<Output = &'static str>, ServerError> {
    let listen = |kind| signal(kind).map_err(|error| ServerError::System(error.into()));
    let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        }
    })
}
