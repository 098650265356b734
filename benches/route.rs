//! Finding the route of a request among 10, 1,000 and 10,000 routes: the cost must not grow with their number.

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
        let table = table(routes);
        let mut bench = |name: &str, found: bool, path: fn(usize) -> String| {
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
        bench("hit", true, |i| format!("/v2/customers{}", suffix(i)));
        bench("miss", false, |i| format!("/v2/customers/unknown{i}"));
        bench("normalised", true, |i| format!("/v2//%63ustomers/x/..{};a=b", suffix(i)));
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

fn table(routes: usize) -> Table {
    let mut text = "upstream: http://127.0.0.1\nroutes:\n- { suffix: .json }\n".to_owned();
    for i in 0..routes {
        writeln!(text, "- {{ suffix: {} }}", suffix(i)).expect("a String takes everything");
    }
    let config = Config::parse(&text, "bench", Path::new("."), &|_| None).expect("a configuration");
    Table::new(&config.routes, config.paths)
}
