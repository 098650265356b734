//! Bounds the connections to all upstreams together. Without a bound of their own they would take the file descriptors
//! that the store, the admin side and new clients need.

use parking_lot::Mutex;
use std::{
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of connections to upstreams that may still be made, shared by all workers and upstreams.
pub struct Sockets {
    left: Arc<Semaphore>,
    /// The pools that can close an idle connection: one for each worker and upstream that is in use. Entries of pools
    /// that were dropped are removed whenever a pool is added.
    pools: Mutex<Vec<Weak<dyn CloseIdle>>>,
}

/// A pool that can give up an idle connection when another pool needs its file descriptor.
pub(super) trait CloseIdle: Send + Sync {
    /// Closes the connection that has been idle for longest, at once or, over HTTP/2, as soon as its worker runs its task;
    /// false if none is idle.
    fn close_oldest(&self) -> bool;
}

/// The right to hold one connection open. It is returned to [`Sockets`] on drop.
#[derive(Debug)]
pub(super) struct Socket(
    #[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit,
);

/// Counts one connection as open, in its pool and in [`Sockets`], until it is dropped.
pub(super) struct OpenConnection {
    in_pool: Arc<AtomicUsize>,
    _socket: Socket,
}

// === impl Sockets ===

impl Sockets {
    /// Allows at most `most` connections at one time; `server::descriptors` takes it from the limit of open files.
    pub fn new(most: usize) -> Arc<Self> {
        let most = most.min(Semaphore::MAX_PERMITS);
        Arc::new(Self { left: Arc::new(Semaphore::new(most)), pools: Mutex::default() })
    }

    /// Lets other pools close an idle connection of this one while it exists.
    pub(super) fn share(&self, pool: Weak<dyn CloseIdle>) {
        let mut pools = self.pools.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(pool);
    }

    /// Takes the right to open one connection. If all are in use, an idle connection of any worker to any upstream is
    /// closed for it: otherwise 100 idle connections to one upstream would make calls to another one fail for seconds.
    /// `None` if no connection is idle either.
    pub(super) async fn take(&self) -> Option<Socket> {
        let mut socket = pin!(self.left.clone().acquire_owned());
        // It is in the queue before a connection is closed, so that no other call gets the right of that one.
        let taken = poll_fn(|cx| Poll::Ready(socket.as_mut().poll(cx))).await;
        let taken = match taken {
            Poll::Ready(taken) => taken,
            Poll::Pending if self.close_one() => socket.await,
            Poll::Pending => return None,
        };
        // The semaphore is never closed.
        taken.ok().map(Socket)
    }

    fn close_one(&self) -> bool {
        let pools: Vec<_> = self.pools.lock().iter().filter_map(Weak::upgrade).collect();
        pools.iter().any(|pool| pool.close_oldest())
    }
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("left", &self.left).finish_non_exhaustive()
    }
}

// === impl OpenConnection ===

impl OpenConnection {
    /// Counts a connection in `in_pool`, the number of open connections of its pool.
    pub(super) fn new(in_pool: &Arc<AtomicUsize>, socket: Socket) -> Self {
        in_pool.fetch_add(1, Relaxed);
        Self { in_pool: in_pool.clone(), _socket: socket }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.in_pool.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool with at most one idle connection.
    struct Idle(Mutex<Option<Socket>>);

    impl CloseIdle for Idle {
        fn close_oldest(&self) -> bool {
            self.0.lock().take().is_some()
        }
    }

    fn pool(sockets: &Sockets, idle: Option<Socket>) -> Arc<Idle> {
        let pool = Arc::new(Idle(Mutex::new(idle)));
        let weak = Arc::downgrade(&pool);
        sockets.share(weak);
        pool
    }

    #[tokio::test]
    async fn a_returned_socket_can_be_taken_again() {
        let sockets = Sockets::new(2);
        let (one, other) = (sockets.take().await, sockets.take().await);
        assert!(one.is_some() && other.is_some() && sockets.take().await.is_none());
        drop(one);
        assert!(sockets.take().await.is_some());
    }

    #[tokio::test]
    async fn an_idle_connection_makes_room() {
        let sockets = Sockets::new(1);
        let idle = sockets.take().await;
        let _pools = [pool(&sockets, None), pool(&sockets, idle)];
        let one = sockets.take().await;
        assert!(one.is_some() && sockets.take().await.is_none());
    }

    /// Closes its connection some time after it is asked to, as the task of an HTTP/2 session does.
    struct Later(Mutex<Option<Socket>>);

    impl CloseIdle for Later {
        fn close_oldest(&self) -> bool {
            let Some(socket) = self.0.lock().take() else { return false };
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                drop(socket);
            });
            true
        }
    }

    #[tokio::test]
    async fn a_connection_that_closes_late_makes_room_for_its_call() {
        let sockets = Sockets::new(1);
        let later = Arc::new(Later(Mutex::new(sockets.take().await)));
        let weak = Arc::downgrade(&later);
        sockets.share(weak);
        let (one, other) = tokio::join!(sockets.take(), sockets.take());
        assert!(one.is_some() && other.is_none());
    }

    #[tokio::test]
    async fn dropped_pools_are_forgotten() {
        let sockets = Sockets::new(1);
        for _ in 0..100 {
            pool(&sockets, None);
        }
        let stays = pool(&sockets, None);
        assert_eq!(sockets.pools.lock().len(), 1);
        drop(stays);
        assert!(sockets.take().await.is_some());
    }
}
