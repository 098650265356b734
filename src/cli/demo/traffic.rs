//! The callers of the demo: their demand rises and falls, so that the dashboard shows waits and refusals.

use anyhow::Context;
use reqwest::Client;
use std::{
    f64::consts::TAU,
    io::{self, Write as _},
    net::SocketAddr,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

/// The paths that are called, with the mean calls a second.
const CALLS: [(&str, f64); 4] =
    [("/catalog", 18.0), ("/orders", 9.0), ("/exports", 2.4), ("/reports", 2.2)];
/// The shops of the calls to `/orders`, in turn: one of them asks for more than its share.
const SHOPS: [&str; 8] = ["acme", "bolt", "acme", "cora", "acme", "acme", "bolt", "dune"];
/// The demand rises and falls once in this time, by 70 %.
const WAVE: f64 = 40.0;
/// Calls under way at one time, of each path.
const MOST: usize = 200;
/// No call takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls the gateway from a thread of its own, until a signal ends the demo.
pub(super) fn start(gateway: SocketAddr) -> anyhow::Result<()> {
    let client = Client::builder().timeout(PATIENCE).no_proxy().build();
    let client = client.context("no client for the callers")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("callers".into()).spawn(move || {
        runtime.block_on(async {
            let [a, b, c, d] = CALLS.map(|(path, rate)| call(&client, gateway, path, rate));
            let calls = async { tokio::join!(a, b, c, d) };
            // The demo need not wait for calls of its own: those under way end with this runtime.
            tokio::select! {
                _ = calls => {}
                _ = tokio::signal::ctrl_c() => say_the_end(),
            }
        });
    })?;
    Ok(())
}

/// Says what the end of the demo waits for.
fn say_the_end() {
    let line = "# Stopping. Calls from other terminals that run or wait end first, for up to 30 s. Ctrl-C again ends all at \
                once.";
    // If stdout is closed, no reader waits for the end.
    drop(writeln!(io::stdout(), "\n{line}"));
}

async fn call(client: &Client, gateway: SocketAddr, path: &str, rate: f64) {
    let (url, started) = (format!("http://{gateway}{path}"), Instant::now());
    let under_way = Arc::new(Semaphore::new(MOST));
    for shop in SHOPS.iter().cycle() {
        let wave = 1.0 + 0.7 * (started.elapsed().as_secs_f64() * TAU / WAVE).sin();
        sleep(Duration::from_secs_f64(1.0 / (rate * wave))).await;
        // A caller that gets no place leaves.
        let Ok(permit) = under_way.clone().try_acquire_owned() else { continue };
        let request = client.get(&url).header("x-shop", *shop);
        tokio::spawn(async move {
            // The dashboard shows how it ended.
            drop(request.send().await);
            drop(permit);
        });
    }
}
