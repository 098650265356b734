//! The task that sends spans to the collector, in batches. A collector that is slow or away fills the queue, and traces are
//! dropped and counted; the task tries again with the next batch.

use super::{RequestTrace, Tracer};
use crate::{
    config::{CollectorUrl, OtlpProtocol},
    log::{Permit, Throttle},
    metrics,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{
    ExporterBuildError, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig,
    WithTonicConfig,
};
use opentelemetry_sdk::{Resource, error::OTelSdkError, trace::SpanExporter as _};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// The most traces that wait for the collector, in the whole process. A trace of five spans has about 3 KiB.
const QUEUE: usize = 2048;
/// The most traces of one batch.
const BATCH: usize = 256;
/// The longest time that a trace waits until its batch is full.
const DELAY: Duration = Duration::from_secs(1);
/// The longest time that a collector gets for a batch.
const EXPORT: Duration = Duration::from_secs(5);
/// The longest time that the collector gets for the last batches at the end of the process.
const LAST: Duration = Duration::from_secs(2);
/// The pause after a batch that the collector did not take.
const PAUSE: Duration = Duration::from_secs(1);

/// The task that sends spans.
#[derive(Debug)]
pub struct TraceExporter {
    stopping: CancellationToken,
    task: JoinHandle<()>,
}

/// Sends batches to one collector.
struct BatchSender {
    exporter: SpanExporter,
    scope: InstrumentationScope,
    collector: CollectorUrl,
    queue: Receiver<RequestTrace>,
}

/// Starts the task that sends spans to `collector`, on the current runtime. It connects with the first batch.
///
/// # Errors
///
/// The library's error if the URL or an environment variable that begins with `OTEL_` cannot be used.
pub fn start(collector: &CollectorUrl) -> Result<(Arc<Tracer>, TraceExporter), ExporterBuildError> {
    let builder = SpanExporter::builder();
    let (url, retry) = (collector.url.as_str(), RetryPolicy::disabled());
    let mut exporter = match collector.protocol {
        OtlpProtocol::Grpc => builder
            .with_tonic()
            .with_endpoint(url)
            .with_timeout(EXPORT)
            .with_retry_policy(retry)
            .build()?,
        OtlpProtocol::Http => builder
            .with_http()
            .with_http_client(reqwest::Client::new())
            .with_endpoint(url)
            .with_timeout(EXPORT)
            .with_retry_policy(retry)
            .build()?,
    };
    let version = env!("CARGO_PKG_VERSION");
    let service = std::env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| "paceway".to_owned());
    let resource = Resource::builder()
        .with_service_name(service)
        .with_attribute(KeyValue::new("service.version", version));
    exporter.set_resource(&resource.build());
    let (sender, queue) = mpsc::channel(QUEUE);
    let scope = InstrumentationScope::builder("paceway").with_version(version).build();
    let collector = collector.clone();
    let stopping = CancellationToken::new();
    let batches = BatchSender { exporter, scope, collector, queue };
    let task = tokio::spawn(batches.run(stopping.clone()));
    Ok((Arc::new(Tracer::new(sender)), TraceExporter { stopping, task }))
}

// === impl TraceExporter ===

impl TraceExporter {
    /// Sends the spans that are left, for 2 s at most, and ends the task.
    pub async fn finish(self) {
        self.stopping.cancel();
        // An error means that the task has panicked, which is in the log.
        let _ = timeout(LAST, self.task).await;
    }
}

// === impl BatchSender ===

impl BatchSender {
    async fn run(mut self, stopping: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        while !stopping.is_cancelled() {
            let is_open = tokio::select! {
                () = stopping.cancelled() => false,
                is_open = self.fill(&mut batch) => is_open,
            };
            if !is_open {
                break;
            }
            if !self.send(&mut batch).await && !stopping.is_cancelled() {
                let _ = timeout(PAUSE, stopping.cancelled()).await;
            }
        }
        loop {
            while batch.len() < BATCH
                && let Ok(trace) = self.queue.try_recv()
            {
                batch.push(trace);
            }
            if batch.is_empty() || !self.send(&mut batch).await {
                return;
            }
        }
    }

    /// Waits for traces until the batch is full, or until its first trace has waited for a second. False if no further trace
    /// can come.
    async fn fill(&mut self, batch: &mut Vec<RequestTrace>) -> bool {
        if self.queue.recv_many(batch, BATCH).await == 0 {
            return false;
        }
        let until = Instant::now() + DELAY;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            if !matches!(timeout_at(until, self.queue.recv_many(batch, room)).await, Ok(1..)) {
                break;
            }
        }
        true
    }

    /// Sends the batch, and says whether the collector took it. A batch that it did not take is lost: the next one says more
    /// about the present.
    async fn send(&self, batch: &mut Vec<RequestTrace>) -> bool {
        static LINES: Throttle = Throttle::new();
        let spans: Vec<_> =
            batch.drain(..).flat_map(|trace| trace.into_spans(&self.scope)).collect();
        if spans.is_empty() {
            return true;
        }
        let count = spans.len() as u64;
        let sent = match timeout(EXPORT, self.exporter.export(spans)).await {
            Ok(sent) => sent,
            Err(_) => Err(OTelSdkError::Timeout(EXPORT)),
        };
        let result = if sent.is_ok() { "exported" } else { "failed" };
        metrics::SPANS.count(&[result]).increment(count);
        if let Err(error) = &sent
            && let Some(Permit { suppressed }) = LINES.permit()
        {
            let collector = &self.collector.url;
            tracing::warn!(collector, %error, spans = count, suppressed, "spans were not exported");
        }
        sent.is_ok()
    }
}
