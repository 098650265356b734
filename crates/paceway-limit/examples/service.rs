//! A plain tower service whose requests are of a type of this program: jobs of tenants, each with a size. No HTTP is
//! involved.
//!
//! ```sh
//! cargo run -p paceway-limit --example service
//! ```

use paceway_limit::{AcquireError, Limit, Limiter, PaceError, PaceLayer, Rate, memory};
use std::{convert::Infallible, error::Error, io::Write, time::Duration};
use tower::{Layer, Service, service_fn};

struct Job {
    tenant: &'static str,
    megabytes: u32,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let volume = Limit::token_bucket("volume", Rate::per_second(100), 200);
    let jobs = Limit::fixed_window("jobs", Rate::per_minute(2));
    let parallel = Limit::concurrency("parallel", 2);
    let limiter = Limiter::all("export", [volume, jobs, parallel], memory())?;
    let layer = PaceLayer::new(limiter)
        .max_wait(Duration::from_secs(2))
        .key("jobs", |job: &Job| Some(job.tenant.to_owned()))
        .cost("volume", |job: &Job| job.megabytes);
    let mut export = layer.layer(service_fn(async |job: Job| {
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok::<_, Infallible>(job.megabytes)
    }));

    let mut out = std::io::stdout();
    for (tenant, megabytes) in [("acme", 150), ("zenith", 150), ("acme", 50), ("acme", 1)] {
        match export.call(Job { tenant, megabytes }).await {
            Ok(megabytes) => writeln!(out, "{tenant}: {megabytes} MB")?,
            Err(PaceError::Limited(AcquireError::Refused { limit, retry_after, .. })) => {
                writeln!(out, "{tenant}: refused by `{limit}`, come back in {retry_after:?}")?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
