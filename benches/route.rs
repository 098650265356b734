//! Finding the route of a request among 10, 1,000 and 10,000 routes, by suffixes and by whole paths: the cost must not grow
//! with their number.

use criterion::{BenchmarkId, Criterion};
use http::Method;
use paceway::{config::Config, route::Table};
use std::{fmt::Write, hint::black_box, path::Path};

/// Requests of a case, spread over the routes: the same path again and again would measure the caches.
const PATHS: usize = 1_000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("route");
    for routes in [10, 1_000, 10_000] {
        let suffixes = table(routes, |i| format!("suffix: {}", suffix(i)));
        let templates =
            table(routes, |i| format!("path: '{}'", template(i, ["{shop}", "{order}"])));
        let mut bench = |name: &str, table: &Table, found: bool, path: fn(usize) -> String| {
            let paths: Vec<String> = (0..PATHS).map(|i| path(i * routes / PATHS)).collect();
            let mut paths = paths.iter().cycle();
            group.bench_function(BenchmarkId::new(name, routes), |bencher| {
                bencher.iter(|| {
                    let path = paths.next().map_or("", String::as_str);
                    let route = table.find(&Method::GET, Some("api.internal"), black_box(path));
                    assert_eq!(route.is_some(), found);
                });
            });
        };
        bench("hit", &suffixes, true, |i| format!("/v2/customers{}", suffix(i)));
        bench("miss", &suffixes, false, |i| format!("/v2/customers/unknown{i}"));
        let odd: fn(usize) -> String = |i| format!("/v2//%63ustomers/x/..{};a=b", suffix(i));
        bench("normalised", &suffixes, true, odd);
        bench("path hit", &templates, true, |i| template(i, ["shop7", "order77"]));
        bench("path miss", &templates, false, |i| format!("/v2/shops/unknown{i}/orders"));
    }
    group.finish();
    criterion.final_summary();
}

/// Suffixes as configurations have them: some differ in their last segment, others in the one before it.
fn suffix(i: usize) -> String {
    match i % 2 {
        0 => format!("/shops/orders{i}"),
        _ => format!("/shop{i}/orders"),
    }
}

/// Whole paths as APIs have them: some differ in a segment before the parameters, others in one after them.
fn template(i: usize, [shop, order]: [&str; 2]) -> String {
    match i % 2 {
        0 => format!("/v2/shops/{shop}/orders/{order}/step{i}"),
        _ => format!("/v2/api{i}/{shop}/orders/{order}"),
    }
}

fn table(routes: usize, rule: impl Fn(usize) -> String) -> Table {
    let mut text = "upstream: http://127.0.0.1\nroutes:\n- { suffix: .json }\n".to_owned();
    for i in 0..routes {
        writeln!(text, "- {{ {} }}", rule(i)).expect("a String takes everything");
    }
    let config = Config::parse(&text, "bench", Path::new("."), &|_| None).expect("a configuration");
    Table::new(&config.routes, config.paths)
}
