//! Flags that stand for a part of a configuration file, as `run` and `exec` share them: makes the text of that part, and says
//! which flag a mistake comes from. Runs nothing.

use super::CommandError;
use crate::config::{self, Config, Rate};
use paceway_limit::rate::largest;
use std::{fmt::Write, path::Path, time::Duration};

/// The name of the text in messages that name no flag.
pub(super) const NAME: &str = "the flags";
/// The characters around a list of rates.
pub(super) const BRACKETS: [char; 3] = ['[', ']', ' '];
/// The longest margin.
const MARGIN: Duration = Duration::from_millis(100);
/// The greatest count of a sliding window, which keeps the instant of each permit.
const MOST_COUNTED: u64 = 10_000;
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

/// The flags that `run` and `exec` have in common.
#[derive(Debug, clap::Args)]
pub(super) struct PacingFlags {
    /// A rate that all calls together keep, such as 5/s or 1200/5min; `run` learns it by `auto`. All that are given are kept.
    #[arg(long, value_name = "RATE", value_delimiter = ',')]
    pub(super) limit: Vec<String>,
    /// How long a call may wait for its slot [default: 30s]. A call that would wait longer gets a 429.
    #[arg(long, value_name = "TIME")]
    max_wait: Option<String>,
    /// Where the state of the limits is: `memory`, or a Redis that several share [default: memory].
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

/// The limiters that keep all rates of `--limit`.
pub(super) struct FlagLimiters {
    names: Vec<String>,
    /// As a file writes each.
    rules: Vec<String>,
    /// Flags with a value that cannot be read.
    wrong: Vec<String>,
}

// === impl PacingFlags ===

impl PacingFlags {
    /// The flags that are given, and their values.
    pub(super) fn flags(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let single = [("--max-wait", &self.max_wait), ("--store", &self.store)].into_iter();
        let single = single.filter_map(|(flag, value)| Some((flag, value.as_ref()?)));
        single.chain(self.limit.iter().map(|limit| ("--limit", limit)))
    }

    /// The longest wait of a call, as a file writes it.
    pub(super) fn max_wait(&self) -> String {
        scalar(self.max_wait.as_deref().unwrap_or("30s"))
    }

    /// The URL of the store, as a file writes it; `None` for the memory.
    pub(super) fn store(&self) -> Option<String> {
        self.store.as_deref().filter(|store| *store != "memory").map(scalar)
    }

    /// Makes the limiters, the first one with the name `base`.
    pub(super) fn limiters(&self, base: &str) -> FlagLimiters {
        let (mut windows, mut rules, mut wrong) = (Vec::<Rate>::new(), Vec::new(), Vec::new());
        if self.limit.is_empty() {
            let reason = "a rate that the upstream allows, as in `--limit 5/s`";
            wrong.push(format!("--limit is missing: {reason}"));
        }
        for text in self.limit.iter().map(|text| text.trim_matches(BRACKETS)) {
            if text == "auto" {
                rules.push("{ rate: auto, start: 5/s }   # learned from refusals".into());
                continue;
            }
            match config::rate(text) {
                Ok(rate) if rate.count <= MOST_COUNTED => windows.push(rate),
                Ok(rate) => rules.push(even_flow(rate)),
                Err(reason) => wrong.push(format!("--limit: `{text}` {reason}")),
            }
        }
        if let Some(shortest) = windows.iter().map(|rate| rate.period).min() {
            let (margin, unit) = largest(margin(shortest));
            let rates: Vec<_> = windows.iter().map(ToString::to_string).collect();
            let rates = match &*rates {
                [one] => one.clone(),
                several => format!("[{}]", several.join(", ")),
            };
            let window =
                format!("{{ algorithm: sliding_window, rate: {rates}, margin: {margin}{unit} }}");
            rules.insert(0, window);
        }
        let name = |i| if i == 0 { base.to_owned() } else { format!("{base}-{}", i + 1) };
        FlagLimiters { names: (0..rules.len()).map(name).collect(), rules, wrong }
    }
}

// === impl FlagLimiters ===

impl FlagLimiters {
    /// The lines below `limiters`.
    pub(super) fn lines(&self) -> String {
        let lines = self.names.iter().zip(&self.rules);
        lines.map(|(name, rule)| format!("  {}: {rule}\n", scalar(name))).collect()
    }

    /// The list of a route that takes all of them.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| scalar(name)).collect();
        format!("[{}]", names.join(", "))
    }

    /// Reads the configuration that has these limiters.
    ///
    /// # Errors
    ///
    /// Rates that cannot be read, and the mistakes of the text, each with the flag that causes it.
    pub(super) fn config(&self, text: &str) -> Result<Config, CommandError> {
        let mistakes = match Config::parse(text, NAME, Path::new("."), &|_| None) {
            Ok(config) if self.wrong.is_empty() => return Ok(config),
            parsed => parsed.err().map(|error| error.mistakes).unwrap_or_default(),
        };
        let mistakes = mistakes.iter().map(|mistake| {
            let (key, rest) = mistake.path.split_once(['.', '[']).unwrap_or((&mistake.path, ""));
            if key == "limiters" && self.names.iter().any(|name| name == rest) {
                return format!("--name: `{rest}`: {}", mistake.reason);
            }
            let flag = FLAGS.iter().find(|(own, _)| *own == key).map_or(NAME, |(_, flag)| flag);
            format!("{flag}: {}", mistake.reason)
        });
        Err(usage(self.wrong.iter().cloned().chain(mistakes)))
    }
}

/// The room for delay that varies on the way to the upstream, of a rate with this period.
fn margin(period: Duration) -> Duration {
    MARGIN.min(period / 10)
}

/// The limiter of a rate that no window counts: a burst of a hundredth and an even flow, which together are within the rate
/// in each period with its margin, wherever that begins.
fn even_flow(rate: Rate) -> String {
    let (burst, period) = (rate.count / 100, rate.period.as_micros());
    let flow = u128::from(rate.count - burst) * period;
    let flow = flow / (rate.period + margin(rate.period)).as_micros();
    let flow = Rate { count: u64::try_from(flow).unwrap_or(rate.count), ..rate };
    format!("{{ rate: {flow}, burst: {burst} }}   # for {rate}")
}

/// Refuses values that name a variable, which only a file may do.
///
/// # Errors
///
/// All flags with such a value.
pub(super) fn refuse_variables<'a>(
    flags: impl Iterator<Item = (&'static str, &'a String)>,
) -> Result<(), CommandError> {
    let named = flags.filter(|(_, value)| value.contains("${")).map(|(flag, _)| {
        format!("{flag}: `${{` names a variable in a file, not here: let the shell fill it in")
    });
    let mut named = named.peekable();
    if named.peek().is_none() { Ok(()) } else { Err(usage(named)) }
}

/// A value as YAML: in quotes, unless it can only be this text.
pub(super) fn scalar(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "./:_-".contains(c);
    let is_word =
        value.chars().all(is_plain) && value.starts_with(|c: char| c.is_ascii_alphanumeric());
    // A word alone may be a value of YAML, such as `null`.
    if is_word
        && !value.ends_with(':')
        && value.contains(|c: char| c.is_ascii_digit() || "./".contains(c))
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

/// The error of arguments with all that is wrong, one line each.
pub(super) fn usage(wrong: impl IntoIterator<Item = String>) -> CommandError {
    let lines: Vec<_> = wrong.into_iter().map(|line| format!("error: {line}")).collect();
    CommandError::usage(lines.join("\n"))
}
