//! Reads a single value by the kind of its key, which has its bounds or its words. Knows no key.

use super::{
    keys::{Choice, Kind},
    unit::{self, Bytes, Rate, Span},
};
use crate::{key::Template, suggest::suggest};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

/// A setting that one value of the file makes.
pub(super) trait Value: Sized {
    /// Reads the text of a value whose key is of this kind.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` is negative".
    fn read(text: &str, kind: &Kind) -> Result<Self, String>;
}

// === impl Value ===

impl Value for u64 {
    fn read(text: &str, kind: &Kind) -> Result<Self, String> {
        match *kind {
            Kind::Number { least, most } => whole(text, least, most),
            Kind::Size { least, most } => match unit::size(text)? {
                size if size < least => Err(format!("must be at least {}", Bytes::from(least))),
                size if size > most => Err(format!("must be at most {}", Bytes::from(most))),
                size => Ok(size),
            },
            _ => unit::whole(text),
        }
    }
}

impl Value for usize {
    fn read(text: &str, kind: &Kind) -> Result<Self, String> {
        narrow(text, kind)
    }
}

impl Value for u32 {
    fn read(text: &str, kind: &Kind) -> Result<Self, String> {
        narrow(text, kind)
    }
}

impl Value for i64 {
    fn read(text: &str, kind: &Kind) -> Result<Self, String> {
        narrow(text, kind)
    }
}

impl Value for Duration {
    fn read(text: &str, kind: &Kind) -> Result<Self, String> {
        let span = unit::duration(text)?;
        match *kind {
            Kind::Duration { least, .. } if span < least => {
                Err(format!("must be at least {}", Span(least)))
            }
            Kind::Duration { most, .. } if span > most => {
                Err(format!("must be at most {}", Span(most)))
            }
            _ => Ok(span),
        }
    }
}

impl Value for Rate {
    fn read(text: &str, _: &Kind) -> Result<Self, String> {
        unit::rate(text)
    }
}

impl Value for Template {
    fn read(text: &str, _: &Kind) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl Value for SocketAddr {
    fn read(text: &str, _: &Kind) -> Result<Self, String> {
        address(text)
    }
}

impl<T: Choice> Value for T {
    fn read(text: &str, _: &Kind) -> Result<Self, String> {
        one_of(text, Self::CHOICES.iter().copied())
    }
}

/// One of the words of its key.
impl Value for &'static str {
    fn read(text: &str, kind: &Kind) -> Result<Self, String> {
        let Kind::Word(words) = kind else { return Err("is no word".into()) };
        one_of(text, words().into_iter().map(|word| (word, word)))
    }
}

fn narrow<T: TryFrom<u64>>(text: &str, kind: &Kind) -> Result<T, String> {
    T::try_from(u64::read(text, kind)?).map_err(|_| "is too large".into())
}

fn one_of<'c, T>(
    text: &str,
    mut choices: impl Iterator<Item = (&'c str, T)> + Clone,
) -> Result<T, String> {
    // Tools that read YAML 1.1 take `on` and `off` for truth values and write those.
    let text = match text {
        "true" => "on",
        "false" => "off",
        text => text,
    };
    let names = choices.clone().map(|(name, _)| name);
    let found = choices.find(|(name, _)| *name == text);
    found.map(|(_, choice)| choice).ok_or_else(|| {
        let names: Vec<_> = names.collect();
        let meant = match text.to_ascii_lowercase().as_str() {
            "yes" | "enabled" if names.contains(&"on") => "on",
            "no" | "disabled" if names.contains(&"off") => "off",
            _ => text,
        };
        let hint = suggest(meant, names.iter().copied());
        let hint = hint.map_or(String::new(), |hint| format!("; {hint}"));
        format!("is not one of {}{hint}", names.join(", "))
    })
}

fn whole(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = unit::whole(text).map_err(|reason| {
        let is_below = text.starts_with('-') && least > 0;
        if is_below { format!("{reason}; it must be at least {least}") } else { reason }
    })?;
    match number {
        number if number < least => Err(format!("must be at least {least}")),
        number if number > most => Err(format!("must be at most {most}")),
        number => Ok(number),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let port = port.parse::<u16>().ok();
        let all = |port| {
            format!(
                "names no IP; write `0.0.0.0:{port}` for all addresses of this machine, `127.0.0.1:{port}` for itself \
                 alone"
            )
        };
        match (host, port) {
            _ if text.parse::<Ipv6Addr>().is_ok() => {
                format!("names no port; write it as in `\"[{text}]:8080\"`")
            }
            ("" | "*", Some(port)) => all(port),
            ("localhost", Some(port)) => {
                format!("is no address, which has an IP in place of a name; write `127.0.0.1:{port}`")
            }
            ("::" | ":", Some(port)) => {
                format!("is no address; write IPv6 in brackets, and in quotes for YAML: `\"[::]:{port}\"`")
            }
            (_, None) if is_above_65535(text) => "has a port above 65535".into(),
            _ => match text.parse::<Ipv4Addr>() {
                Ok(ip) => format!("names no port; write it as in `{ip}:8080`"),
                Err(_) => "is no address; write IP:PORT, as in `127.0.0.1:8080`, or `\"[::]:8080\"` with its quotes"
                    .into(),
            },
        }
    })
}

fn is_above_65535(address: &str) -> bool {
    let port = address.rsplit_once(':').map_or(address, |(_, port)| port);
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_err()
}
