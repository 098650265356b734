//! A Cluster: limiters on several nodes, slots that move, and nodes that hang.

use super::{assert_shared, assert_works, key, set_user, two, until_steady, upstream};
use crate::support::{Authority, Cluster, Gateway, Redis, eventually, rights};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep},
};

/// Asks for a path all the time, until it is stopped; returns the statuses, with the instant of each.
struct Load {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Vec<(Instant, u16)>>,
}

impl Load {
    fn on(gateway: &Arc<Gateway>, path: &'static str) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let gateway = gateway.clone();
        let task = tokio::spawn(async move {
            let mut answers = Vec::new();
            while stopped.try_recv() == Err(oneshot::error::TryRecvError::Empty) {
                let status = gateway.get(path).await.status;
                answers.push((Instant::now(), status));
                sleep(Duration::from_millis(5)).await;
            }
            answers
        });
        Self { stop, task }
    }

    async fn end(self) -> Vec<(Instant, u16)> {
        self.stop.send(()).expect("it runs");
        self.task.await.expect("a task")
    }
}

fn count(answers: &[(Instant, u16)], status: u16) -> usize {
    answers.iter().filter(|(_, it)| *it == status).count()
}

/// The URL for a user with the rights that the docs name.
fn with_users(cluster: &Cluster) -> String {
    let rights = [&rights()[..], &["+cluster|slots", "+asking"]].concat();
    cluster.nodes.iter().for_each(|node| set_user(node, &rights));
    cluster.url().replace("//", "//paceway:secret@")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_works_as_a_cluster() {
    let cluster = Cluster::start(3, 0).await;
    let url = with_users(&cluster);
    let (gateways, _upstream) = assert_works(&format!("{url}, timeout: 2s")).await;
    // Keys are everywhere.
    for i in 0..64 {
        assert_eq!(gateways[i % 2].get(&format!("/keyed?k={i}")).await.status, 200);
    }
    for node in &cluster.nodes {
        assert!(!node.keys().is_empty());
    }
}

/// A rolling deployment that adds a route which uses two limiters together: the names of their states change, and the new
/// gateway must not count from zero beside the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_with_a_new_group_in_a_cluster_counts_as_exhausted_at_first() {
    let cluster = Cluster::start(3, 0).await;
    let (upstream, _gate) = upstream().await;
    let yaml = |route: &str| {
        format!(
            "store: {{ url: \"{}\", timeout: 2s }}\nupstream: {}\nlimiters: {{ a: 1000/s, b: 20/s }}\n\
             routes: [{route}{{ suffix: /a, limiters: [a] }}, {{ suffix: /b, limiters: [b] }}]\n",
            with_users(&cluster),
            upstream.url()
        )
    };
    let old = Gateway::start(&yaml("")).await;
    assert_eq!(old.get("/b").await.status, 200);
    let new = Gateway::start(&yaml("{ suffix: /both, limiters: [a, b] }, ")).await;
    for _ in 0..5 {
        assert_eq!(new.get("/b").await.status, 429);
        assert_eq!(new.get("/both").await.status, 429);
        // Its name has not changed.
        assert_eq!(new.get("/a").await.status, 200);
        assert_eq!(old.get("/b").await.status, 200);
    }
    drop(old);
    eventually("the new name is in use", async || {
        (new.get("/both").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(new.get("/b").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_works_over_tls() {
    let authority = Authority::new();
    let cluster = Cluster::with(3, 0, || {
        let mut args = authority.arguments("redis.internal", "no").0;
        args.extend(["--tls-cluster", "yes"].map(str::to_owned));
        args
    });
    let cluster = cluster.await;
    let tls = format!("tls: {{ ca: {}, server_name: redis.internal }}", authority.file());
    assert_works(&format!("{}, timeout: 2s, {tls}", cluster.tls_url())).await;
}

/// No caller notices it: all get 200 or 429, and fifty pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_during_traffic_loses_no_state() {
    let cluster = Cluster::start(3, 0).await;
    let (upstream, _gate) = upstream().await;
    // That of commands which follow a slot is a right of its own.
    let gateways = two(&format!("{}, timeout: 2s", with_users(&cluster)), &upstream).await;
    let load = gateways.each_ref().map(|gateway| Load::on(gateway, "/fifty"));
    let others = gateways.each_ref().map(|gateway| Load::on(gateway, "/keyed?k=1"));
    let both = gateways.each_ref().map(|gateway| Load::on(gateway, "/both"));
    let key = key("fifty");
    let from = cluster.owner(&key);
    let to = (from + 1) % 3;
    let calls = |node: usize| cluster.nodes[node].calls_of("fcall");
    let until_called = async |node: usize| {
        let before = calls(node);
        eventually("it is asked", async || (calls(node) > before + 20).then_some(())).await;
    };
    until_called(from).await;
    cluster.begin_to_move(&key, from, to);
    until_called(from).await;
    cluster.move_keys(&key, from, to);
    // ASK: the old one sends each command on.
    until_called(to).await;
    cluster.nodes[to].command(&["FUNCTION", "FLUSH"]);
    until_called(to).await;
    cluster.end_to_move(&key, from, to);
    until_called(to).await;
    let mut passed = 0;
    for answers in load.map(Load::end) {
        let answers = answers.await;
        passed += count(&answers, 200);
        assert_eq!(count(&answers, 200) + count(&answers, 429), answers.len());
    }
    assert_eq!(passed, 50);
    // The keys of two limiters, which go over in one step, as `redis-cli --cluster reshard` does it.
    let key = self::key("pair");
    let from = cluster.owner(&key);
    let to = (from + 1) % 3;
    cluster.begin_to_move(&key, from, to);
    until_called(from).await;
    cluster.move_keys(&key, from, to);
    until_called(to).await;
    cluster.end_to_move(&key, from, to);
    until_called(to).await;
    for answers in others.into_iter().chain(both).map(Load::end) {
        let answers = answers.await;
        assert_eq!(count(&answers, 200), answers.len());
    }
}

/// While a slot moves, a limiter without a state gets one at the new node, wherever the epoch is by then.
#[rstest]
#[case::that_nobody_has_used(false, false)]
#[case::whose_epoch_has_stayed(true, false)]
#[case::whose_epoch_has_gone_before(true, true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_without_a_state_in_a_moving_slot_is_decided(
    #[case] used: bool,
    #[case] moved: bool,
) {
    let cluster = Cluster::start(3, 0).await;
    let (upstream, _gate) = upstream().await;
    let key = key("five");
    cluster.bring(&key, 0).await;
    let gateways = two(&format!("{}, timeout: 2s", with_users(&cluster)), &upstream).await;
    if used {
        assert_eq!(gateways[0].get("/five").await.status, 200);
        cluster.nodes[0].command(&["DEL", &format!("{key}:T:five")]);
    }
    cluster.begin_to_move(&key, 0, 1);
    if moved {
        cluster.move_keys(&key, 0, 1);
    }
    assert_shared(&gateways).await;
    cluster.move_keys(&key, 0, 1);
    cluster.end_to_move(&key, 0, 1);
    for gateway in &gateways {
        assert_eq!(gateway.get("/five").await.status, 429);
    }
}

/// The node that counts the gateways is away when they start: limiters on other nodes are decided there.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_at_the_start_delays_only_its_own_limiters() {
    let cluster = Cluster::start(3, 0).await;
    let (upstream, _gate) = upstream().await;
    cluster.bring(&key("gateways"), 0).await;
    cluster.bring(&key("more"), 1).await;
    cluster.nodes[0].freeze();
    let gateways = two(&format!("{}, timeout: 2s", cluster.url()), &upstream).await;
    for gateway in &gateways {
        until_steady(gateway, "/more").await;
    }
    cluster.nodes[0].thaw();
}

/// All are away when gateways start, and then all come back but the one that counts the gateways.
#[tokio::test(flavor = "multi_thread")]
async fn limiters_work_without_the_node_that_counts_gateways() {
    let mut cluster = Cluster::start(3, 0).await;
    let (upstream, _gate) = upstream().await;
    cluster.bring(&key("gateways"), 0).await;
    cluster.bring(&key("more"), 1).await;
    cluster.nodes.iter().for_each(Redis::freeze);
    let gateways = two(&format!("{}, timeout: 2s", cluster.url()), &upstream).await;
    cluster.nodes[1].thaw();
    cluster.nodes[2].thaw();
    for gateway in &gateways {
        until_steady(gateway, "/more").await;
    }
    // The first has been silent for longer than any gateway waits for it.
    cluster.nodes[0].kill();
    for gateway in &gateways {
        until_steady(gateway, "/more").await;
    }
}
