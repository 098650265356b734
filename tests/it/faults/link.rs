//! A TCP proxy that does what networks do: it delays, swallows, or cuts.

use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// The fraction of the golden ratio, whose multiples are spread evenly between 0 and 1.
const GOLDEN: f64 = 0.618_033_988_75;

/// The weather of a link: how it delays or loses bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    Fair,
    /// Bytes arrive this much later, in both directions.
    Slow(Duration),
    /// Between so much and so much later, each way: bytes that follow each other are late by other times.
    Uneven(Duration, Duration),
    /// Nothing comes through, and neither side gets an error.
    Swallows,
    /// All connections end, and the link accepts no new one.
    Cut,
}

/// A proxy in front of a server, which can delay, swallow or cut.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) port: u16,
    weather: watch::Sender<Weather>,
    task: JoinHandle<()>,
}

// === impl Link ===

impl Link {
    pub(super) async fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("its address").port();
        let (weather, seen) = watch::channel(Weather::Fair);
        Self { port: own, weather, task: tokio::spawn(accept(listener, port, seen)) }
    }

    pub(super) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, to: u16, weather: watch::Receiver<Weather>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        if *weather.borrow() == Weather::Cut {
            continue;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        connections.spawn(pass(from_client, to_server, weather.clone()));
        connections.spawn(pass(from_server, to_client, weather.clone()));
    }
}

/// Until one side ends, or the link is cut; then both halves are dropped.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
) {
    let mut bytes = vec![0; 65_536];
    let mut turn = 0.0;
    loop {
        let mut seen = weather.clone();
        let count = tokio::select! {
            read = from.read(&mut bytes) => match read {
                Ok(count @ 1..) => count,
                _ => return,
            },
            _ = seen.wait_for(|weather| *weather == Weather::Cut) => return,
        };
        let now = *weather.borrow_and_update();
        match now {
            Weather::Slow(span) => sleep(span).await,
            Weather::Uneven(least, most) => {
                // All parts of it, evenly, and never one that is like the last.
                turn = (turn + GOLDEN) % 1.0;
                sleep(least + (most - least).mul_f64(turn)).await;
            }
            Weather::Fair | Weather::Swallows | Weather::Cut => {}
        }
        let passes = |weather: &Weather| *weather != Weather::Swallows;
        match weather.wait_for(passes).await.map(|weather| *weather) {
            Ok(Weather::Cut) | Err(_) => return,
            Ok(_) => {}
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
