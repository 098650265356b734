//! Reads an access log line by line, in bounded memory, and returns its requests in the order of their arrival.

use super::log_line::{LineError, LogFormat, LoggedRequest};
use crate::algorithm::Micros;
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io::{self, BufRead, Read},
    mem,
};

/// The most bytes of a line; a longer one is bad.
const MAX_LINE: u64 = 1 << 20;
/// How many requests are kept to bring them into order: a request that waited is logged after later ones.
const WINDOW: usize = 20_000;
/// How many bad lines are listed.
const LISTED: usize = 10;

/// An access log, as an iterator of its requests.
pub(super) struct LogReader<R> {
    log: R,
    buffer: Vec<u8>,
    is_at_end: bool,
    window: BinaryHeap<Reverse<OrderedLine>>,
    /// Requests of one second of a log that has whole seconds.
    second: Vec<LoggedRequest>,
    /// The arrival of the request that was returned last.
    last: Micros,
    pub(super) lines: LineCounts,
}

/// The lines of a log that were read.
#[derive(Debug, Default)]
pub(super) struct LineCounts {
    pub(super) all: u64,
    pub(super) bad: u64,
    /// The numbers of the first bad lines, with the reasons.
    pub(super) reasons: Vec<(u64, String)>,
    /// Lines about bytes that were no request.
    pub(super) no_request: u64,
    /// Requests that were logged so late that others had been decided; they are decided at the time of those.
    pub(super) late: u64,
    pub(super) json: u64,
    pub(super) combined: u64,
}

/// A request in the window, by its arrival and the number of its line.
struct OrderedLine(Micros, u64, LoggedRequest);

// === impl LogReader ===

impl<R: BufRead> LogReader<R> {
    pub(super) fn new(log: R) -> Self {
        let (buffer, window, second) = (Vec::new(), BinaryHeap::new(), Vec::new());
        let lines = LineCounts::default();
        Self { log, buffer, is_at_end: false, window, second, last: Micros::MIN, lines }
    }

    /// The next request, in the order of arrival.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    pub(super) fn next(&mut self) -> io::Result<Option<LoggedRequest>> {
        while !self.is_at_end && self.window.len() < WINDOW {
            self.is_at_end = !self.read()?;
            if self.is_at_end {
                self.spread();
            }
        }
        let Some(Reverse(OrderedLine(at, _, mut request))) = self.window.pop() else {
            return Ok(None);
        };
        if at < self.last {
            self.lines.late += 1;
        }
        self.last = self.last.max(at);
        request.at = self.last;
        Ok(Some(request))
    }

    /// Reads one line. Returns `false` at the end of the log.
    fn read(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        let read = (&mut self.log).take(MAX_LINE).read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(false);
        }
        self.lines.all += 1;
        let is_whole = self.buffer.ends_with(b"\n") || (read as u64) < MAX_LINE;
        if !is_whole {
            self.skip_line()?;
            self.bad("longer than 1MiB".into());
            return Ok(true);
        }
        let line = mem::take(&mut self.buffer);
        match std::str::from_utf8(&line).map(str::trim_end) {
            Ok("") => {}
            Ok(line) => match LoggedRequest::parse(line) {
                Ok(request) => self.keep(request),
                Err(LineError::NoRequest) => self.lines.no_request += 1,
                Err(LineError::Bad(reason)) => self.bad(reason),
            },
            Err(_) => self.bad("no UTF-8".into()),
        }
        self.buffer = line;
        Ok(true)
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            self.buffer.clear();
            let read = (&mut self.log).take(MAX_LINE).read_until(b'\n', &mut self.buffer)?;
            if read == 0 || self.buffer.ends_with(b"\n") {
                return Ok(());
            }
        }
    }

    fn bad(&mut self, reason: String) {
        self.lines.bad += 1;
        if self.lines.reasons.len() < LISTED {
            self.lines.reasons.push((self.lines.all, reason));
        }
    }

    fn keep(&mut self, request: LoggedRequest) {
        if request.format == LogFormat::Json {
            self.lines.json += 1;
            return self.window.push(Reverse(OrderedLine(request.at, self.lines.all, request)));
        }
        self.lines.combined += 1;
        let is_same = self.second.first().is_none_or(|first| first.at == request.at);
        if !is_same || self.second.len() >= WINDOW {
            self.spread();
        }
        self.second.push(request);
    }

    /// Spreads the requests of one second evenly over it.
    fn spread(&mut self) {
        let all = mem::take(&mut self.second);
        let count = all.len() as Micros;
        for (i, mut request) in all.into_iter().enumerate() {
            request.at += i as Micros * 1_000_000 / count;
            // The order within the second is that of the lines, whose numbers are not kept.
            self.window.push(Reverse(OrderedLine(request.at, i as u64, request)));
        }
    }
}

// === impl OrderedLine ===

impl Ord for OrderedLine {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl PartialOrd for OrderedLine {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OrderedLine {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for OrderedLine {}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(seconds: u64, wait_ms: u64) -> String {
        format!(
            "{{\"timestamp\":\"2026-11-23T10:{:02}:{:02}Z\",\"client\":\"::1\",\"method\":\"GET\",\"path\":\"/{seconds}\",\
             \"outcome\":\"waited\",\"wait_ms\":{wait_ms}}}\n",
            seconds / 60,
            seconds % 60
        )
    }

    fn paths(log: &str) -> (Vec<String>, LineCounts) {
        let mut reader = LogReader::new(log.as_bytes());
        let mut paths = Vec::new();
        while let Some(request) = reader.next().expect("readable") {
            paths.push(request.uri.to_string());
        }
        (paths, reader.lines)
    }

    #[test]
    fn a_request_that_waited_comes_before_those_that_were_logged_first() {
        let log = [line(5, 0), line(7, 0), line(9, 6000), "oops\n".into(), line(8, 0)].concat();
        let (paths, lines) = paths(&log);
        assert_eq!(paths, ["/9", "/5", "/7", "/8"]);
        assert_eq!((lines.all, lines.bad, lines.late), (5, 1, 0));
        assert_eq!(lines.reasons[0].0, 4);
    }

    #[test]
    fn requests_of_one_second_are_spread_over_it() {
        let line = "::1 - - [23/Nov/2026:11:00:02 +0100] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n";
        let log = line.repeat(4);
        let mut reader = LogReader::new(log.as_bytes());
        let mut next = || reader.next().expect("readable").map(|request| request.at % 1_000_000);
        assert_eq!(
            [next(), next(), next(), next()],
            [Some(0), Some(250_000), Some(500_000), Some(750_000)]
        );
        assert_eq!(next(), None);
    }

    #[test]
    fn a_line_that_is_too_long_is_one_bad_line() {
        let log = format!("{}\n{}", "x".repeat(3 << 20), line(5, 0));
        let (paths, lines) = paths(&log);
        assert_eq!((paths.len(), lines.all, lines.bad), (1, 2, 1));
    }
}
