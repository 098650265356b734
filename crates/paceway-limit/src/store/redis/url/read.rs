//! The parts of a URL: login, servers, options and percent-encoding. Quotes nothing of them in its errors.

use super::{Endpoint, Kind, Login};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// The greatest number of addresses in one URL. Any of them leads to the other servers.
const MOST_SERVERS: usize = 100;

/// An option after the `?`, such as `database=2`.
pub(super) struct UrlOption<'u> {
    pub(super) name: &'u str,
    pub(super) value: String,
}

/// Splits `user:password@hosts` into the login and the hosts; without an `@` there is no login.
pub(super) fn read_login(authority: &str) -> Result<(Login, &str), String> {
    let Some((login, rest)) = authority.rsplit_once('@') else {
        return Ok((Login::default(), authority));
    };
    let Some((user, password)) = login.split_once(':') else {
        return Err("before the `@`, write `user:password` or `:password`".into());
    };
    let user = Some(decode(user)?).filter(|user| !user.is_empty());
    // A user may have an empty password. Without a user, an empty password means that there is no login.
    let password = Some(decode(password)?).filter(|word| user.is_some() || !word.is_empty());
    Ok((Login { user, password }, rest))
}

/// Reads the part before `://`; each kind has one with an `s` after `redis`, for TLS.
pub(super) fn read_kind(scheme: &str) -> Result<Kind, String> {
    match scheme {
        "redis" | "rediss" => Ok(Kind::One),
        "redis-sentinel" | "rediss-sentinel" => Ok(Kind::Sentinel),
        "redis-cluster" | "rediss-cluster" => Ok(Kind::Cluster),
        _ => Err(format!(
            "`{scheme}://` is not a scheme for a store; use `redis://`, `rediss://`, `redis-sentinel://`, \
             `redis-cluster://` or `unix:`"
        )),
    }
}

/// Reads the login at the Sentinels, which is apart from that at the master.
pub(super) fn read_sentinel_login(options: Vec<UrlOption<'_>>) -> Result<Login, String> {
    let mut login = Login::default();
    for UrlOption { name, value } in options {
        match name {
            "sentinel_user" => login.user = Some(value),
            "sentinel_password" => login.password = Some(value),
            _ => return Err(unknown_option(name)),
        }
    }
    if login.user.is_some() && login.password.is_none() {
        return Err("it names a `sentinel_user` and no `sentinel_password`".into());
    }
    Ok(login)
}

pub(super) fn read_endpoints(hosts: &str, kind: Kind) -> Result<Vec<Endpoint>, String> {
    let default = if kind == Kind::Sentinel { SENTINEL_PORT } else { PORT };
    let endpoints = hosts.split(',').map(|host| read_endpoint(host, default));
    let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
    if endpoints.len() > MOST_SERVERS {
        return Err(format!("it names more than {MOST_SERVERS} servers"));
    }
    Ok(endpoints)
}

/// The server of a URL that names one alone.
pub(super) fn the_only(mut endpoints: Vec<Endpoint>) -> Result<Endpoint, String> {
    if endpoints.len() > 1 {
        let why = "it names several servers; `redis-cluster://` and `redis-sentinel://` do";
        return Err(why.into());
    }
    Ok(endpoints.remove(0))
}

fn read_endpoint(text: &str, default: u16) -> Result<Endpoint, String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a `[` has no `]`")?;
            (host, port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        None => {
            let (host, port) = text.split_once(':').unwrap_or((text, ""));
            (host, Some(port))
        }
    };
    if host.is_empty() {
        return Err("it names no host, as in `redis://host:6379`".into());
    }
    let port = match port {
        Some("") => default,
        port => port.and_then(|port| port.parse().ok()).filter(|port| *port > 0).ok_or(
            "after the `:` of a host, write its port, 1 to 65535. Write an IPv6 address in `[` and `]`; in a password, \
             write `%2F` for `/`, `%3F` for `?` and `%40` for `@`",
        )?,
    };
    Ok(Endpoint::tcp(host, port))
}

pub(super) fn read_database(text: &str) -> Result<Option<u8>, String> {
    let number = (!text.is_empty()).then(|| text.parse()).transpose();
    number.map_err(|_| "the number of the database is not one from 0 to 255".into())
}

pub(super) fn read_options(text: &str) -> Result<Vec<UrlOption<'_>>, String> {
    let options = text.split('&').filter(|option| !option.is_empty());
    let read = |option| -> Result<_, String> {
        let (name, value) = str::split_once(option, '=').ok_or(
            "after the `?`, write options as in `NAME=VALUE&NAME=VALUE`; write `%3F` for a `?` in a password",
        )?;
        Ok(UrlOption { name, value: decode(value)? })
    };
    options.map(read).collect()
}

/// The error for a text without a scheme. It quotes a host with a port, and nothing that may hold a password.
pub(super) fn no_scheme(text: &str) -> String {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    let is_address = port.parse::<u16>().is_ok() && host.chars().all(is_host);
    let example = if is_address && !host.is_empty() { text } else { "host:6379" };
    format!("write `memory`, or a URL such as `redis://{example}`")
}

/// The error for an unknown option. It quotes the name only if that looks like one: it may be part of a password.
pub(super) fn unknown_option(name: &str) -> String {
    if name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') && name.len() < 32 {
        format!("it has no option `{name}`")
    } else {
        "it has no such option after the `?`; write `%3F` for a `?` in a password".into()
    }
}

/// Replaces percent-encoded bytes: `p%40ss` becomes `p@ss`. The result must be UTF-8.
pub(super) fn decode(text: &str) -> Result<String, String> {
    let broken = || {
        "a `%` stands for itself as `%25`, and otherwise before two hexadecimal digits".to_owned()
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, next)) = rest.split_first() {
        rest = next;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, next) = rest.split_at_checked(2).ok_or_else(broken)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(broken());
        }
        let digits = str::from_utf8(digits).map_err(|_| broken())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| broken())?);
        rest = next;
    }
    String::from_utf8(bytes).map_err(|_| "what its `%` stand for is no UTF-8".to_owned())
}
