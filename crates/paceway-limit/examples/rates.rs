//! Customers with rates of their own, costs that are checked when the program starts, and a rate that changes while it runs.
//!
//! ```sh
//! cargo run -p paceway-limit --example rates
//! ```

use paceway_limit::{AcquireError, Limit, Limiter, Rate, memory};
use std::{collections::HashMap, error::Error, io::Write, time::Duration};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    // All customers have 2 calls an hour, except those with a larger plan.
    let plans = HashMap::from([("acme", Rate::per_hour(4))]);
    let calls = Limit::fixed_window("calls", Rate::per_hour(2))
        .rates(move |customer| plans.get(customer).copied());
    let tokens = Limit::token_bucket("tokens", Rate::per_second(1_000), 500);
    let limiter = Limiter::all("llm", [calls, tokens], memory())?;

    // A wrong name is an error here, and not in some later call.
    let (calls, tokens) = (limiter.key("calls")?, limiter.cost("tokens")?);
    if let Err(error) = limiter.cost("token") {
        writeln!(out, "{error}")?;
    }

    for customer in ["acme", "zenith"] {
        for call in 1.. {
            // It waits up to 300 ms for tokens. A customer without calls left is refused at once.
            let asked = limiter.call().key(&calls, customer).cost(&tokens, 250);
            match asked.acquire_within(Duration::from_millis(300)).await {
                Ok(call_made) => {
                    writeln!(out, "{customer}: call {call} after {:?}", call_made.waited())?
                }
                Err(error @ AcquireError::Refused { .. }) => {
                    writeln!(out, "{customer}: {error}")?;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    // The vendor grants more. The two calls of `zenith` still count.
    limiter.set_rate("calls", Rate::per_hour(3))?;
    let zenith = limiter.call().key(&calls, "zenith");
    zenith.clone().acquire_within(Duration::from_secs(1)).await?;
    writeln!(out, "zenith: a third call at the new rate")?;
    assert!(zenith.try_acquire().await.is_err(), "3 calls an hour");
    Ok(())
}
