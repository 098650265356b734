//! Spreads connections evenly over the workers. The kernel chooses a worker's listener by a hash: of four connections, two
//! often come to one worker, which is then busy while another is idle. The balancer hands the second one over.

use super::{connection_limit::ConnectionPermit, load_guard::LoadGuard};
use std::{
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::sync::mpsc;

/// How many connections may be under way to one worker at one time. Any further one stays with the worker that accepted
/// it.
const HANDOFFS: usize = 64;
/// A worker keeps a new connection while it has at most 1/32 more connections than the worker with the fewest. A handoff
/// costs some µs, so that an imbalance of one connection in a hundred is not worth it.
const TOLERANCE: usize = 32;

/// The connection counts of all workers, and a queue of handoffs to each.
pub(super) struct ConnectionBalancer(Box<[WorkerLoad]>);

struct WorkerLoad {
    /// Connections that this worker serves, including those in its queue.
    connections: Arc<AtomicUsize>,
    handoffs: mpsc::Sender<Handoff>,
}

/// A connection that one worker accepted and another will serve.
pub(super) struct Handoff {
    pub(super) tcp: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) permit: ConnectionPermit,
}

// === impl ConnectionBalancer ===

impl ConnectionBalancer {
    /// Makes the balancer of `workers` workers, and the receiver of handoffs for each of them.
    pub(super) fn new(workers: usize) -> (Self, Vec<mpsc::Receiver<Handoff>>) {
        let load = |_| {
            let (handoffs, received) = mpsc::channel(HANDOFFS);
            (WorkerLoad { connections: Arc::default(), handoffs }, received)
        };
        let (loads, received): (Vec<_>, _) = (0..workers).map(load).unzip();
        (Self(loads.into()), received)
    }

    /// Chooses the worker for a new connection that worker `own` accepted: `own` itself, or the one with the fewest
    /// connections if `own` has over 1/32 more. The connection counts as that worker's from now on.
    pub(super) fn choose(&self, own: usize) -> (usize, LoadGuard) {
        let connections = |worker: &usize| self.0[*worker].connections.load(Relaxed);
        let least = (0..self.0.len()).min_by_key(connections).unwrap_or(own);
        let fewest = connections(&least);
        let is_even = connections(&own) <= fewest + fewest / TOLERANCE;
        let worker = if is_even { own } else { least };
        (worker, self.keep(worker))
    }

    /// Counts a connection that `worker` serves however many it has, for example one that no other worker took.
    pub(super) fn keep(&self, worker: usize) -> LoadGuard {
        LoadGuard::new(self.0[worker].connections.clone())
    }

    /// Sends a connection to another worker.
    ///
    /// # Errors
    ///
    /// Returns the connection when 64 are under way to that worker, or when it accepts no more because the gateway
    /// drains.
    pub(super) fn hand_over(&self, worker: usize, handoff: Handoff) -> Result<(), Handoff> {
        self.0[worker].handoffs.try_send(handoff).map_err(|error| error.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{connection_limit::ConnectionLimit, windows::WindowBudget};
    use proptest::prelude::*;
    use rstest::rstest;
    use std::num::NonZeroUsize;

    fn balancer(connections: &[usize]) -> ConnectionBalancer {
        let (balancer, _) = ConnectionBalancer::new(connections.len());
        for (load, connections) in balancer.0.iter().zip(connections) {
            load.connections.store(*connections, Relaxed);
        }
        balancer
    }

    #[rstest]
    #[case::alone(&[7], 0)]
    #[case::the_first_of_all(&[0, 0], 0)]
    #[case::the_second_to_one(&[1, 0], 1)]
    #[case::as_many(&[5, 5, 5], 0)]
    #[case::fewer(&[4, 5], 0)]
    #[case::the_one_with_the_fewest(&[5, 4, 2, 3], 2)]
    #[case::a_part_more(&[66, 64], 0)]
    #[case::more_than_a_part(&[67, 64], 1)]
    fn chooses_the_worker_with_the_fewest_connections(
        #[case] connections: &[usize],
        #[case] expected: usize,
    ) {
        let balancer = balancer(connections);
        let (worker, load) = balancer.choose(0);
        assert_eq!(worker, expected);
        assert_eq!(balancer.0[worker].connections.load(Relaxed), connections[worker] + 1);
        drop(load);
        assert_eq!(balancer.0[worker].connections.load(Relaxed), connections[worker]);
    }

    proptest! {
        /// The counts stay within 1/32 of each other, whichever listeners the connections arrive at.
        #[test]
        fn no_worker_has_much_more_than_another(arrivals in prop::collection::vec(0..4_usize, 0..500)) {
            let balancer = balancer(&[0; 4]);
            let loads: Vec<_> = arrivals.iter().map(|own| balancer.choose(*own)).collect();
            let connections = balancer.0.iter().map(|load| load.connections.load(Relaxed));
            let (fewest, most) = (connections.clone().min(), connections.clone().max());
            prop_assert_eq!(connections.sum::<usize>(), loads.len());
            let fewest = fewest.unwrap_or_default();
            prop_assert!(most.unwrap_or_default() <= fewest + fewest / TOLERANCE + 1);
        }
    }

    #[tokio::test]
    async fn a_full_worker_returns_the_connection() {
        let (balancer, mut received) = ConnectionBalancer::new(2);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let limit = Arc::new(ConnectionLimit::new(NonZeroUsize::MAX, WindowBudget::default()));
        let handoff = || Handoff {
            tcp: TcpStream::connect(address).expect("connect"),
            address,
            permit: limit.acquire(balancer.keep(1)).expect("a permit"),
        };
        for _ in 0..HANDOFFS {
            assert!(balancer.hand_over(1, handoff()).is_ok());
        }
        assert!(balancer.hand_over(1, handoff()).is_err(), "too many are under way");
        assert_eq!(balancer.0[1].connections.load(Relaxed), HANDOFFS);
        let mut handoffs = received.remove(1);
        handoffs.close();
        assert!(balancer.hand_over(1, handoff()).is_err(), "it takes no more");
        while handoffs.recv().await.is_some() {}
        assert_eq!(balancer.0[1].connections.load(Relaxed), 0);
    }
}
