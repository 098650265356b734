//! The viewers of the dashboard. Each has a short queue of events; one that reads too slowly misses some.

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::mpsc;

/// The most viewers at one time: half of the connections that the admin side has.
pub(super) const MOST_VIEWERS: usize = 16;
/// Events that wait for a viewer; further ones are skipped.
const QUEUED: usize = 2;

/// The viewers that follow the gateway now.
#[derive(Default)]
pub(super) struct Viewers(Mutex<ViewerTable>);

#[derive(Default)]
struct ViewerTable {
    queues: Vec<mpsc::Sender<Bytes>>,
    /// The event that was sent last, for the next viewer.
    last: Option<Bytes>,
    is_running: bool,
}

/// The body of one viewer's answer.
pub(super) struct ViewerBody(mpsc::Receiver<Bytes>);

/// The task that sends the events. When it ends, however it does, the next viewer starts another one.
pub(super) struct Running<'a>(&'a Viewers);

// === impl Viewers ===

impl Viewers {
    /// Adds a viewer; `None` if there are [`MOST_VIEWERS`]. True if no task sends events yet.
    pub(super) fn enter(&self) -> Option<(ViewerBody, bool)> {
        let mut table = self.0.lock();
        table.queues.retain(|queue| !queue.is_closed());
        if table.queues.len() >= MOST_VIEWERS {
            return None;
        }
        let (queue, events) = mpsc::channel(QUEUED);
        if let Some(last) = &table.last {
            // The queue is empty.
            drop(queue.try_send(last.clone()));
        }
        table.queues.push(queue);
        let is_first = !std::mem::replace(&mut table.is_running, true);
        Some((ViewerBody(events), is_first))
    }

    /// Sends an event to all viewers. False if none is left, and the task is over.
    pub(super) fn send(&self, event: String) -> bool {
        let event = Bytes::from(event);
        let mut table = self.0.lock();
        table.queues.retain(|queue| {
            !matches!(queue.try_send(event.clone()), Err(mpsc::error::TrySendError::Closed(_)))
        });
        let has_viewers = !table.queues.is_empty();
        table.last = has_viewers.then_some(event);
        // In the same lock: a viewer that enters now starts another task.
        table.is_running = has_viewers;
        has_viewers
    }

    pub(super) fn running(&self) -> Running<'_> {
        Running(self)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut table = self.0.0.lock();
            // Their streams end, and they come back.
            *table = ViewerTable::default();
        }
    }
}

// === impl ViewerBody ===

impl Body for ViewerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn viewers_are_bounded_and_the_last_one_ends_the_task() {
        let viewers = Viewers::default();
        let mut all: Vec<_> = (0..MOST_VIEWERS).map_while(|_| viewers.enter()).collect();
        let firsts: Vec<_> = all.iter().map(|(_, is_first)| *is_first).collect();
        assert_eq!(firsts.iter().filter(|is_first| **is_first).count(), 1);
        assert!(firsts[0] && viewers.enter().is_none());
        all.pop();
        let (mut late, is_first) = viewers.enter().expect("a place");
        assert!(!is_first && late.0.try_recv().is_err());
        // A viewer that reads nothing misses events, and the next one begins with the last.
        for event in ["1", "2", "3"] {
            assert!(viewers.send(event.into()));
        }
        assert_eq!([late.0.try_recv(), late.0.try_recv()], [Ok("1".into()), Ok("2".into())]);
        assert!(late.0.try_recv().is_err());
        all.pop();
        let (mut later, _) = viewers.enter().expect("a place");
        assert_eq!(later.0.try_recv(), Ok("3".into()));
        drop((all, late, later));
        assert!(!viewers.send("4".into()));
        assert!(viewers.enter().is_some_and(|(_, is_first)| is_first));
    }
}
