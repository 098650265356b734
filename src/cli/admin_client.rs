//! Asks the admin side of a running gateway, for the commands that operators type. An error says what to do.

use super::CommandError;
use crate::answer::PACEWAY_ORIGIN;
use anyhow::{Context, anyhow};
use http::{
    Method, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, EXPECT},
};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::runtime::Runtime;

/// The environment variable with the address of the admin side.
const VARIABLE: &str = "PACEWAY_ADMIN";
/// The time that the gateway has for an answer. A list of keys takes up to 5 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// The options of every command that asks a running gateway.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct AdminArgs {
    /// Its admin address; the environment variable PACEWAY_ADMIN names another default.
    #[arg(long, value_name = "ADDRESS", default_value_t = default_address(), value_parser = address)]
    pub(super) admin: String,
    /// A file with the token of its admin side.
    #[arg(long, value_name = "FILE")]
    pub(super) token: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// The admin side of a gateway, which has answered on its address.
pub(super) struct AdminClient {
    runtime: Runtime,
    client: Client,
    admin: String,
    token: Option<String>,
    /// Its answer for `/readyz`.
    pub(super) ready: Value,
}

fn default_address() -> String {
    let named = env::var(VARIABLE).ok().filter(|address| !address.is_empty());
    named.unwrap_or_else(|| "127.0.0.1:9090".into())
}

/// Reads the address of an admin side: HOST:PORT, also as the URL that a browser shows.
fn address(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let is_one = format!("http://{address}/").parse::<reqwest::Url>().is_ok_and(|url| {
        url.path() == "/" && url.host_str().is_some() && url.username().is_empty()
    });
    match port {
        Some(1..) if is_one => Ok(address.to_owned()),
        _ if env::var(VARIABLE).is_ok_and(|named| named == text) => {
            Err(format!("{VARIABLE} is no address with a port, such as 127.0.0.1:9090"))
        }
        _ => Err("it is no address with a port, such as 127.0.0.1:9090".into()),
    }
}

fn token(file: &Path) -> Result<String, CommandError> {
    let text = fs::read_to_string(file).map_err(|error| {
        CommandError::usage(format!("error: --token: cannot read {}: {error}", file.display()))
    })?;
    let token = text.trim_end_matches(['\r', '\n']);
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(CommandError::usage(format!(
            "error: --token: {} must hold the token and nothing else",
            file.display()
        )));
    }
    Ok(token.to_owned())
}

// === impl AdminClient ===

impl AdminClient {
    /// Asks `/readyz`, whose answer shows that the address is the one of an admin side.
    ///
    /// # Errors
    ///
    /// A sentence that says what to do, when the gateway does not run, or the address is another one.
    pub(super) fn connect(args: &AdminArgs) -> Result<Self, CommandError> {
        let token = args.token.as_deref().map(token).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start")?;
        let client = Client::builder().timeout(PATIENCE).no_proxy().build();
        let client = client.context("cannot start")?;
        let (admin, ready) = (args.admin.clone(), Value::Null);
        let mut connected = Self { runtime, client, admin, token, ready };
        connected.ready = connected.runtime.block_on(connected.identify())?;
        Ok(connected)
    }

    async fn identify(&self) -> anyhow::Result<Value> {
        let admin = &self.admin;
        let answer = self.send(self.request(&Method::GET, "/readyz")).await?;
        let origin = answer.headers().get(PACEWAY_ORIGIN).map(|origin| origin.as_bytes());
        match origin {
            Some(b"admin") => {}
            Some(b"gateway") => anyhow::bail!(
                "{admin} is the address for calls (`listen`); --admin wants the one of the admin side (`admin`)"
            ),
            _ => anyhow::bail!(
                "what answers on {admin} is not the admin side of Paceway: {}",
                answer.status()
            ),
        }
        let text = answer.text().await.with_context(|| format!("{admin} broke its answer off"))?;
        serde_json::from_str(&text).with_context(|| format!("{admin}/readyz is no JSON: {text}"))
    }

    /// Whether the gateway is ready, as `/readyz` said.
    pub(super) fn is_ready(&self) -> bool {
        self.ready["ready"] == true
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, CommandError> {
        self.ask(&Method::GET, path, None)
    }

    /// Sends a request, and returns the JSON of its answer.
    ///
    /// # Errors
    ///
    /// The reason that the gateway names, and what to do if a token is missing or wrong.
    pub(super) fn ask(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CommandError> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        Ok(self.runtime.block_on(self.answer(request))?)
    }

    async fn answer(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let answer = self.send(request).await?;
        let status = answer.status();
        let text = answer.text().await;
        let text = text.with_context(|| format!("{} broke its answer off", self.admin))?;
        let page: Value = serde_json::from_str(&text).unwrap_or_default();
        if status.is_success() {
            return if text.trim().is_empty() || !page.is_null() {
                Ok(page)
            } else {
                Err(anyhow!("the answer of {} is no JSON: {text}", self.admin))
            };
        }
        let detail = page["detail"].as_str().unwrap_or(text.trim());
        Err(match (status, &self.token) {
            (StatusCode::UNAUTHORIZED, None) => {
                anyhow!(
                    "this admin side wants its token: name the file with it, as in --token /run/secrets/admin"
                )
            }
            (StatusCode::UNAUTHORIZED, Some(_)) => {
                anyhow!("the token in the file of --token is wrong")
            }
            _ if detail.is_empty() => anyhow!("the gateway answered {status}"),
            _ => anyhow!("{detail}"),
        })
    }

    fn request(&self, method: &Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}{path}", self.admin);
        // If `--admin` names the port for calls, the gateway answers 417 to this expectation before it asks any limiter. So
        // the question spends no permit and reaches no upstream.
        let request = self.client.request(method.clone(), url).header(EXPECT, "paceway-admin");
        match &self.token {
            Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        request.send().await.map_err(|error| {
            let admin = &self.admin;
            // A change may have been made although its answer is missing.
            let later = "`paceway status` shows whether a change was made";
            if error.is_timeout() {
                return anyhow!("no answer of {admin} within {PATIENCE:?}; {later}");
            }
            let why = if error.is_connect() {
                let hint = "is the gateway running, and is this its admin address (`admin`)?";
                format!("nothing answers on {admin}; {hint}")
            } else {
                format!("{admin} broke the connection off before it answered; {later}")
            };
            anyhow!(error.without_url()).context(why)
        })
    }
}

/// Encodes a name or a key as one segment of a path.
pub(super) fn segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("127.0.0.1:9090", Some("127.0.0.1:9090"))]
    #[case("[::1]:9090", Some("[::1]:9090"))]
    #[case("gateway-0:9090", Some("gateway-0:9090"))]
    #[case("http://localhost:9090/", Some("localhost:9090"))]
    #[case("127.0.0.1", None)]
    #[case("127.0.0.1:0", None)]
    #[case(":9090", None)]
    #[case("a@b:9090", None)]
    #[case("b:9090/limiters", None)]
    #[case("https://b:9090", None)]
    fn reads_the_address_of_the_admin_side(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(address(text).ok().as_deref(), expected);
    }

    #[test]
    fn a_path_segment_can_hold_any_key() {
        assert_eq!(segment("a/b?c#d%é"), "a%2Fb%3Fc%23d%25%C3%A9");
    }
}
