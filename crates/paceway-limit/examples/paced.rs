//! Paces a reqwest client in 15 lines: ten requests at 5 a second to the URL that is named.
//!
//! ```sh
//! cargo run -p paceway-limit --example paced http://127.0.0.1:8000/
//! ```

use paceway_limit::{Limit, Limiter, PaceLayer, Rate, memory};
use std::{env, error::Error, io::Write, time::Duration};
use tower::{Layer, Service};
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url: reqwest::Url = env::args().nth(1).ok_or("usage: paced http://HOST/PATH")?.parse()?;
    let limiter = Limiter::new(Limit::token_bucket("vendor", Rate::per_second(5), 1), memory())?;
    let layer = PaceLayer::new(limiter).max_wait(Duration::from_secs(10));
    let mut client = layer.layer(reqwest::Client::new());
    for i in 0..10 {
        let response = client.call(reqwest::Request::new("GET".parse()?, url.clone())).await?;
        writeln!(std::io::stdout(), "request {i}: {}", response.status())?;
    }
    Ok(())
}
