//! `paceway explain`: prints what the gateway would do with a request, and why. Asks no store and charges nothing.

mod explanation;
mod header_changes;
mod limiters;
mod throttle;

use super::{CommandError, load, print, print_json};
use explanation::Explanation;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use std::{net::IpAddr, path::Path};

pub(super) fn explain(
    file: &Path,
    (method, url): (&str, &str),
    (headers, data): (&[String], Option<String>),
    client_ip: IpAddr,
    json: bool,
) -> Result<(), CommandError> {
    let config = load(file)?;
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| CommandError::usage(format!("error: `{method}` is no method")))?;
    let uri: Uri = url
        .parse()
        .map_err(|_| CommandError::usage(format!("error: `{url}` is neither a path nor a URL")))?;
    // `*` is a target for OPTIONS alone; the validation of the gateway checks that.
    if !uri.path().starts_with('/') && uri.path() != "*" {
        return Err(CommandError::usage(format!(
            "error: `{url}` has no path that starts with `/`"
        )));
    }
    let mut headers = read_headers(headers)?;
    let body = read_body(data)?;
    if !body.is_empty() && !headers.contains_key(TRANSFER_ENCODING) {
        headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from(body.len()));
    }
    let explanation = Explanation::of(&config, (&method, &uri), (headers, &body), client_ip);
    match json {
        true => print_json(&serde_json::to_value(&explanation).map_err(anyhow::Error::new)?)?,
        false => print(explanation.text().trim_end())?,
    }
    match explanation.forwarded {
        true => Ok(()),
        false => Err(CommandError {
            code: 1,
            message: match json {
                true => String::new(),
                false => "the gateway does not forward this request".into(),
            },
        }),
    }
}

/// Reads the body: the text itself, or the file after an `@`.
fn read_body(data: Option<String>) -> Result<Vec<u8>, CommandError> {
    match data.as_deref().and_then(|data| data.strip_prefix('@')) {
        Some(file) => std::fs::read(file).map_err(|error| {
            CommandError::usage(format!("error: -d: cannot read {file}: {error}"))
        }),
        None => Ok(data.unwrap_or_default().into_bytes()),
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
