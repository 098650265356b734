//! A server that is full now and then: it refuses every write for 20 ms and takes them for 50 ms, in turns.

use super::*;
use rstest::rstest;

const SECOND: Micros = 1_000_000;
const LASTS: Duration = Duration::from_secs(12);
/// The rule: 40/s, and 10 at once.
const COUNT: i64 = 40;
const BURST: i64 = 10;

/// The instants at which `clients` of each of `gateways` send, which wait up to `budget` for their slots.
async fn sent_by(gateways: usize, clients: u64, budget: Micros) -> Vec<Micros> {
    let backend = FarBackend::default();
    backend.0.gateways.store(gateways, SeqCst);
    let processes: Vec<_> = (0..gateways).map(|_| process(&backend)).collect();
    settled().await;
    let begun = Instant::now();
    let rule = TokenBucket::new(COUNT, SECOND, BURST).expect("a rule");
    let share = OnFailure::Share { period: SECOND };
    let checks: Checks = [check(Algorithm::TokenBucket(rule), share)].into();
    let sent = Arc::new(Mutex::new(Vec::new()));
    for [failover, _] in &processes {
        for number in 0..clients {
            let (failover, checks, sent) = (failover.clone(), checks.clone(), sent.clone());
            tokio::spawn(async move {
                sleep(Duration::from_millis(number)).await;
                loop {
                    let decision = ask(&failover, &checks, budget).await.expect("a decision");
                    if decision.admitted {
                        sleep(Duration::from_micros(decision.wait.unsigned_abs())).await;
                        let now = begun.elapsed().as_micros();
                        sent.lock().push(Micros::try_from(now).expect("short"));
                    }
                    sleep(Duration::from_millis(4)).await;
                }
            });
        }
    }
    while begun.elapsed() < LASTS {
        for (mood, span) in [(Mood::Refuses, 20), (Mood::Works, 50)] {
            set(&backend.0, mood);
            sleep(Duration::from_millis(span)).await;
        }
    }
    let mut sent = std::mem::take(&mut *sent.lock());
    sent.sort_unstable();
    sent
}

/// The slots that a gateway has promised are charged when the server takes writes again, and the share of the next outage
/// begins after them. It began without them, and up to 15 permits more than the rule allows were sent.
#[rstest]
#[tokio::test(start_paused = true)]
async fn slots_ahead_are_known_to_the_next_outage(
    #[values(1, 2)] gateways: usize,
    #[values(1, 4, 20)] clients: u64,
    #[values(0, 500_000)] budget: Micros,
) {
    let sent = sent_by(gateways, clients, budget).await;
    for (i, from) in sent.iter().enumerate() {
        for (count, to) in (1..).zip(&sent[i..]) {
            // One more for the instants, which the store counts in µs and the timers in ms.
            let most = BURST + (to - from) * COUNT / SECOND + 1;
            assert!(count <= most, "{count} of {most} from {from} to {to} µs");
        }
    }
    assert!(sent.len() as i64 > 11 * COUNT, "{} in 12 s", sent.len());
}
