//! Which worker serves a connection. The kernel spreads them over the workers' listeners by chance: of four, two often come
//! to one worker, which is busy then while others have nothing to do. So who has let in more than another hands over.

use super::seats::Seat;
use std::{
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::sync::mpsc;

/// On their way to one worker at one time, at most. More stay where they came in.
const ON_THEIR_WAY: usize = 64;
/// A worker keeps who comes to it as long as it has at most a part more than the one that has the fewest, this many times
/// smaller than what that has: handing over costs some µs, and is not for evenness alone.
const PART: usize = 32;

/// All workers.
pub(super) struct Crew(Box<[Member]>);

struct Member {
    /// Connections, with those that are on their way.
    serves: Arc<AtomicUsize>,
    guests: mpsc::Sender<Guest>,
}

/// A connection that another worker has let in.
pub(super) struct Guest {
    pub(super) tcp: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) seat: Seat,
}

/// Counts as a connection of a worker until it is dropped.
pub(super) struct Turn(Arc<AtomicUsize>);

// === impl Crew ===

impl Crew {
    /// Of so many workers; what each of them hears.
    pub(super) fn new(workers: usize) -> (Self, Vec<mpsc::Receiver<Guest>>) {
        let member = |_| {
            let (guests, heard) = mpsc::channel(ON_THEIR_WAY);
            (Member { serves: Arc::default(), guests }, heard)
        };
        let (members, heard): (Vec<_>, _) = (0..workers).map(member).unzip();
        (Self(members.into()), heard)
    }

    /// Who serves the next one that comes to worker `own`; it counts as theirs from now on.
    pub(super) fn turn(&self, own: usize) -> (usize, Turn) {
        let serves = |worker: &usize| self.0[*worker].serves.load(Relaxed);
        let least = (0..self.0.len()).min_by_key(serves).unwrap_or(own);
        let fewest = serves(&least);
        let is_even = serves(&own) <= fewest + fewest / PART;
        let worker = if is_even { own } else { least };
        (worker, self.own_turn(worker))
    }

    /// For one that `own` serves in any case.
    pub(super) fn own_turn(&self, own: usize) -> Turn {
        let serves = self.0[own].serves.clone();
        serves.fetch_add(1, Relaxed);
        Turn(serves)
    }

    /// Gives a connection to a worker.
    ///
    /// # Errors
    ///
    /// The connection, when too many are on their way to it, or it takes no more.
    pub(super) fn hand_over(&self, worker: usize, guest: Guest) -> Result<(), Guest> {
        self.0[worker].guests.try_send(guest).map_err(|error| error.into_inner())
    }
}

// === impl Turn ===

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::seats::Seats;
    use proptest::prelude::*;
    use rstest::rstest;

    fn crew(serves: &[usize]) -> Crew {
        let (crew, _) = Crew::new(serves.len());
        for (member, serves) in crew.0.iter().zip(serves) {
            member.serves.store(*serves, Relaxed);
        }
        crew
    }

    /// Who serves the next one that comes to the first.
    #[rstest]
    #[case::alone(&[7], 0)]
    #[case::the_first_of_all(&[0, 0], 0)]
    #[case::the_second_to_one(&[1, 0], 1)]
    #[case::as_many(&[5, 5, 5], 0)]
    #[case::fewer(&[4, 5], 0)]
    #[case::the_one_with_the_fewest(&[5, 4, 2, 3], 2)]
    #[case::a_part_more(&[66, 64], 0)]
    #[case::more_than_a_part(&[67, 64], 1)]
    fn chooses(#[case] serves: &[usize], #[case] expected: usize) {
        let crew = crew(serves);
        let (worker, turn) = crew.turn(0);
        assert_eq!(worker, expected);
        assert_eq!(crew.0[worker].serves.load(Relaxed), serves[worker] + 1);
        drop(turn);
        assert_eq!(crew.0[worker].serves.load(Relaxed), serves[worker]);
    }

    proptest! {
        /// Wherever they come in.
        #[test]
        fn nobody_has_much_more_than_another(comes in prop::collection::vec(0..4_usize, 0..500)) {
            let crew = crew(&[0; 4]);
            let turns: Vec<_> = comes.iter().map(|own| crew.turn(*own)).collect();
            let serves = crew.0.iter().map(|member| member.serves.load(Relaxed));
            let (fewest, most) = (serves.clone().min(), serves.clone().max());
            prop_assert_eq!(serves.sum::<usize>(), turns.len());
            let fewest = fewest.unwrap_or_default();
            prop_assert!(most.unwrap_or_default() <= fewest + fewest / PART + 1);
        }
    }

    #[tokio::test]
    async fn who_takes_no_more_gives_it_back() {
        let (crew, mut heard) = Crew::new(2);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let seats = Arc::new(Seats::new(None));
        let guest = || Guest {
            tcp: TcpStream::connect(address).expect("connect"),
            address,
            seat: seats.take(crew.own_turn(1)).expect("a seat"),
        };
        for _ in 0..ON_THEIR_WAY {
            assert!(crew.hand_over(1, guest()).is_ok());
        }
        assert!(crew.hand_over(1, guest()).is_err(), "too many are on their way");
        assert_eq!(crew.0[1].serves.load(Relaxed), ON_THEIR_WAY);
        let mut guests = heard.remove(1);
        guests.close();
        assert!(crew.hand_over(1, guest()).is_err(), "it takes no more");
        while guests.recv().await.is_some() {}
        assert_eq!(crew.0[1].serves.load(Relaxed), 0);
    }
}
