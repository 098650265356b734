//! The limiter as a call: ten jobs at 5 a second, paced by one bucket that every process on the same Redis
//! shares. Without an argument the bucket is in this process.
//!
//! ```sh
//! cargo run --example acquire
//! cargo run --example acquire redis://127.0.0.1:6379
//! ```

use paceway::{AcquireError, Limit, Limiter, Rate, StoreHandle, memory, redis};
use std::{env, error::Error, io::Write, time::Duration};
use tokio::time::Instant;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter =
        Limiter::new(Limit::token_bucket("jobs", Rate::per_second(5), 2), store().await?)?;
    // Every process must declare the same `max_wait`: after Redis lost its data, each refuses for this time.
    let limiter = limiter.max_wait(Duration::from_secs(10));
    let mut out = std::io::stdout();
    let started = Instant::now();
    for job in 0..10 {
        limiter.acquire(1).await?;
        writeln!(out, "job {job} after {:?}", started.elapsed())?;
    }
    // A budget of zero: the permits are granted at once or not at all.
    match limiter.try_acquire(2).await {
        Err(AcquireError::Refused { retry_after, .. }) => {
            writeln!(out, "come back in {retry_after:?}")?
        }
        taken => drop(taken?),
    }
    Ok(())
}

/// Wrong credentials are an error here. A server that is away is none: each process has its share of the bucket until it
/// is back.
async fn store() -> Result<StoreHandle, redis::SetupError> {
    match env::args().nth(1) {
        Some(url) => redis::connect(&url).await,
        None => Ok(memory()),
    }
}
