//! The work of Redis for a decision, however many requests wait: the words of the commands that the script executes. No time.

use crate::{
    support::{PATIENCE, Redis},
    twins::{T0, connect_as},
};
use paceway::{
    algorithm::{
        Algorithm, TokenBucket,
        concurrency::Ticket,
        fair::{Place, Priority, queue::AHEAD},
    },
    store::{Check, Checks, Decision, Entry, Reply, Turn, redis::RedisStore},
};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

const RATE: i64 = 200;
const DECIDED: i64 = 40;

/// Requests of a hundred tenants that wait at one limiter, by their slots.
struct Line {
    redis: RedisStore,
    now: i64,
    asked: i64,
    slots: BTreeMap<i64, (Checks, Place)>,
}

// === impl Line ===

impl Line {
    async fn decide(&self, entry: Entry) -> Decision {
        let replies = self.redis.run_at(Some(self.now), &[entry]).await.expect("replies");
        match &replies[..] {
            [Reply::Decision(decision)] if decision.admitted => decision.clone(),
            other => panic!("no grant: {other:?}"),
        }
    }

    async fn ask(&mut self) {
        self.asked += 1;
        let rule = TokenBucket::new(RATE, 1_000_000, 1).map(Algorithm::TokenBucket);
        let turn = Turn::new(format!("t{}", self.asked % 100), 1, Priority::Normal);
        let check = Check::new("{effort}:T:a", rule.expect("a rule")).with_turn(turn);
        let checks = Checks::from([check]);
        let ticket = Some(Ticket { gateway: 1, number: self.asked, deadline: 0 });
        let entry = Entry::Reserve { checks: checks.clone(), budget: 3_600_000_000, ticket };
        let decision = self.decide(entry).await;
        if let Some((_, place)) = Place::among(&decision.parts) {
            self.slots.insert(self.now + decision.wait, (checks, place));
        }
    }

    /// A slot passes: a request comes, and the next one is sent.
    async fn step(&mut self) {
        self.now += 1_000_000 / RATE;
        self.ask().await;
        while let Some(next) = self.slots.first_entry()
            && *next.key() - AHEAD <= self.now
        {
            let (at, (checks, place)) = next.remove_entry();
            let decision = self.decide(Entry::Confirm { checks: checks.clone(), place }).await;
            if Place::among(&decision.parts).is_some() {
                let other = self.slots.insert(self.now + decision.wait, (checks, place));
                self.slots.insert(at, other.expect("an exchange"));
            }
        }
    }
}

/// The words of the commands of the script for `DECIDED` requests, while `waiting` wait.
async fn words(waiting: i64) -> usize {
    let redis = Redis::start();
    let store = connect_as(&redis, "effort").await;
    let mut line = Line { redis: store, now: T0, asked: 0, slots: BTreeMap::new() };
    for _ in 0..=waiting {
        line.ask().await;
    }
    // The first ones find the work that was put off: tenants whose start has come.
    for _ in 0..DECIDED {
        line.step().await;
    }
    let mut monitor = TcpStream::connect(("127.0.0.1", redis.port())).expect("a connection");
    monitor.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    monitor.write_all(b"MONITOR\r\n").expect("a command");
    let mut lines = BufReader::new(monitor).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "+OK");
    for _ in 0..DECIDED {
        line.step().await;
    }
    redis.command(&["ECHO", "the end"]);
    let lines = lines.map(|line| line.expect("text"));
    let own = lines.take_while(|line| !line.contains("the end"));
    own.filter(|line| line.contains(" lua] ")).map(|line| line.matches("\" \"").count() + 1).sum()
}

#[tokio::test]
async fn a_decision_reads_equally_much_at_any_queue_length() {
    let (few, many) = (words(100).await, words(5_000).await);
    assert!(few > 0 && many <= few + few / 4, "{few} words with 100, {many} with 5,000");
}
