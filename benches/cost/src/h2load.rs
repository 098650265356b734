//! h2load, the load of HTTP/2 connections with several streams each, and its output.

use crate::{
    machine::Cores,
    process::Process,
    stage::{Server, path},
    wrk::Load,
};
use std::{io, path::Path, time::Duration};

/// One load of HTTP/2: its connections, the streams of each, and what they ask for.
#[derive(Debug, Clone, Copy)]
pub struct H2Load<'a> {
    pub cores: &'a Cores,
    pub dir: &'a Path,
    pub seconds: u64,
    pub connections: u32,
    pub streams: u32,
    pub path: &'a str,
    /// The file with the message of a gRPC call, which is sent in place of a GET.
    pub message: Option<&'a Path>,
    /// The bytes that the body of every answer must have. A failed gRPC call has the status of a good one, and no body.
    pub body: u64,
}

// === impl H2Load ===

impl H2Load<'_> {
    pub fn run(&self, server: &Server) -> io::Result<Load> {
        let mut command: Vec<String> = ["h2load", "-c", &self.connections.to_string()]
            .into_iter()
            .chain(["-m", &self.streams.to_string(), "-D", &self.seconds.to_string()])
            .map(String::from)
            .collect();
        if let Some(message) = self.message {
            command.extend(["-d".into(), path(message)]);
            for field in ["content-type: application/grpc", "te: trailers"] {
                command.extend(["-H".into(), field.into()]);
            }
        }
        command.push(server.url(self.path));
        let within = Duration::from_secs(self.seconds + 60);
        let text = Process::run(self.cores, self.dir, &command, within)?;
        let load = read(&text, self.body);
        load.ok_or_else(|| io::Error::other(format!("{}: {text}", command.join(" "))))
    }
}

/// Reads the output of h2load; returns `None` if an answer was no success, or had another body than `body` bytes.
fn read(text: &str, body: u64) -> Option<Load> {
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let before = |line: &str, word: &str| -> Option<f64> {
        let number = line.split(word).next()?.rsplit([' ', '(']).next()?;
        number.parse().ok()
    };
    let per_second = before(line("finished in ")?, " req/s")?;
    let requests = before(line("requests: ")?, " done")?;
    let good = before(line("status codes: ")?, " 2xx")?;
    let bytes = before(line("traffic: ")?, ") data")?;
    // Streams that the end of the load interrupted may have brought a status or a part of a body already.
    let expected = good >= requests && bytes >= requests * body as f64;
    (requests > 0.0 && expected).then_some(Load { requests, per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
finished in 2.00s, 29081.50 req/s, 5.05MB/s
requests: 58163 total, 58291 started, 58163 done, 58163 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 58163 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 10.09MB (10582560) total, 1.99MB (2089786) headers (space savings 76.36%), 7.10MB (7444864) data
";

    #[test]
    fn only_whole_good_answers_count() {
        let load = read(OUTPUT, 128).expect("128 bytes each");
        assert_eq!((load.requests, load.per_second), (58_163.0, 29_081.5));
        assert!(read(OUTPUT, 129).is_none(), "a body is shorter");
        assert!(read(&OUTPUT.replace("58163 2xx", "58162 2xx"), 128).is_none(), "one failed");
    }
}
