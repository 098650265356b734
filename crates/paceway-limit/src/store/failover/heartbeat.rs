//! Heartbeats and probes of one connection. A late answer still counts: it brings the number of gateways, the store's
//! clock and its round trip. Decides no request.

use super::{Failover, PROBE, Process};
use crate::store::{Beat, Placement, StoreError};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// How long a heartbeat may take, whatever `store.timeout` is: a store that answers slowly still reports how many gateways
/// are alive. The driver closes a silent connection after 2 s, well before this.
const GIVE_UP: Duration = Duration::from_secs(10);

// === impl Failover ===

impl Failover {
    /// Probes the store every [`PROBE`] while the breaker is open, and wakes the recovery when the store answers.
    pub(super) async fn probe_while_away(self) {
        let health = &self.process.health;
        loop {
            health.opened().await;
            while !health.is_closed() {
                if self.probe().await {
                    health.wake.notify_one();
                }
                sleep(PROBE).await;
            }
        }
    }

    /// Whether the store answers a heartbeat in time.
    pub(super) async fn probe(&self) -> bool {
        let started = Instant::now();
        let answered = match self.beat().await {
            Ok(_) | Err(StoreError::Refused(_)) => true,
            // In a Cluster the server that counts gateways may be away alone.
            Err(_) => self.backend.placement() == Placement::ManyServers { one_answers: true },
        };
        let (took, limit) = (started.elapsed(), self.process.health.pace.limit());
        if took > limit {
            // The first of two heartbeats was late.
            self.member.probed(None);
        }
        self.member.probed(answered.then_some(took <= limit / 2));
        if !answered {
            self.reconnect_if_sick();
        }
        answered
    }

    /// Replaces the connection if it answers late or never while another connection of this process is answered.
    fn reconnect_if_sick(&self) {
        if self.member.is_sick() {
            self.backend.renew();
        }
    }

    /// Sends a heartbeat, and a second one if the answer to the first was late: that answer may be the first of a store
    /// that is back, which other gateways see at the same moment.
    async fn beat(&self) -> Result<Beat, StoreError> {
        for _ in 0..2 {
            if self.process.left.load(Relaxed) {
                break;
            }
            if let Some(beat) = self.beat_once().await? {
                return Ok(beat);
            }
        }
        Err(StoreError::Timeout)
    }

    /// Sends one heartbeat; `None` when the answer came after the time-out. It waits up to [`GIVE_UP`], so that a
    /// connection never carries two heartbeats at once.
    async fn beat_once(&self) -> Result<Option<Beat>, StoreError> {
        let Process { health, gateways, uncounted, .. } = &*self.process;
        let mut beat = self.process.beat(&*self.backend);
        let (started, limit) = (Instant::now(), health.pace.limit());
        let mut patience = limit;
        let answer = loop {
            match timeout(patience, &mut beat).await {
                Ok(answer) => break answer,
                Err(_) if started.elapsed() >= GIVE_UP => return Err(StoreError::Timeout),
                Err(_) => {
                    self.metrics.count(&StoreError::Timeout);
                    self.member.missed(&StoreError::Timeout);
                    self.reconnect_if_sick();
                    // An answer within the longest time-out says that the store is slow, not that it is away.
                    patience = if started.elapsed() < health.pace.most() {
                        limit.max(health.pace.most() - started.elapsed())
                    } else {
                        limit
                    };
                }
            }
        };
        let took = started.elapsed();
        if !matches!(answer, Err(ref error) if error.is_silence()) {
            health.pace.measured(took);
        }
        // This answer may have made the time-out longer, so the limit is read again.
        let in_time = took <= health.pace.limit();
        match &answer {
            Ok(beat) => {
                health.answered();
                health.counted(beat, started);
                if self.backend.placement() == Placement::OneServer {
                    health.wrote();
                }
            }
            Err(error) => {
                self.metrics.count(error);
                self.member.missed(error);
                if let StoreError::Refused(_) = error
                    && !uncounted.swap(true, Relaxed)
                {
                    tracing::warn!(%error, key = %gateways, "the gateways on the store cannot be counted");
                }
            }
        }
        answer.map(|beat| in_time.then_some(beat))
    }
}
