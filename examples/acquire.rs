//! The limiter as a call: ten jobs at 5 a second, paced by one bucket that every process on the same Redis
//! shares. Without an argument the bucket is in this process.
//!
//! ```sh
//! cargo run --example acquire
//! cargo run --example acquire redis://127.0.0.1:6379
//! ```

use paceway::{
    AcquireError, Limiter, Rate,
    store::{
        Store,
        batch::{Batched, StoreMetrics},
        memory::MemoryStore,
        redis::{Epochs, RedisStore, RedisUrl},
    },
};
use std::{env, error::Error, io::Write, sync::Arc, time::Duration};
use tokio::time::Instant;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let rate = Rate { count: 5, period: Duration::from_secs(1) };
    let limiter = Limiter::token_bucket("jobs", rate, 2, store().await?).ok_or("no rule")?;
    // Every process must declare the same `max_wait`: after Redis lost its data, each refuses for this time.
    let limiter = limiter.max_wait(Duration::from_secs(10));
    let mut out = std::io::stdout();
    let started = Instant::now();
    for job in 0..10 {
        limiter.acquire(1).await?;
        writeln!(out, "job {job} after {:?}", started.elapsed())?;
    }
    // A budget of zero: the permits are granted at once or not at all.
    match limiter.try_acquire(2, Duration::ZERO).await {
        Err(AcquireError::Refused { retry_after }) => {
            writeln!(out, "come back in {retry_after:?}")?
        }
        taken => drop(taken?),
    }
    Ok(())
}

async fn store() -> Result<Arc<dyn Store>, Box<dyn Error>> {
    let Some(url) = env::args().nth(1) else { return Ok(Arc::new(MemoryStore::default())) };
    let url = RedisUrl::parse(&url)?;
    // Wrong credentials are an error here; later, a server that is away is an error of each call.
    RedisStore::probe(&url, "paceway", Duration::from_secs(2)).await?;
    let epochs = Epochs::new("paceway", metrics::Counter::noop());
    let script = Arc::new(RedisStore::open(&url, &epochs)?);
    script.connected(Duration::from_secs(2)).await?;
    Ok(Arc::new(Batched::new(script, Duration::from_millis(100), StoreMetrics::noop())))
}
