//! `paceway replay`: decides the requests of an access log under a configuration on virtual time, and prints what would
//! have happened beside what did.

mod log_line;
mod log_reader;
mod simulation;
mod tally;

use super::{CommandError, config_file, load, print, print_json};
use crate::{
    algorithm::Micros,
    config::{AutoRule, Config},
    key::Template,
    rows::{self, WithRates},
};
use anyhow::Context;
use jiff::Timestamp;
use log_line::LogFormat;
use log_reader::{LineCounts, LogReader};
use serde_json::json;
use simulation::Simulation;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::Path,
};

pub(super) fn replay(file: &Path, log: &Path, json: bool) -> Result<(), CommandError> {
    if config_file::is_stdin(file) && config_file::is_stdin(log) {
        return Err(CommandError::usage("error: stdin is either the configuration or the log"));
    }
    let WithRates { config, flaws } = rows::with_files(load(file)?);
    let mut reader = LogReader::new(open(log)?);
    let unreadable = || format!("cannot read {}", log.display());
    let mut next = reader.next().with_context(unreadable)?;
    let mut simulation = Simulation::new(config.clone());
    let mut span: Option<(Micros, Micros)> = None;
    while let Some(request) = next {
        span = Some((span.map_or(request.at, |(first, _)| first), request.at));
        simulation.decide(request);
        next = reader.next().with_context(unreadable)?;
    }
    simulation.finish();
    let lines = &reader.lines;
    let mut notes = notes(&config, lines);
    notes.extend(flaws);
    let time = |at| Timestamp::from_microsecond(at).map(|at| format!("{at:.3}")).ok();
    let (from, to) = (span.and_then(|(at, _)| time(at)), span.and_then(|(_, at)| time(at)));
    let decided = lines.json + lines.combined;
    if json {
        let reasons = lines.reasons.iter();
        let reasons = reasons.map(|(line, reason)| json!({ "line": line, "reason": reason }));
        let mut page = json!({
            "lines": {
                "read": lines.all,
                "decided": decided,
                "bad": lines.bad,
                "no_request": lines.no_request,
                "late": lines.late,
            },
            "from": from,
            "to": to,
            "bad_lines": reasons.collect::<Vec<_>>(),
            "notes": notes,
        });
        simulation.tally.add_to(&mut page);
        print_json(&page)?;
    } else {
        complain(log, lines, &notes);
        if let (Some(from), Some(to)) = (from, to) {
            let text = simulation.tally.text();
            print(&format!("{decided} requests from {from} to {to}\n\n{}", text.trim_end()))?;
        }
    }
    match decided {
        0 => Err(anyhow::anyhow!("{} has no line that can be decided", log.display()).into()),
        _ => Ok(()),
    }
}

fn open(log: &Path) -> Result<Box<dyn BufRead>, CommandError> {
    if config_file::is_stdin(log) {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(log).map_err(|error| {
        CommandError::usage(format!("error: --log: cannot read {}: {error}", log.display()))
    })?;
    Ok(Box::new(BufReader::new(file)))
}

/// Writes bad lines and notes to stderr.
fn complain(log: &Path, lines: &LineCounts, notes: &[String]) {
    let mut err = io::stderr().lock();
    // If stderr is closed, the error cannot be reported either.
    for (line, reason) in &lines.reasons {
        let _ = writeln!(err, "{}:{line}: {reason}", log.display());
    }
    let unlisted = lines.bad - lines.reasons.len() as u64;
    if unlisted > 0 {
        let _ = writeln!(err, "{}: {unlisted} more bad lines", log.display());
    }
    for note in notes {
        let _ = writeln!(err, "note: {note}");
    }
}

/// Sentences about all that the log lacks, and that the replay therefore cannot know.
fn notes(config: &Config, lines: &LineCounts) -> Vec<String> {
    let mut notes = template_notes(config, lines);
    for missing in &config.missing {
        notes.push(format!(
            "the limiter `{}` is not in the file, and no database is read: it limits nothing here",
            missing.name
        ));
    }
    if lines.combined > 0 {
        notes.push(
            "the combined format has whole seconds, and no waits: the requests of a second are spread evenly over it"
                .into(),
        );
        let hosts = config.routes.iter().filter(|route| route.host.is_some());
        for route in hosts {
            notes
                .push(format!("the log has no hosts: no request takes the route `{}`", route.name));
        }
        for route in config.routes.iter().filter(|route| route.priority.fixed().is_none()) {
            notes.push(format!(
                "the combined format has no priorities: all requests of the route `{}` are normal",
                route.name
            ));
        }
    }
    for limiter in &config.limiters {
        match limiter.auto {
            Some(AutoRule::Rate { .. }) => notes.push(format!(
                "the limiter `{}` grows from the rate with which it starts while that is used, because the log has no answers of the upstream",
                limiter.name
            )),
            Some(AutoRule::Margin(_)) => notes.push(format!(
                "the limiter `{}` has no margin, because the log has no answers of the upstream",
                limiter.name
            )),
            None => {}
        }
    }
    if lines.late > 0 {
        notes.push(format!(
            "{} requests are logged more than 20000 lines too late, and are decided at the time of the line before",
            lines.late
        ));
    }
    notes
}

/// Sentences about the keys, tenants and costs that the log lacks.
fn template_notes(config: &Config, lines: &LineCounts) -> Vec<String> {
    let has_lines = |format: &LogFormat| match format {
        LogFormat::Json => lines.json > 0,
        LogFormat::Combined => lines.combined > 0,
    };
    let formats: Vec<_> =
        [LogFormat::Json, LogFormat::Combined].into_iter().filter(has_lines).collect();
    let mut templates: Vec<(&str, &str, &Template)> = Vec::new();
    for limiter in &config.limiters {
        templates.extend(limiter.key.as_ref().map(|key| (&*limiter.name, "key", key)));
        let tenant = limiter.fair.as_ref().filter(|_| limiter.has_turns);
        templates.extend(tenant.map(|fair| (&*limiter.name, "tenant", &fair.by)));
    }
    for charge in config.routes.iter().flat_map(|route| &route.limiters) {
        let name = &*config.limiters[charge.limiter].name;
        for cost in charge.cost.templates().map(|cost| (name, "cost", cost)) {
            if !templates.contains(&cost) {
                templates.push(cost);
            }
        }
    }
    let lacking = templates.iter().filter(|own| formats.iter().any(|format| format.lacks(own.2)));
    let note = |(name, what, template): &(&str, &str, &Template)| {
        let effect = match *what {
            "key" => "all requests without it share one bucket",
            "tenant" => "requests have the tenant that the log names, or are all one tenant",
            _ => "every request has the cost that is charged without it",
        };
        let text = template.text();
        format!(
            "the log does not have all of the {what} `{text}` of the limiter `{name}`: {effect}"
        )
    };
    lacking.map(note).collect()
}
