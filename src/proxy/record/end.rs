//! The end of the record of a request: the access line and the trace, which last until the body of its answer has ended. Counts
//! nothing.

use super::Record;
use crate::{
    proxy::{
        Body,
        access_line::{AccessLine, LoggedResult},
    },
    trace::{RequestEnd, RequestTrace},
};

/// The parts of a record that last until the body of the answer has ended: both are written when they are dropped.
#[derive(Debug)]
pub(in crate::proxy) struct AnswerEnd {
    line: Option<Box<AccessLine>>,
    trace: Option<Box<RequestTrace>>,
}

// === impl Record ===

impl Record<'_> {
    /// The parts of the record of an answer with this body that are written when the body has ended; `None` if the body is
    /// whole, or if nothing is written.
    #[inline]
    pub(in crate::proxy) fn ending(&mut self, body: &Body) -> Option<AnswerEnd> {
        if self.line.is_some() || self.trace.is_some() { self.ending_with(body) } else { None }
    }

    #[cold]
    fn ending_with(&mut self, body: &Body) -> Option<AnswerEnd> {
        let Some(bytes) = body.whole_len() else { return Some(self.end()) };
        if let Some(line) = &mut self.line {
            line.sends_whole(bytes);
        }
        None
    }

    /// Ends the record for the access line and the trace.
    #[cold]
    pub(super) fn end(&mut self) -> AnswerEnd {
        let (mut line, mut trace) = (self.line.take(), self.trace.take());
        if let Some(line) = &mut line {
            line.result = Some(self.result());
        }
        if let Some(trace) = &mut trace {
            trace.result(self.traced());
        }
        AnswerEnd { line, trace }
    }

    fn traced(&self) -> RequestEnd {
        let limiter = self.bound.map(|limiter| self.plan.limiters[limiter].limiter.name.clone());
        RequestEnd {
            route: self.route.map(|route| self.plan.config.routes[route].name.clone()),
            limiter,
            outcome: self.outcome.name(),
            status: self.status,
            id: self.id.to_str().unwrap_or("-").to_owned(),
        }
    }

    fn result(&self) -> LoggedResult {
        LoggedResult {
            id: self.id.clone(),
            route: self.route,
            bound: self.bound,
            started: self.started,
            outcome: self.outcome,
            status: self.status,
            wait: self.wait,
            connecting: self.connecting,
            upstream: self.upstream,
            attempts: if self.sent { self.attempts } else { 0 },
            account: self.account_label().filter(|_| self.sent).cloned(),
        }
    }
}

// === impl AnswerEnd ===

impl AnswerEnd {
    /// Notes bytes of the body that were handed to the client's connection.
    pub(in crate::proxy) fn count_sent(&mut self, bytes: usize) {
        if let Some(line) = &mut self.line {
            line.sent += bytes as u64;
        }
    }
}

impl Drop for AnswerEnd {
    fn drop(&mut self) {
        if let Some(trace) = self.trace.take() {
            trace.end();
        }
    }
}
