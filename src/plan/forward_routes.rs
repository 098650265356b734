//! The routes of requests that come through the forward proxy: those of the upstreams that the URL of a request names.

use crate::{config::Config, path::Paths, route::Table, upstream::UrlOrigin};
use std::collections::HashMap;

/// The routes of requests by the origin that they name.
#[derive(Debug)]
pub(crate) struct ForwardRoutes {
    by_origin: HashMap<UrlOrigin, Vec<ForwardBase>>,
    /// A table for each set of upstreams that share an origin and a base path.
    tables: Vec<Table>,
}

/// The upstreams of an origin that have one base path.
#[derive(Debug)]
struct ForwardBase {
    base: String,
    table: usize,
}

/// The routes of one request, and the base path that its own path begins with.
pub(crate) struct ForwardMatch<'p> {
    pub(crate) table: &'p Table,
    pub(crate) base: &'p str,
}

// === impl ForwardRoutes ===

impl ForwardRoutes {
    pub(crate) fn new(config: &Config) -> Self {
        let mut places: HashMap<(UrlOrigin, &str), Vec<usize>> = HashMap::new();
        for (i, upstream) in config.upstreams.iter().enumerate() {
            for target in &upstream.targets {
                let Some(origin) = UrlOrigin::of_target(target) else { continue };
                let of_place = places.entry((origin, &target.base)).or_default();
                if of_place.last() != Some(&i) {
                    of_place.push(i);
                }
            }
        }
        let (mut sets, mut tables) = (HashMap::<Vec<usize>, usize>::new(), Vec::new());
        let mut by_origin: HashMap<UrlOrigin, Vec<ForwardBase>> = HashMap::new();
        for ((origin, base), upstreams) in places {
            let table = *sets.entry(upstreams).or_insert_with_key(|own| {
                let takes = |route: &crate::config::Route| own.contains(&route.upstream);
                tables.push(Table::among(&config.routes, config.paths, takes));
                tables.len() - 1
            });
            let base = ForwardBase { base: base.to_owned(), table };
            by_origin.entry(origin).or_default().push(base);
        }
        for bases in by_origin.values_mut() {
            bases.sort_by_key(|own| std::cmp::Reverse(own.base.len()));
        }
        Self { by_origin, tables }
    }

    /// Whether an upstream has this host and port, whatever its scheme is.
    pub(crate) fn has_host(&self, origin: &UrlOrigin) -> bool {
        [true, false].iter().any(|is_https| self.has(&origin.with_scheme(*is_https)))
    }

    /// Whether an upstream has this origin.
    pub(crate) fn has(&self, origin: &UrlOrigin) -> bool {
        self.by_origin.contains_key(origin)
    }

    /// Whether every spelling that an origin may read has the base path that is written. Otherwise a call of one upstream could be
    /// charged to the limiters of another, as `/%76%32/search` beside an upstream with the base path `/v2`.
    pub(crate) fn is_plain(&self, origin: &UrlOrigin, path: &str, paths: &Paths) -> bool {
        let Some(bases) = self.by_origin.get(origin) else { return true };
        if path == "*" || bases.iter().all(|own| own.base.is_empty()) {
            return true;
        }
        if !paths.is_legible(path) {
            return false;
        }
        let base_of = |form: &[u8], folds: bool| {
            bases.iter().position(|own| {
                let base = paths.normal_of(own.base.as_bytes(), folds);
                let rest = form.strip_prefix(if own.base.is_empty() { &b""[..] } else { &*base });
                rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
            })
        };
        let written = bases.iter().position(|own| own.begins(path));
        let mut readings = paths.readings(path);
        base_of(&paths.normal(path), paths.folds()) == written
            && readings.all(|(reading, folds)| {
                base_of(&paths.normal_of(&reading, folds), folds) == written
            })
    }

    /// The routes of a request for `path`, which begins with the longest base path; `None` if no upstream has it.
    pub(crate) fn find(&self, origin: &UrlOrigin, path: &str) -> Option<ForwardMatch<'_>> {
        let bases = self.by_origin.get(origin)?;
        let found = bases.iter().find(|own| path == "*" || own.begins(path))?;
        Some(ForwardMatch { table: &self.tables[found.table], base: &found.base })
    }
}

// === impl ForwardBase ===

impl ForwardBase {
    /// Whether the path begins with all segments of the base path.
    fn begins(&self, path: &str) -> bool {
        let rest = path.strip_prefix(&*self.base);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use rstest::rstest;
    use std::path::Path;

    const UPSTREAMS: &str = "
upstreams:
  first: https://api.example
  second: { url: https://api.example/v2 }
  third: { urls: [http://a.example:8080, http://b.example:8080] }
  twin: https://api.example
routes:
- { name: one, suffix: '*', host: api.example, upstream: first }
- { name: two, suffix: '*', upstream: second }
- { name: three, suffix: /x, upstream: third }
- { name: four, suffix: /twin, upstream: twin }
";

    #[rstest]
    #[case::whole_origin(true, "api.example", "/a", Some("one"))]
    #[case::base(true, "api.example", "/v2/a", Some("two"))]
    #[case::base_alone(true, "api.example", "/v2", Some("two"))]
    #[case::no_segment(true, "api.example", "/v2x", Some("one"))]
    #[case::another_upstream_of_the_origin(true, "api.example", "/twin", Some("four"))]
    #[case::one_of_several_urls(false, "b.example:8080", "/x", Some("three"))]
    #[case::without_a_route(false, "b.example:8080", "/y", None)]
    #[case::another_port(false, "b.example", "/x", None)]
    #[case::another_scheme(false, "api.example", "/a", None)]
    #[case::another_host(true, "evil.example", "/a", None)]
    fn a_request_gets_the_routes_of_its_upstream(
        #[case] is_https: bool,
        #[case] authority: &str,
        #[case] path: &str,
        #[case] expected: Option<&str>,
    ) {
        let config = Config::parse(UPSTREAMS, "test", Path::new("."), &|_| None).unwrap();
        let routes = ForwardRoutes::new(&config);
        let origin = UrlOrigin::of(is_https, authority).unwrap();
        let found = routes.find(&origin, path);
        let route = found.and_then(|found| {
            found.table.find(
                &Method::GET,
                Some(&*origin.host),
                path.strip_prefix(found.base).unwrap(),
            )
        });
        assert_eq!(route.map(|route| &*config.routes[route].name), expected);
    }

    #[rstest]
    #[case::written("/v2/search", true)]
    #[case::another("/search", true)]
    #[case::odd_behind_the_base("/v2/a%20b", true)]
    #[case::escaped("/%76%32/search", false)]
    #[case::doubled("//v2/search", false)]
    #[case::dot("/./v2/search", false)]
    #[case::into_it("/x/../v2/search", false)]
    #[case::into_it_escaped("/x/%2e%2e/v2/search", false)]
    #[case::out_of_it("/v2/../search", false)]
    #[case::out_of_it_escaped("/v2/%2e%2e/search", false)]
    #[case::escaped_slash("/v2%2fsearch", false)]
    #[case::capital("/V2/search", false)]
    #[case::parameter("/v2;x/search", false)]
    fn a_base_path_that_can_be_read_in_two_ways_is_found(
        #[case] path: &str,
        #[case] is_plain: bool,
    ) {
        let config = Config::parse(UPSTREAMS, "test", Path::new("."), &|_| None).unwrap();
        let routes = ForwardRoutes::new(&config);
        let origin = UrlOrigin::of(true, "api.example").unwrap();
        assert_eq!(routes.is_plain(&origin, path, &config.paths), is_plain);
    }
}
