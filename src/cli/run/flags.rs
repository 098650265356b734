//! The flags of `paceway run` that stand for a configuration file: makes the text of that file. Runs nothing.

use super::CommandError;
use crate::{
    cli::flags::{FlagLimiters, PacingFlags, refuse_variables, scalar, usage},
    config::{self, Config},
    upstream::Target,
};
use std::time::Duration;

/// The default of `drain_timeout`. A longer wait needs a longer drain.
const DRAIN: Duration = Duration::from_secs(30);
/// The longest name of a limiter less room for a number.
const LONGEST_NAME: usize = 60;

/// The settings of `paceway run` on the command line, in place of a file.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Without a file")]
pub(super) struct GatewayFlags {
    /// The API that throttles.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    #[command(flatten)]
    pacing: PacingFlags,
    /// The address for calls [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The address of the dashboard and the metrics [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Print the file that these flags stand for, and run nothing.
    #[arg(long)]
    pub(super) print: bool,
}

/// The text of a configuration, and what it says.
pub(super) struct FlagConfig {
    pub(super) text: String,
    pub(super) config: Config,
}

// === impl GatewayFlags ===

impl GatewayFlags {
    /// The first of these flags that is given.
    pub(super) fn first(&self) -> Option<&'static str> {
        self.flags().next().map(|(flag, _)| flag).or(self.print.then_some("--print"))
    }

    /// The configuration that the flags stand for.
    ///
    /// # Errors
    ///
    /// All that is missing or wrong, each with its flag.
    pub(super) fn config(&self) -> Result<FlagConfig, CommandError> {
        let Some(upstream) = &self.upstream else {
            return Err(usage([format!(
                "`{}` needs `--upstream URL`: the API that throttles; a file has its own settings",
                self.first().unwrap_or_default()
            )]));
        };
        refuse_variables(self.flags())?;
        let limiters = self.pacing.limiters(&limiter_name(upstream));
        let text = self.text(upstream, &limiters);
        let config = limiters.config(&text)?;
        Ok(FlagConfig { text, config })
    }

    /// The flags that are given, and their values.
    fn flags(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let own =
            [("--upstream", &self.upstream), ("--listen", &self.listen), ("--admin", &self.admin)];
        let own = own.into_iter().filter_map(|(flag, value)| Some((flag, value.as_ref()?)));
        own.chain(self.pacing.flags())
    }

    fn text(&self, upstream: &str, limiters: &FlagLimiters) -> String {
        let or = |value: &Option<String>, default| scalar(value.as_deref().unwrap_or(default));
        let listen = or(&self.listen, "127.0.0.1:8080");
        let admin = or(&self.admin, "127.0.0.1:9090");
        let wait = self.pacing.max_wait();
        let store = match self.pacing.store() {
            None => "memory   # redis://HOST:6379 shares the limits among gateways".into(),
            // A shared store has two gateways at least. While it is away, each takes its half.
            Some(url) => format!("{{ url: {url}, gateways: 2 }}"),
        };
        let drain = if config::duration(&wait).is_ok_and(|wait| wait > DRAIN) {
            format!("drain_timeout: {wait}   # as long as a call may wait\n")
        } else {
            String::new()
        };
        let (lines, names) = (limiters.lines(), limiters.names());
        let upstream = scalar(upstream);
        format!(
            "# What the flags of `paceway run` stand for. docs/configuration.md has all keys; `paceway check FILE` checks a \
             file.\n\
             listen: {listen}\n\
             admin: {admin}   # the dashboard, metrics and state\n\
             store: {store}\n{drain}\
             upstream: {upstream}\n\
             # All calls take these limiters. `margin` is room for delay that varies on the way to the upstream.\n\
             limiters:\n{lines}\
             # A call waits for its slot up to `max_wait`; one whose slot comes later is refused with 429 at once.\n\
             routes:\n  - {{ name: all, suffix: \"*\", limiters: {names}, max_wait: {wait} }}\n"
        )
    }
}

/// The name of the limiter: the host of the upstream, so that gateways for several upstreams can share a Redis.
fn limiter_name(url: &str) -> String {
    let host = Target::parse(url).map(|target| target.host).ok();
    let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = host.to_lowercase().chars().map(plain).take(LONGEST_NAME).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "upstream".into() } else { name.into() }
}
