//! An HTTP service that refuses in its own words: the body of the 429 is the JSON that its clients know. `Retry-After` and
//! `RateLimit` stay.
//!
//! ```sh
//! cargo run -p paceway-limit --example refusal
//! ```

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use paceway_limit::{AcquireError, Limit, LimitLayer, Limiter, Rate, memory};
use std::{convert::Infallible, error::Error, io::Write};
use tower::{Layer, Service, service_fn};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(Limit::fixed_window("api", Rate::per_minute(2)), memory())?;
    let mut service =
        LimitLayer::new(limiter).refusal(refuse).layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(Bytes::from("an answer")))
        }));

    let mut out = std::io::stdout();
    for _ in 0..3 {
        let response = service.call(Request::new(())).await?;
        writeln!(out, "{} {:?}", response.status(), response.headers())?;
        writeln!(out, "{}", String::from_utf8_lossy(response.body()))?;
    }
    Ok(())
}

/// Puts another body into the response of the layer, whose status and other fields stay.
fn refuse(error: &AcquireError, response: Response<Bytes>) -> Response<Bytes> {
    let body =
        serde_json::json!({ "error": { "type": "rate_limit", "message": error.to_string() } });
    let (mut parts, _) = response.into_parts();
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, body.to_string().into())
}
