//! Reads that may cost nothing on their way: those that wait together, and those by which the upstream confirms what is kept.
//! The rules for both are in `reads`.

use super::{
    Body, Client, Exchange, Routed, attempt::Attempt, following::permits, outgoing::Outgoing,
    pumped_body::share, settling::Settling,
};
use crate::{
    answer::Failure,
    config::Upstream,
    plan::ReadPolicy,
    reads::{
        CONDITIONS, Fingerprint, GroupPhase, Identity, Keeping, KeptAnswer, KeptAnswers, Lead,
        has_condition, is_plain_read, may_be_kept,
    },
    store::Checks,
    upstream::{Upload, headers::AddedHeaders},
};
use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, HOST},
};
use http_body::Body as _;
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
};
use tokio::sync::watch;

/// The headers of a request as it is sent that name the call and the programs before it: no kept answer depends on them, unless
/// its `Vary` says so.
const NAMES_OF_THE_CALL: [&str; 7] =
    ["baggage", "forwarded", "traceparent", "tracestate", "via", "x-forwarded-for", "x-request-id"];

/// The reads that wait for the answer to a request, if it is one that others can wait for.
#[derive(Debug, Default)]
pub(super) struct OthersWaiting(pub(super) OnceLock<watch::Sender<GroupPhase>>);

/// The beginning of a read.
pub(super) enum ReadStart {
    /// It has the answer of another one.
    Answered(Body),
    /// It asks for a slot of its own; `None` if it is like any other request.
    Asks(Option<Box<PendingRead>>),
}

/// A read that may cost nothing, until its answer is there.
pub(super) struct PendingRead {
    /// The reads that wait with it.
    pub(super) lead: Option<Box<Lead>>,
    /// Whether it has waited with another one, so that its budget has begun.
    pub(super) has_waited: bool,
    /// Where its answer is kept.
    kept: Option<Arc<KeptAnswers>>,
    /// The request as it is sent, once it is.
    sent: Option<SentRead>,
    /// Whether the last answer refuses it.
    pub(super) is_refused: bool,
}

/// The API that a read is sent to.
#[derive(Clone, Copy)]
struct ReadScope<'u> {
    /// The upstream. All of its addresses serve the same, and none is another one while its answers are kept.
    upstream: &'u Upstream,
    /// The limiters of the request: their keys tell callers apart.
    checks: Option<&'u Checks>,
    /// Whether its answers depend on the `Host`, because the client has chosen that.
    names_host: bool,
}

/// A read whose answer may be kept, or confirm what is kept.
struct SentRead {
    identity: Identity,
    headers: HeaderMap,
    /// The answer that it asks to confirm.
    confirms: Option<Arc<KeptAnswer>>,
}

/// A read whose answer has come.
pub(super) struct HeardRead {
    /// The body that was confirmed.
    confirmed: Option<Bytes>,
    keeping: Option<Keeping>,
    lead: Option<Box<Lead>>,
}

// === impl OthersWaiting ===

impl OthersWaiting {
    /// Whether any read waits for the answer.
    pub(super) fn are_there(&self) -> bool {
        self.0.get().is_some_and(|group| group.receiver_count() > 0)
    }

    /// Goes on with a request for the others, as long as there is one.
    pub(super) async fn go_on(&self, answer: Pin<&mut impl Future>) {
        let Some(group) = self.0.get() else { return };
        tokio::select! {
            biased;
            _ = answer => {}
            () = group.closed() => {}
        }
    }
}

// === impl Exchange ===

impl<'a> Exchange<'a> {
    /// Begins a request on a route whose reads may cost nothing. A read that is identical to one that waits gets the answer of
    /// that.
    #[cold]
    pub(super) async fn begin_read(
        &mut self,
        routed: &mut Routed<'a>,
        policy: &ReadPolicy,
        checks: Option<&Checks>,
        answer: &mut Response<()>,
        others: &OthersWaiting,
    ) -> Result<ReadStart, Failure> {
        let request = &self.arrival.request;
        let is_plain = !self.is_http2
            && routed.upgrade.is_none()
            && request.body().is_end_stream()
            && is_plain_read(request.method(), request.headers());
        if !is_plain {
            return Ok(ReadStart::Asks(None));
        }
        let may_be_kept = *request.method() == Method::GET && !has_condition(request.headers());
        let kept = policy.kept.clone().filter(|_| may_be_kept);
        let (lead, has_waited, sent) = (None, false, None);
        let mut pending = PendingRead { lead, has_waited, kept, sent, is_refused: false };
        let by = policy.share.as_ref().filter(|_| !routed.budget.is_zero());
        if let (Some(by), Some(checks)) = (by, checks)
            && let Some(shared) =
                self.wait_with_others(routed, by, checks, &mut pending, others).await?
        {
            return Ok(ReadStart::Answered(self.copy(routed, checks, &shared, answer)));
        }
        Ok(ReadStart::Asks(Some(Box::new(pending))))
    }

    /// Reads an answer to a read: whether it confirms what is kept, is kept itself, and is for others. A 304 becomes the answer
    /// that it confirms.
    #[cold]
    pub(super) fn hear_read(
        &mut self,
        routed: &Routed<'_>,
        checks: Option<&Checks>,
        read: PendingRead,
        response: &mut Response<()>,
    ) -> Box<HeardRead> {
        let PendingRead { lead, kept, sent, is_refused, .. } = read;
        let is_authorized = self.arrival.request.headers().contains_key(AUTHORIZATION);
        let (mut confirmed, mut keeping) = (None, None);
        if let (Some(kept), Some(sent)) = (kept, sent) {
            let SentRead { identity, headers, confirms } = sent;
            let is_confirmed = response.status() == StatusCode::NOT_MODIFIED;
            match confirms.filter(|_| is_confirmed) {
                Some(answer) => {
                    self.count_confirmed(routed, checks);
                    *response = kept.confirm(identity, &answer, response.headers());
                    confirmed = Some(answer.body());
                }
                None if !is_refused && may_be_kept(response, is_authorized) => {
                    keeping = kept.begin(identity, &headers, response);
                }
                // Another answer has taken its place.
                None if response.status().is_success() => kept.forget(identity),
                None => {}
            }
        }
        let id = self.record.id.as_bytes();
        let is_shared = |lead: &mut Box<Lead>| {
            !is_refused && lead.has_followers() && lead.hears(response, id, is_authorized)
        };
        let lead = lead.and_then(|mut lead| is_shared(&mut lead).then_some(lead));
        Box::new(HeardRead { confirmed, keeping, lead })
    }

    /// Sees that the request is sent now, or with another account than before.
    pub(super) fn send_read(&mut self, routed: &Routed<'_>, outgoing: &mut Outgoing<'_>) {
        let Outgoing { read: Some(read), accounts, checks, extras, .. } = outgoing else { return };
        let account = accounts.as_ref().and_then(|accounts| accounts.upstream());
        let upstream = account.unwrap_or(routed.policy.upstream);
        let upstream = &self.proxy.0.plan.config.upstreams[upstream];
        let names_host = self.client.forward.is_some() || upstream.preserve_host;
        let scope = ReadScope { upstream, checks: *checks, names_host };
        read.ask_to_confirm(scope, &mut self.arrival.request, &extras.added);
    }

    /// Counts the permits of a read that the upstream confirmed, if it does not count that.
    fn count_confirmed(&mut self, routed: &Routed<'_>, checks: Option<&Checks>) {
        let free = &self.throttle(routed).rules.free;
        if let (Some(saved), Some(checks)) = (&self.proxy.0.plan.routes[routed.route].saved, checks)
            && free.contains(&StatusCode::NOT_MODIFIED)
        {
            saved.revalidated.increment(permits(checks));
        }
        self.record.note_saved("revalidate");
    }
}

// === impl PendingRead ===

impl PendingRead {
    /// The reads that wait with it.
    pub(super) fn lead(&self) -> Option<&Lead> {
        self.lead.as_deref()
    }

    /// Makes an attempt the one of this read.
    pub(super) fn lead_attempt<'r, 'p>(&'r self, attempt: Attempt<'r, 'p>) -> Attempt<'r, 'p> {
        let attempt = if self.has_waited { attempt.again() } else { attempt };
        attempt.leading(self.lead())
    }

    /// Sees that the request is sent with these headers, and makes it one that asks to confirm what is kept: once more when it
    /// is sent with another account, whose answers are others.
    fn ask_to_confirm(
        &mut self,
        scope: ReadScope<'_>,
        request: &mut Request<Upload>,
        added: &AddedHeaders<'_>,
    ) {
        let Some(kept) = &self.kept else { return };
        if self.sent.take().is_some() {
            CONDITIONS.iter().for_each(|name| drop(request.headers_mut().remove(name)));
        }
        let (uri, headers) = (request.uri().to_string(), request.headers_mut());
        let all: HeaderMap =
            added.with(headers).map(|(name, value)| (name.clone(), value.clone())).collect();
        let ReadScope { upstream, checks, names_host } = scope;
        let mut of = Fingerprint::new([upstream.name.as_bytes(), uri.as_bytes()]);
        checks.into_iter().flat_map(|all| all.iter()).for_each(|it| of.add(it.key.as_bytes()));
        let mut names: Vec<_> = all.keys().filter(|name| names_host || **name != HOST).collect();
        names.retain(|name| !NAMES_OF_THE_CALL.contains(&name.as_str()));
        names.sort_unstable_by_key(|name| name.as_str());
        of.add_headers(&all, names);
        let identity = of.end();
        let confirms = kept.get(identity, &all);
        if let Some(answer) = &confirms {
            answer.add_condition(headers);
        }
        self.sent = Some(SentRead { identity, headers: all, confirms });
    }
}

// === impl HeardRead ===

impl HeardRead {
    /// The body for the client, which is kept and shared as it comes.
    pub(super) fn finish(
        self: Box<Self>,
        body: Body,
        settling: Option<Box<Settling>>,
        client: &Client,
    ) -> Body {
        let Self { confirmed, keeping, lead } = *self;
        let body = match (confirmed, keeping) {
            // The cost that the kept answer says was that of another call.
            (Some(bytes), _) => Body::whole(bytes),
            (None, keeping) => {
                let body = keeping.into_iter().fold(body, Body::with_keeping);
                settling.into_iter().fold(body, Body::settling)
            }
        };
        match lead {
            Some(lead) => share(*lead, body, client.leaving()),
            None => body,
        }
    }
}
