//! The flags of `paceway run` that stand for a configuration file: makes the text of that file. Runs nothing.

use super::CommandError;
use crate::{
    config::{self, Config, ConfigError, Rate},
    upstream::Target,
};
use paceway_limit::rate::largest;
use std::{fmt::Write, path::Path, time::Duration};

/// The name of the text in messages that name no flag.
pub(super) const NAME: &str = "the flags";
/// The room for delay that varies on the way to the upstream, unless it is more than a tenth of the shortest period.
const MARGIN: Duration = Duration::from_millis(100);
/// The greatest count of a sliding window, which keeps the instant of each permit.
const MOST_COUNTED: u64 = 10_000;
/// The default of `drain_timeout`. A longer wait needs a longer drain.
const DRAIN: Duration = Duration::from_secs(30);
/// The longest name of a limiter less room for a number.
const LONGEST_NAME: usize = 60;
/// The keys whose mistakes a flag causes, each with that flag.
const FLAGS: [(&str, &str); 7] = [
    ("upstream", "--upstream"),
    ("limiters", "--limit"),
    ("routes", "--max-wait"),
    ("drain_timeout", "--max-wait"),
    ("listen", "--listen"),
    ("admin", "--admin"),
    ("store", "--store"),
];

/// The settings of `paceway run` on the command line, in place of a file.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Without a file")]
pub(super) struct GatewayFlags {
    /// The API that throttles.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// A rate that it allows, such as 5/s or 1200/5min, or `auto` to learn it. All that are given are kept.
    #[arg(long, value_name = "RATE", value_delimiter = ',')]
    limit: Vec<String>,
    /// How long a call may wait for its slot [default: 30s].
    #[arg(long, value_name = "TIME")]
    max_wait: Option<String>,
    /// The address for calls [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The address of the dashboard and the metrics [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Where the state of the limits is: `memory`, or a Redis that gateways share [default: memory].
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Print the file that these flags stand for, and run nothing.
    #[arg(long)]
    pub(super) print: bool,
}

/// A flag that is given, and its value.
struct GivenFlag<'a> {
    name: &'static str,
    value: &'a str,
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
        self.flags().first().map(|flag| flag.name).or(self.print.then_some("--print"))
    }

    /// The configuration that the flags stand for.
    ///
    /// # Errors
    ///
    /// All that is missing or wrong, each with its flag.
    pub(super) fn config(&self) -> Result<FlagConfig, CommandError> {
        let Some(upstream) = &self.upstream else {
            return Err(usage(&[format!(
                "`{}` needs `--upstream URL`: the API that throttles; a file has its own settings",
                self.first().unwrap_or_default()
            )]));
        };
        let mut wrong = Vec::new();
        for flag in self.flags() {
            if flag.value.contains("${") {
                let name = flag.name;
                wrong.push(format!(
                    "{name}: `${{` names a variable in a file, not here: let the shell fill it in, or write it into the \
                     file that `--print` prints"
                ));
            }
        }
        if !wrong.is_empty() {
            return Err(usage(&wrong));
        }
        if self.limit.is_empty() {
            wrong.push(
                "--limit is missing: a rate that the upstream allows, as in `--limit 5/s`; `--limit auto` learns it"
                    .into(),
            );
        }
        let limiters = self.limiters(&mut wrong);
        let text = self.text(upstream, &limiters);
        match Config::parse(&text, NAME, Path::new("."), &|_| None) {
            Ok(config) if wrong.is_empty() => return Ok(FlagConfig { text, config }),
            Ok(_) => {}
            Err(error) => wrong.extend(by_flag(&error)),
        }
        Err(usage(&wrong))
    }

    fn flags(&self) -> Vec<GivenFlag<'_>> {
        let single = [
            ("--upstream", &self.upstream),
            ("--max-wait", &self.max_wait),
            ("--listen", &self.listen),
            ("--admin", &self.admin),
            ("--store", &self.store),
        ];
        let single = single.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let limits = self.limit.iter().map(|value| ("--limit", value.as_str()));
        single.chain(limits).map(|(name, value)| GivenFlag { name, value }).collect()
    }

    /// The limiters that keep all rates, as the file writes each. Rates that cannot be read are `wrong`.
    fn limiters(&self, wrong: &mut Vec<String>) -> Vec<String> {
        let (mut windows, mut limiters): (Vec<Rate>, Vec<String>) = Default::default();
        for text in self.limit.iter().map(|text| text.trim_matches(['[', ']', ' '])) {
            if text == "auto" {
                limiters.push("{ rate: auto, start: 5/s }   # learned from refusals".into());
                continue;
            }
            match config::rate(text) {
                Ok(rate) if rate.count <= MOST_COUNTED => windows.push(rate),
                // An even flow with a burst of a hundredth is within the quota wherever its window starts.
                Ok(rate) => {
                    let burst = rate.count / 100;
                    let flow = Rate { count: rate.count - burst, ..rate };
                    limiters.push(format!("{{ rate: {flow}, burst: {burst} }}   # for {rate}"));
                }
                Err(reason) => wrong.push(format!("--limit: `{text}` {reason}")),
            }
        }
        let Some(margin) = window_margin(&windows) else { return limiters };
        let rates: Vec<_> = windows.iter().map(ToString::to_string).collect();
        let rates = match &*rates {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let window = format!("{{ algorithm: sliding_window, rate: {rates}, margin: {margin} }}");
        limiters.insert(0, window);
        limiters
    }

    fn text(&self, upstream: &str, limiters: &[String]) -> String {
        let or = |value: &Option<String>, default| scalar(value.as_deref().unwrap_or(default));
        let listen = or(&self.listen, "127.0.0.1:8080");
        let admin = or(&self.admin, "127.0.0.1:9090");
        let wait = or(&self.max_wait, "30s");
        let store = match self.store.as_deref().filter(|store| *store != "memory") {
            None => "memory   # redis://HOST:6379 shares the limits among gateways".into(),
            // A shared store has two gateways at least. While it is away, each takes its half.
            Some(url) => format!("{{ url: {}, gateways: 2 }}", scalar(url)),
        };
        let drain = if config::duration(&wait).is_ok_and(|wait| wait > DRAIN) {
            format!("drain_timeout: {wait}   # as long as a call may wait\n")
        } else {
            String::new()
        };
        let base = limiter_name(upstream);
        let name = |i| if i == 0 { base.clone() } else { format!("{base}-{}", i + 1) };
        let names: Vec<_> = (0..limiters.len()).map(name).collect();
        let lines =
            names.iter().zip(limiters).map(|(name, limiter)| format!("  {name}: {limiter}\n"));
        let (lines, names) = (lines.collect::<String>(), names.join(", "));
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
             routes:\n  - {{ name: all, suffix: \"*\", limiters: [{names}], max_wait: {wait} }}\n"
        )
    }
}

/// The margin of a sliding window that keeps these rates, as a file writes it; `None` without a rate.
pub(super) fn window_margin(rates: &[Rate]) -> Option<String> {
    let shortest = rates.iter().map(|rate| rate.period).min()?;
    let (margin, unit) = largest(MARGIN.min(shortest / 10));
    Some(format!("{margin}{unit}"))
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

/// A value as YAML: in quotes, unless it can only be this text.
fn scalar(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "./:_-".contains(c);
    let is_word =
        value.chars().all(is_plain) && value.starts_with(|c: char| c.is_ascii_alphanumeric());
    // A word alone may be a value of YAML, such as `null`.
    if is_word && !value.ends_with(':') && value.contains(|c: char| c.is_ascii_digit() || c == '/')
    {
        return value.into();
    }
    let mut quoted = String::from('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='~' => quoted.push(c),
            // A string takes all that is written.
            c => drop(write!(quoted, "\\U{:08x}", u32::from(c))),
        }
    }
    quoted + "\""
}

/// The mistakes of the text, each with the flag that causes it.
fn by_flag(error: &ConfigError) -> Vec<String> {
    let wrong = error.mistakes.iter().map(|mistake| {
        let key = mistake.path.split(['.', '[']).next().unwrap_or_default();
        let flag = FLAGS.iter().find(|(own, _)| *own == key).map_or(NAME, |(_, flag)| flag);
        format!("{flag}: {}", mistake.reason)
    });
    wrong.collect()
}

fn usage(wrong: &[String]) -> CommandError {
    let lines: Vec<_> = wrong.iter().map(|line| format!("error: {line}")).collect();
    CommandError::usage(lines.join("\n"))
}
