//! `paceway health`: asks a running gateway's `/readyz`.

use super::CommandError;
use crate::answer::PACEWAY_ORIGIN;
use anyhow::{Context, anyhow, bail};
use http::header::EXPECT;
use std::{net::SocketAddr, time::Duration};

const LIMIT: Duration = Duration::from_secs(3);

pub(super) fn health(admin: SocketAddr) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("cannot start")?.block_on(ask(admin))?)
}

async fn ask(admin: SocketAddr) -> anyhow::Result<()> {
    let client = reqwest::Client::builder().timeout(LIMIT).no_proxy().build()?;
    // If `--admin` names the port for calls, the gateway answers 417 to this expectation before it asks any limiter. So the
    // question spends no permit and reaches no upstream.
    let question = client.get(format!("http://{admin}/readyz")).header(EXPECT, "paceway-admin");
    let answer = question.send().await.with_context(|| format!("nothing answers on {admin}"))?;
    let origin = answer.headers().get(PACEWAY_ORIGIN).map(|origin| origin.as_bytes());
    match origin {
        Some(b"admin") => {}
        Some(b"gateway") => bail!(
            "{admin} is the address for calls (`listen`); --admin wants the one of the admin side (`admin`)"
        ),
        _ => bail!("what answers on {admin} is not the admin side of Paceway: {}", answer.status()),
    }
    if answer.status().is_success() {
        return Ok(());
    }
    Err(anyhow!("not ready: {}", answer.text().await.unwrap_or_default()))
}
