//! The data of the dashboard: one picture of the gateway a second for all viewers, as long as there are any, and a history of
//! 15 minutes from the counters that requests update anyway.

mod fleet;
mod history;
mod picture;
mod viewers;
mod waiting;

use super::{
    Admin, AdminParts, accounts::AccountHours, limiters::levels_of, page_error::PageError,
};
use crate::throttle::Timestamp;
use axum::{
    Extension, Json,
    body::Body,
    extract::{FromRef, State},
    http::{
        StatusCode,
        header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use fleet::Fleet;
use history::{History, TICK};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use viewers::{MOST_VIEWERS, Viewers};

/// The time between two pictures.
const PERIOD: Duration = Duration::from_secs(1);

/// The time between two looks at the quotas of windows and the requests of accounts, in ticks of the history: a minute.
const QUOTA_TICKS: u64 = 12;

/// Marks an answer that does not end by itself, so that its connection is not taken for one that waits for a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventStream;

/// The history of the gateway, and its viewers.
pub(super) struct Dashboard {
    history: Mutex<History>,
    viewers: Viewers,
    fleet: Fleet,
    /// The requests of accounts.
    pub(super) accounts: Mutex<AccountHours>,
    started: Timestamp,
}

// === impl Dashboard ===

impl Dashboard {
    pub(super) fn new(parts: &AdminParts) -> Self {
        let mut history = History::default();
        history.tick(&parts.live);
        let (viewers, fleet) = Default::default();
        let accounts = Mutex::default();
        Self { history: Mutex::new(history), viewers, fleet, accounts, started: Timestamp::now() }
    }

    /// Adds a point to the history every 5 s, and describes this gateway to the others every 10 s.
    pub(super) async fn keep(self: Arc<Self>, parts: Arc<AdminParts>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let number = {
                let mut history = self.history.lock();
                history.tick(&parts.live);
                history.number
            };
            if number % QUOTA_TICKS == 0 {
                self.accounts.lock().tick(&parts.live.plan());
                note_quotas(&Admin::from_ref(&parts)).await;
            }
            if number % fleet::TICKS == 0 {
                self.fleet.describe(&parts).await;
            }
        }
    }

    /// Sends pictures until the last viewer has left.
    async fn show(self: Arc<Self>, parts: Arc<AdminParts>) {
        let _running = self.viewers.running();
        loop {
            let next = Instant::now() + PERIOD;
            let picture = picture::all(&Admin::from_ref(&parts), &self).await;
            if !self.viewers.send(event(&picture)) {
                return;
            }
            sleep_until(next).await;
        }
    }
}

/// Notes what is used of the quotas of windows, whether anyone reads the pages or not.
async fn note_quotas(admin: &Admin) {
    let with_quota = admin.plan.limiters.iter().filter(|plan| plan.metrics.quota.is_some());
    for (plan, level) in levels_of(admin, with_quota).await {
        if let Some(Ok(each)) = level {
            admin.quotas.note(&plan.current(), &each);
        }
    }
}

/// A picture as a server-sent event.
fn event(picture: &Value) -> String {
    // JSON as serde_json writes it has no line breaks.
    format!("event: status\ndata: {picture}\n\n")
}

// === pages

pub(super) async fn status(
    State(admin): State<Admin>,
    Extension(dashboard): Extension<Arc<Dashboard>>,
) -> Json<Value> {
    Json(picture::all(&admin, &dashboard).await)
}

/// Follows the gateway: an event a second, the first one at once.
pub(super) async fn events(
    State(parts): State<Arc<AdminParts>>,
    Extension(dashboard): Extension<Arc<Dashboard>>,
) -> Result<Response, PageError> {
    let Some((viewer, is_first)) = dashboard.viewers.enter() else {
        let why = format!("{MOST_VIEWERS} viewers follow this gateway already; close one of them");
        return Err(PageError(StatusCode::SERVICE_UNAVAILABLE, why));
    };
    if is_first {
        tokio::spawn(dashboard.show(parts));
    }
    let head = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    let end = [(CONNECTION, "close")];
    Ok((Extension(EventStream), head, end, Body::new(viewer)).into_response())
}

pub(super) async fn routes(
    State(admin): State<Admin>,
    Extension(dashboard): Extension<Arc<Dashboard>>,
) -> Json<Value> {
    Json(dashboard.history.lock().routes(&admin.plan))
}

pub(super) async fn upstreams(
    State(admin): State<Admin>,
    Extension(dashboard): Extension<Arc<Dashboard>>,
) -> Json<Value> {
    let mut said = dashboard.history.lock().upstreams(&admin.plan);
    picture::add_addresses(&admin, &mut said);
    Json(said)
}

pub(super) async fn requests(State(admin): State<Admin>) -> Json<Value> {
    Json(json!({ "requests": picture::requests(&admin) }))
}
