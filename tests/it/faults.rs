//! The store stalls, dies, forgets, moves, while three gateways are under load that have a limiter of every policy. These
//! tests assert the laws; with `FAILURES` (a folder) set each runs for longer and leaves lines of the table in
//! docs/failures.md there (`make failures`).

mod fault;
mod link;
mod round_trips;
mod servers;
mod stage;
mod table;

use crate::support::{Gateway, eventually};
use fault::Fault;
use rstest::rstest;
use servers::{Kind, Servers};
use stage::{Seen, Stage};
use std::{env, ops::Range, time::Duration};
use table::{Outcome, Run, over_the_law};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

/// The `on_failure` of the limiters of one column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Share,
    Allow,
    Reject,
}

/// How long it runs well, badly, and well again.
#[derive(Debug, Clone, Copy)]
struct Spans {
    before: Duration,
    outage: Duration,
    after: Duration,
}

/// A line in the log of a gateway behind Sentinels after a failover.
const ANOTHER: &str = "the store has another master";
/// While some gateways have seen a change and others have not, a few permits are granted twice.
const FEW: f64 = 6.0;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_law_holds_through_faults_of_one_server(
    #[values(
        Fault::Stopped,
        Fault::RestartedEmpty,
        Fault::RestartedWithAof,
        Fault::Paused,
        Fault::Sleeps,
        Fault::SlowLink,
        Fault::SwallowingLink,
        Fault::CutLink,
        Fault::FunctionsFlushed,
        Fault::Flushed,
        Fault::Evicting,
        Fault::WrongType
    )]
    fault: Fault,
) {
    play(Kind::Standalone, fault).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_law_holds_through_faults_of_one_server_over_tls(
    #[values(Fault::Stopped, Fault::RestartedWithAof, Fault::CutLink)] fault: Fault,
) {
    play(Kind::Tls, fault).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_law_holds_through_faults_of_a_master_with_sentinels(
    #[values(Fault::KilledAndReplaced, Fault::StoppedAndReplaced)] fault: Fault,
) {
    play(Kind::Sentinel, fault).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_law_holds_through_faults_of_a_cluster_node(
    #[values(
        Fault::Stopped,
        Fault::RestartedEmpty,
        Fault::KilledAndReplaced,
        Fault::StoppedAndReplaced,
        Fault::SlotsMove
    )]
    fault: Fault,
) {
    play(Kind::Cluster, fault).await;
}

/// Runs a stage through a fault. The law holds, every request is answered, limiters follow their policy, and the store is
/// used again.
async fn play(kind: Kind, fault: Fault) {
    // However many tests run at one time: a stage is most of a processor's work.
    static STAGES: Semaphore = Semaphore::const_new(2);
    let _turn = STAGES.acquire().await.expect("an open semaphore");
    let spans = Spans::of_this_run();
    let mut servers = Servers::start(kind, fault).await;
    let mut stage = Stage::set(&servers.store()).await;

    let start = Instant::now();
    stage.begin(kind == Kind::Cluster);
    sleep(spans.before).await;
    let broken = Instant::now();
    let mut alone = stage.granted_alone().await;
    fault.begin(&mut servers, spans.outage);
    let begun = Instant::now();
    let gone = fault.last(&servers, broken, spans.outage).await;
    if fault.is_outage() {
        stage.until_policies_show().await;
    }
    if fault == Fault::WrongType {
        stage.until_turned_away().await;
    }
    if kind == Kind::Cluster {
        stage.until_healthy().await;
    }
    let mended = Instant::now();
    let mut before = [const { Vec::new() }; 3];
    for policy in Policy::ALL {
        before[policy as usize] = stage.shared(policy.name()).await;
    }
    if !fault.is_replaced() {
        fault.end(&mut servers);
    }
    stage.until_well(&before).await;
    let well = Instant::now();
    let shares = stage.granted_alone().await;
    let mut old = None;
    if fault.is_replaced() {
        // Earlier, gateways that do not know the other server yet would continue with the old one.
        eventually("all know the new one", async || servers.are_settled().then_some(())).await;
        fault.end(&mut servers);
        old = Some(servers.suffers().calls_of("fcall"));
    }
    stage.until_passed(well).await;
    sleep(spans.after).await;
    let end = Instant::now();
    stage.end().await;
    // On a machine that stalls a gateway may use its share at any time, while others use the whole.
    alone += stage.granted_alone().await - if fault.is_outage() { shares } else { alone };
    let run = Run { start, broken, mended, well, end };

    // It need not have begun for those before the first one that is turned away.
    let turned = stage.limited(Policy::Reject).into_iter().filter(|seen| seen.status == 503);
    let noticed = turned.map(|seen| seen.sent).filter(|sent| *sent > begun).min();
    assert!(noticed.is_some() || !fault.is_outage(), "no request is turned away");
    let out = noticed.unwrap_or(begun)..gone;
    for policy in Policy::ALL {
        let outcome = Outcome { limited: stage.limited(policy), probes: stage.probes(policy) };
        run.write_down(kind, fault, policy, &outcome);
        assert_answers(fault, policy, &outcome, &out, FEW + alone);
    }
    let suffered: Vec<_> = stage.healthy().into_iter().filter(|it| it.status != 200).collect();
    assert!(suffered.is_empty(), "on a healthy node: {suffered:?}");
    if let Some(old) = old {
        let now = servers.suffers().calls_of("fcall");
        assert_eq!(now, old, "the one that was replaced is asked");
    }
    if kind == Kind::Sentinel {
        let is_said = |it: &Gateway| it.events().iter().any(|event| event["message"] == ANOTHER);
        assert!(stage.gateways.iter().all(is_said), "a change of the master is not in the log");
    }
}

/// In `out` no store decides that is out; `more` is what shares may grant above the law.
fn assert_answers(
    fault: Fault,
    policy: Policy,
    outcome: &Outcome,
    out: &Range<Instant>,
    more: f64,
) {
    for answers in [&outcome.limited, &outcome.probes] {
        let known = |status| [200, 429, 503].contains(&status);
        let others: Vec<_> = answers.iter().filter(|seen| !known(seen.status)).collect();
        assert!(others.is_empty(), "{policy:?}: no answer, or another one: {others:?}");
        // No request may be turned away.
        if policy != Policy::Reject && fault != Fault::WrongType {
            let turned = answers.iter().filter(|seen| seen.status == 503).count();
            assert_eq!(turned, 0, "{policy:?}: 503");
        }
    }
    let over = over_the_law(&outcome.limited);
    match policy {
        Policy::Share => assert!(over <= more, "{over:.1} more than the law allows"),
        Policy::Reject => assert!(over < 0.5, "{over:.1} more than the law allows"),
        Policy::Allow => {}
    }
    let is_within = |seen: &&Seen| seen.sent >= out.start && seen.sent + seen.took < out.end;
    let within: Vec<_> = outcome.limited.iter().filter(is_within).collect();
    let passed = within.iter().filter(|seen| seen.status == 200).count();
    match policy {
        Policy::Allow if fault.is_outage() => assert_eq!(passed, within.len(), "all are to pass"),
        Policy::Reject if fault.is_outage() => assert_eq!(passed, 0, "nothing is to pass"),
        _ => {}
    }
}

// === impl Policy ===

impl Policy {
    const ALL: [Self; 3] = [Self::Share, Self::Allow, Self::Reject];

    fn name(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Allow => "allow",
            Self::Reject => "reject",
        }
    }
}

// === impl Spans ===

impl Spans {
    fn of_this_run() -> Self {
        let span = |millis, long| match env::var_os("FAILURES") {
            None => Duration::from_millis(millis),
            Some(_) => Duration::from_secs(long),
        };
        Self { before: span(500, 3), outage: span(1200, 5), after: span(500, 3) }
    }
}
