//! `paceway explain`: prints what the gateway would do with a request, and why. Asks no store and charges nothing.

mod accounts;
mod explanation;
mod header_changes;
mod limiters;
mod reads;
mod throttle;

use super::{CommandError, load, print, print_json};
use crate::{
    config::RowsSource,
    rows::{self, WithRates},
};
use explanation::Explanation;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use std::{io::Write, net::IpAddr, path::PathBuf};

/// The options of the command: a configuration and a request.
#[derive(Debug, clap::Args)]
pub(super) struct ExplainArgs {
    /// The configuration; `-` is stdin.
    file: PathBuf,
    /// The method of the request: GET, POST, ...
    method: String,
    /// A path, or a whole URL.
    url: String,
    /// A header of the request: 'Name: value'.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The body of the request, or @FILE; for keys and costs that are parts of it.
    #[arg(short = 'd', long = "data", value_name = "BODY")]
    data: Option<String>,
    /// The address that the connection comes from: the caller's, or a proxy's.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    client_ip: IpAddr,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// A request that nothing has checked yet.
struct TypedRequest {
    head: Request<()>,
    body: Vec<u8>,
    /// The address that the connection comes from.
    peer: IpAddr,
}

pub(super) fn explain(args: &ExplainArgs) -> Result<(), CommandError> {
    let WithRates { config, flaws: mut notes } = rows::with_files(load(&args.file)?);
    let json = args.json;
    for limiter in &config.limiters {
        let from = limiter.rates_from.as_ref().map(|own| &own.from.source);
        if let Some(RowsSource::Database { .. }) = from {
            let name = &limiter.name;
            notes.push(format!("the database with the rates of keys of `{name}` is not read"));
        }
    }
    for note in notes {
        // If stderr is closed, the error cannot be reported either.
        let _ = writeln!(std::io::stderr(), "note: {note}");
    }
    let explanation = Explanation::of(&config, TypedRequest::of(args)?);
    if json {
        print_json(&serde_json::to_value(&explanation).map_err(anyhow::Error::new)?)?;
    } else {
        print(explanation.text().trim_end())?;
    }
    if explanation.forwarded {
        return Ok(());
    }
    let message = if json { "" } else { "the gateway does not forward this request" };
    Err(CommandError { code: 1, message: message.into() })
}

// === impl TypedRequest ===

impl TypedRequest {
    fn of(args: &ExplainArgs) -> Result<Self, CommandError> {
        let ExplainArgs { method, url, .. } = args;
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| CommandError::usage(format!("error: `{method}` is no method")))?;
        let uri: Uri = url.parse().map_err(|_| {
            CommandError::usage(format!("error: `{url}` is neither a path nor a URL"))
        })?;
        // `*` is a target for OPTIONS alone; the validation of the gateway checks that.
        if !uri.path().starts_with('/') && uri.path() != "*" {
            return Err(CommandError::usage(format!(
                "error: `{url}` has no path that starts with `/`"
            )));
        }
        let mut headers = read_headers(&args.headers)?;
        let body = read_body(args.data.as_deref())?;
        if !body.is_empty() && !headers.contains_key(TRANSFER_ENCODING) {
            headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from(body.len()));
        }
        let mut head = Request::new(());
        (*head.method_mut(), *head.uri_mut(), *head.headers_mut()) = (method, uri, headers);
        Ok(Self { head, body, peer: args.client_ip })
    }
}

/// Reads the body: the text itself, or the file after an `@`.
fn read_body(data: Option<&str>) -> Result<Vec<u8>, CommandError> {
    match data.and_then(|data| data.strip_prefix('@')) {
        Some(file) => std::fs::read(file).map_err(|error| {
            CommandError::usage(format!("error: -d: cannot read {file}: {error}"))
        }),
        None => Ok(data.unwrap_or_default().into()),
    }
}

fn read_headers(lines: &[String]) -> Result<HeaderMap, CommandError> {
    let mut headers = HeaderMap::new();
    for line in lines {
        let pair = line.split_once(':').and_then(|(name, value)| {
            Some((
                name.trim().parse::<HeaderName>().ok()?,
                HeaderValue::from_str(value.trim()).ok()?,
            ))
        });
        let Some((name, value)) = pair else {
            let message = format!("error: `{line}` is no header; write -H 'Name: value'");
            return Err(CommandError::usage(message));
        };
        headers.append(name, value);
    }
    Ok(headers)
}
