//! The upstream of a request that came through the forward proxy: that of the URL which it names. No other request comes here.

use super::Exchange;
use crate::{
    answer::Failure,
    plan::ForwardRoutes,
    route::Table,
    upstream::{HostPools, Pool, UrlOrigin},
};
use http::{HeaderValue, Request, Uri, uri::PathAndQuery};
use std::sync::Arc;

/// A connection to the forward proxy, as its requests see it.
pub struct ForwardConnection {
    /// The origin to which the client has opened a tunnel; `None` if each request names its own.
    pub tunnel: Option<UrlOrigin>,
    /// The upstreams of any host; `None` if there are those of the configuration alone.
    pub pools: Option<Arc<HostPools>>,
}

/// The routes and the connections that the URL of a request decides.
pub(super) struct Destination<'a> {
    /// The routes among which it finds its own.
    pub(super) table: &'a Table,
    /// The connections to its origin, if no upstream of the configuration has them.
    pub(super) pool: Option<Pool>,
    /// The path and query without the base path, as routes and keys know them; `None` if there is no base path. The request is
    /// sent as it was written: `/v2` must not become `/v2/`.
    pub(super) rest: Option<Box<Uri>>,
}

// === impl ForwardConnection ===

impl ForwardConnection {
    /// Whether it is one of a command, which calls its vendors as if there were no gateway.
    pub(super) fn is_for_command(&self) -> bool {
        self.pools.is_some()
    }
}

// === impl Exchange ===

impl<'a> Exchange<'a> {
    /// Finds the upstream that a request with the field `host` names.
    ///
    /// # Errors
    ///
    /// [`Failure::Forbidden`] if it names another origin than its tunnel, or one of no upstream;
    /// [`Failure::BadRequest`] if it names none.
    pub(super) fn destination(
        &self,
        connection: &ForwardConnection,
        host: Option<&HeaderValue>,
    ) -> Result<Destination<'a>, Failure> {
        let request = &self.arrival.request;
        let origin = named_origin(connection, request, host)?;
        if origin.is_https && connection.tunnel.is_none() && !self.client.ip.is_loopback() {
            let why = format!(
                "a request for {origin} comes through CONNECT, so that it is not read on the way"
            );
            return Err(Failure::BadRequest(why.into()));
        }
        let plan = &*self.proxy.0.plan;
        if let Some(pools) = &connection.pools {
            let pool = pools.pool(&origin, self.is_grpc && origin.is_https);
            let pool =
                pool.map_err(|error| Failure::Forbidden(format!("{origin}: {error}").into()))?;
            return Ok(Destination { table: &plan.table, pool: Some(pool), rest: None });
        }
        let routes = plan.forward.as_deref();
        let found = routes.and_then(|routes| routes.find(&origin, request.uri().path()));
        let Some(found) = found else {
            let other = origin.with_scheme(!origin.is_https);
            let why = match routes {
                Some(routes) if routes.has(&other) => {
                    format!("the upstream there is {other}, not {origin}")
                }
                Some(routes) if routes.has(&origin) => {
                    format!("no upstream at {origin} has the base path of this request")
                }
                _ => format!("no upstream of this gateway is {origin}"),
            };
            return Err(Failure::Forbidden(why.into()));
        };
        let is_plain = |routes: &ForwardRoutes| {
            routes.is_plain(&origin, request.uri().path(), &plan.config.paths)
        };
        if !routes.is_none_or(is_plain) {
            let why = "the path can be read as one of another upstream; write its base path as the configuration has it";
            return Err(Failure::BadRequest(why.into()));
        }
        let has_base = !found.base.is_empty() && request.uri().path() != "*";
        let rest = has_base.then(|| rest_after(found.base, request.uri())).transpose()?;
        Ok(Destination { table: found.table, pool: None, rest: rest.map(Box::new) })
    }
}

/// The origin that a request is for.
fn named_origin<B>(
    connection: &ForwardConnection,
    request: &Request<B>,
    host: Option<&HeaderValue>,
) -> Result<UrlOrigin, Failure> {
    let uri = request.uri();
    let unread =
        || Failure::Malformed("the host of the request is none that a URL can have".into());
    let named = match (uri.authority(), &connection.tunnel) {
        (Some(authority), _) => {
            let is_https =
                uri.scheme_str().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
            UrlOrigin::of(is_https, authority.as_str()).ok_or_else(unread)?
        }
        (None, Some(tunnel)) => match host {
            Some(host) => {
                let host = host.to_str().ok();
                host.and_then(|host| UrlOrigin::of(tunnel.is_https, host)).ok_or_else(unread)?
            }
            // Keys and routes could not tell it from other hosts.
            None => {
                let why = "a request in a tunnel names its host, also in HTTP/1.0";
                return Err(Failure::BadRequest(why.into()));
            }
        },
        (None, None) => {
            let why = "this is a forward proxy: a request names its whole URL, as in `GET http://host/path`, or comes through `CONNECT host:443`";
            return Err(Failure::BadRequest(why.into()));
        }
    };
    match &connection.tunnel {
        Some(tunnel) if *tunnel != named => {
            let why = format!("this connection is for {tunnel}, and the request is for {named}");
            Err(Failure::Forbidden(why.into()))
        }
        _ => Ok(named),
    }
}

/// The path and query of a request after the base path.
fn rest_after(base: &str, uri: &Uri) -> Result<Uri, Failure> {
    let all = uri.path_and_query().map_or("", PathAndQuery::as_str);
    let rest = all.strip_prefix(base).unwrap_or(all);
    let slash = if rest.starts_with('/') { "" } else { "/" };
    let rest = PathAndQuery::try_from([slash, rest].concat());
    rest.map(Uri::from).map_err(|_| Failure::BadRequest("the path is too long".into()))
}
