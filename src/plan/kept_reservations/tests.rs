use super::*;
use crate::{
    algorithm::{Algorithm, TokenBucket},
    limit::{Admission, ask},
    store::{Check, Checks, memory::MemoryStore},
};
use std::collections::HashSet;

fn checks() -> Checks {
    let algorithm = Algorithm::TokenBucket(TokenBucket::new(1, 3_600_000_000, 10).expect("a rule"));
    let check = Check::new("limiter", algorithm).with_cost(2);
    [check].into()
}

async fn kept(store: &Arc<dyn Store>) -> KeptReservation {
    let Ok(Admission::Granted(mut reservation)) = ask(store, &checks(), Duration::ZERO).await
    else {
        panic!("a grant")
    };
    let permits = reservation.hand_over();
    KeptReservation { reservation, permits }
}

async fn remaining(store: &Arc<dyn Store>) -> i64 {
    store.look(&checks()[0]).get().await.expect("a level").remaining
}

fn any(_: &Reservation) -> Result<(), ()> {
    Ok(())
}

#[tokio::test]
async fn a_reservation_is_refunded_once() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let all = KeptReservations::default();
    let names = [all.keep(kept(&store).await), all.keep(kept(&store).await)];
    assert_eq!(remaining(&store).await, 6);
    assert_eq!(all.take(&names[1], |_| Err::<(), _>("no")).err(), Some("no"));
    let (last, ()) = all.take(&names[1], any).expect("allowed").expect("a reservation");
    last.refund(&store);
    assert_eq!(remaining(&store).await, 8);
    for name in [&*names[1], "", "+0000000000000000000000000000000", &names[0][..31]] {
        assert!(all.take(name, any).expect("allowed").is_none(), "{name}");
    }
    // Dropped, the permits of the other one count as used.
    drop(all);
    assert_eq!(remaining(&store).await, 8);
}

#[tokio::test]
async fn the_oldest_and_expired_reservations_are_forgotten() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let all = KeptReservations::default();
    let (now, later) = (Instant::now(), Instant::now() + KEPT_FOR);
    let ended = all.keep_until(kept(&store).await, now, 2);
    assert!(all.take(&ended, any).expect("allowed").is_none());
    let mut names = Vec::new();
    for _ in 0..3 {
        names.push(all.keep_until(kept(&store).await, later, 2));
    }
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), 3);
    assert!(all.take(&names[0], any).expect("allowed").is_none());
    assert!(all.take(&names[1], any).expect("allowed").is_some());
    assert!(all.take(&names[2], any).expect("allowed").is_some());
    assert_eq!(remaining(&store).await, 2);
}
