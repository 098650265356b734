//! The identical reads that wait together: the first asks for a slot, the others get its answer, or ask for themselves. Keeps
//! no answer for a request that comes after the call.

use super::{Identity, Variant, may_be_shared, varies_by_the_gateway};
use crate::upstream::{KeptBuffer, KeptBytes};
use bytes::Bytes;
use hashlink::LinkedHashMap;
use http::{HeaderMap, HeaderName, Response};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// The most bytes of an answer that is shared, 1 MiB.
pub const MOST_SHARED: usize = 1 << 20;
/// For how long reads ask alone after one of them had an answer that was for itself alone.
const ALONE_FOR: Duration = Duration::from_secs(60);
/// The most reads that are known to ask alone. The one that has been known longest is forgotten first.
const MOST_ALONE: usize = 4_096;
/// The most bytes of all shared answers of a process, 64 MiB. They count until the slowest client has read its own.
const ALL_SHARED: usize = 64 << 20;

static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The identical reads that wait in this process.
#[derive(Debug)]
pub struct SharedWaits {
    table: Mutex<WaitTable>,
    bound: Arc<KeptBytes>,
}

#[derive(Debug, Default)]
struct WaitTable {
    /// The groups. There are no more than requests that wait.
    groups: HashMap<Identity, watch::Sender<GroupPhase>>,
    /// The reads that ask alone until an instant, from the one that was noted first; at most [`MOST_ALONE`].
    alone: LinkedHashMap<Identity, Instant>,
}

/// How far the first of a group is.
#[derive(Debug, Clone)]
pub enum GroupPhase {
    /// It asks for a slot.
    Asks,
    /// It waits.
    Waits(SlotKnown),
    /// Its call is made, or its answer comes.
    IsSent,
    /// Its answer is there.
    Answered(Arc<SharedAnswer>),
    /// Its answer is for itself alone: another one would be so, too.
    IsItsOwn,
    /// It has no answer, and the others may ask again together.
    IsOver(NextGroup),
}

/// The group of those that ask again together. The one that joins it first leads it.
#[derive(Debug, Clone)]
pub struct NextGroup {
    group: watch::Sender<GroupPhase>,
    is_led: Arc<AtomicBool>,
}

/// The slot of the first of a group, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotKnown {
    /// The instant of the slot; `None` in a queue, which names none.
    pub at: Option<Instant>,
    /// The index of the check whose limiter made it so late.
    pub bound_by: usize,
}

/// An answer for all who had waited for it.
#[derive(Debug)]
pub struct SharedAnswer {
    /// Its head as it came from the upstream, without the id of the first request.
    pub head: Response<()>,
    /// Its whole body.
    pub body: Bytes,
    variant: Variant,
}

/// The place of a read among identical ones.
pub enum Joined {
    /// It is the first, and asks for all.
    First(Box<Lead>),
    /// It gets the answer of the first.
    Follower(Follower),
    /// It asks as if there was no other: their answers are not for others.
    Alone,
}

/// The first of a group. Dropped without an answer, it lets the others ask for themselves.
#[derive(Debug)]
pub struct Lead {
    waits: Arc<SharedWaits>,
    identity: Identity,
    group: watch::Sender<GroupPhase>,
    /// The headers of its request as they came.
    request: HeaderMap,
    /// The head of its answer, once it may be shared.
    answer: Option<(Response<()>, Variant)>,
    /// Whether there is an answer that is for itself alone.
    is_own: bool,
}

/// One of a group that is not the first.
#[derive(Debug)]
pub struct Follower(watch::Receiver<GroupPhase>);

// === impl SharedWaits ===

impl Default for SharedWaits {
    fn default() -> Self {
        Self { table: Mutex::default(), bound: KeptBytes::new(ALL_SHARED) }
    }
}

impl SharedWaits {
    /// Joins the group of identical reads that wait, or begins one with a request that has these headers.
    pub fn join(self: &Arc<Self>, identity: Identity, request: &HeaderMap) -> Joined {
        let mut table = self.table.lock();
        if table.is_alone(identity) {
            return Joined::Alone;
        }
        if let Some(group) = table.groups.get(&identity) {
            return Joined::Follower(Follower(group.subscribe()));
        }
        let group = watch::Sender::new(GroupPhase::Asks);
        table.groups.insert(identity, group.clone());
        drop(table);
        self.lead(identity, group, request)
    }

    /// Joins those that ask again together. They came before the call of that group, whether it is sent already or not.
    pub fn join_next(
        self: &Arc<Self>,
        identity: Identity,
        next: NextGroup,
        request: &HeaderMap,
    ) -> Joined {
        let NextGroup { group, is_led } = next;
        if is_led.swap(true, Relaxed) {
            return Joined::Follower(Follower(group.subscribe()));
        }
        // Reads that came meanwhile may have a group of their own.
        self.table.lock().groups.entry(identity).or_insert_with(|| group.clone());
        self.lead(identity, group, request)
    }

    fn lead(
        self: &Arc<Self>,
        identity: Identity,
        group: watch::Sender<GroupPhase>,
        request: &HeaderMap,
    ) -> Joined {
        let (waits, request) = (self.clone(), request.clone());
        let (answer, is_own) = (None, false);
        Joined::First(Box::new(Lead { waits, identity, group, request, answer, is_own }))
    }
}

// === impl WaitTable ===

impl WaitTable {
    /// Whether reads of this identity ask alone now.
    fn is_alone(&mut self, identity: Identity) -> bool {
        let is_over = self.alone.get(&identity).is_some_and(|until| *until <= Instant::now());
        if is_over {
            self.alone.remove(&identity);
        }
        !is_over && self.alone.contains_key(&identity)
    }

    /// Lets reads of this identity ask alone for a while.
    fn set_alone(&mut self, identity: Identity) {
        if self.alone.len() >= MOST_ALONE {
            self.alone.pop_front();
        }
        self.alone.insert(identity, Instant::now() + ALONE_FOR);
    }
}

// === impl Lead ===

impl Lead {
    /// The group, which outlives the lead.
    pub fn group(&self) -> watch::Sender<GroupPhase> {
        self.group.clone()
    }

    /// Tells the others that it asks for a slot.
    pub fn asks(&self) {
        self.group.send_replace(GroupPhase::Asks);
    }

    /// Tells the others which slot it has.
    pub fn waits(&self, slot: SlotKnown) {
        self.group.send_replace(GroupPhase::Waits(slot));
    }

    /// Tells the others that the call is made. No read joins any more: the answer may be older than a request that comes now.
    pub fn sends(&self) {
        self.leave();
        self.group.send_replace(GroupPhase::IsSent);
    }

    /// Whether others wait for the answer.
    pub fn has_followers(&self) -> bool {
        self.group.receiver_count() > 0
    }

    /// Takes the head of an answer to a request with the id `own_id`. False if others may not have it.
    pub fn hears(&mut self, head: &Response<()>, own_id: &[u8], is_authorized: bool) -> bool {
        let variant = Variant::of(head.headers(), &self.request);
        let is_shared =
            may_be_shared(head, is_authorized) && !varies_by_the_gateway(head.headers());
        let Some(variant) = variant.filter(|_| is_shared) else {
            self.is_own = head.status().is_success();
            return false;
        };
        let mut head = head.clone();
        // Some upstreams repeat the id of the request, and each follower has its own.
        if head.headers().get(&X_REQUEST_ID).is_some_and(|id| id.as_bytes() == own_id) {
            head.headers_mut().remove(&X_REQUEST_ID);
        }
        self.answer = Some((head, variant));
        true
    }

    /// An empty buffer for the body of the answer.
    pub fn buffer(&self) -> KeptBuffer {
        KeptBuffer::new(self.waits.bound.share())
    }

    /// Gives the others the answer with this body, and returns the body.
    pub fn answers(mut self, body: KeptBuffer) -> Bytes {
        let body = Bytes::from_owner(Counted(body));
        if let Some((head, variant)) = mem::take(&mut self.answer) {
            let body = body.clone();
            let answer = Arc::new(SharedAnswer { head, body, variant });
            self.group.send_replace(GroupPhase::Answered(answer));
        }
        body
    }

    /// Lets the others ask for themselves, because the answer is too large for them.
    pub fn keeps_to_itself(mut self) {
        self.is_own = true;
    }

    /// Leaves the table, unless another group has its place already.
    fn leave(&self) {
        let groups = &mut self.waits.table.lock().groups;
        if groups.get(&self.identity).is_some_and(|group| group.same_channel(&self.group)) {
            groups.remove(&self.identity);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.leave();
        // Others have waited for nothing.
        if self.is_own && self.has_followers() {
            self.waits.table.lock().set_alone(self.identity);
        }
        let end = if self.is_own {
            GroupPhase::IsItsOwn
        } else {
            let group = watch::Sender::new(GroupPhase::Asks);
            GroupPhase::IsOver(NextGroup { group, is_led: Arc::default() })
        };
        self.group.send_if_modified(|phase| {
            let is_answered = matches!(phase, GroupPhase::Answered(_));
            if !is_answered {
                *phase = end;
            }
            !is_answered
        });
    }
}

// === impl Follower ===

impl Follower {
    /// How far the first is now.
    pub fn phase(&mut self) -> GroupPhase {
        self.0.borrow_and_update().clone()
    }

    /// The time until the slot of the first, as far as it is known.
    pub fn time_to_slot(&mut self) -> Duration {
        let GroupPhase::Waits(SlotKnown { at: Some(at), .. }) = self.phase() else {
            return Duration::ZERO;
        };
        at.saturating_duration_since(Instant::now())
    }

    /// Resolves when it is further.
    pub async fn changed(&mut self) {
        // Without its sender the group is over.
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

// === impl SharedAnswer ===

impl SharedAnswer {
    /// Whether it is the answer to a request with these headers, too.
    pub fn is_for(&self, request: &HeaderMap) -> bool {
        self.variant.matches(request)
    }
}

/// Bytes that count until the last of their readers is done.
pub(super) struct Counted(pub(super) KeptBuffer);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

#[cfg(test)]
mod tests;
