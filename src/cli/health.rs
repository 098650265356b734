//! `paceway health`: asks a running gateway's `/readyz`.

use super::Failure;
use anyhow::{Context, anyhow};
use std::{net::SocketAddr, time::Duration};

const LIMIT: Duration = Duration::from_secs(3);

pub(super) fn health(admin: SocketAddr) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("cannot start")?.block_on(ask(admin))?)
}

async fn ask(admin: SocketAddr) -> anyhow::Result<()> {
    let client = reqwest::Client::builder().timeout(LIMIT).no_proxy().build()?;
    let answer = client.get(format!("http://{admin}/readyz")).send().await;
    let answer = answer.with_context(|| format!("nobody answers on {admin}"))?;
    if answer.status().is_success() {
        return Ok(());
    }
    Err(anyhow!("not ready: {}", answer.text().await.unwrap_or_default()))
}
