//! Rates of keys from a file and from a real PostgreSQL or MariaDB: rows that change, rows that are invalid, and a source that
//! is away.

use crate::support::{DatabaseServer, Gateway, ServerKind, Upstream, eventually, paceway};
use rstest::rstest;
use serde_json::Value;
use std::{fs, path::Path};

fn yaml(upstream: &Upstream, from: &str) -> String {
    format!(
        "upstream: {}\nadmin: 127.0.0.1:0\n\
         limiters: {{ shop: {{ algorithm: sliding_window, rate: 2/h, key: '{{header.x-shop}}', rates: {{ own: 3/h }}, rates_from: {from} }} }}\n\
         routes: [{{ suffix: '*', limiters: [shop] }}]\n",
        upstream.url()
    )
}

fn of_file(file: &Path) -> String {
    format!("{{ file: '{}', every: 100ms }}", file.display())
}

async fn ask(gateway: &Gateway, shop: &str) -> u16 {
    gateway.ask("/", &[("x-shop", shop)]).await.answer().await.expect("an answer").status
}

async fn count_passes(gateway: &Gateway, shop: &str) -> usize {
    let mut count = 0;
    for _ in 0..10 {
        count += usize::from(ask(gateway, shop).await == 200);
    }
    count
}

async fn rate(gateway: &Gateway, shop: &str) -> Value {
    gateway.page(&format!("/limiters/shop/keys/{shop}")).await.json()["rate"].clone()
}

async fn until_rate(gateway: &Gateway, shop: &str, expected: &str) {
    eventually(expected, async || (rate(gateway, shop).await == expected).then_some(())).await;
}

async fn until(gateway: &Gateway, what: &str, is: impl Fn(&Value) -> bool) {
    eventually(what, async || {
        let ready = gateway.page("/readyz").await.json();
        is(&ready["rates_from"]["shop"]).then_some(())
    })
    .await;
}

/// The lines of the log with a text.
fn lines(gateway: &Gateway, part: &str) -> usize {
    gateway.events().iter().filter(|event| event.to_string().contains(part)).count()
}

#[rstest]
#[case::postgres(ServerKind::Postgres, "select shop as key, rate from shops")]
#[case::mariadb(ServerKind::MariaDb, "select shop as `key`, rate from shops")]
#[tokio::test(flavor = "multi_thread")]
async fn rows_become_rates_of_keys(#[case] kind: ServerKind, #[case] query: &str) {
    let mut database = DatabaseServer::start(kind).await;
    database
        .execute(
            "create table shops (shop varchar(64) primary key, rate varchar(64));
             insert into shops values ('acme', '5/h'), ('none', null), ('plus-*', '4/h')",
        )
        .await;
    let upstream = Upstream::ok().await;
    let from = format!("{{ url: '{}', query: '{query}', every: 100ms }}", database.url());
    let gateway = Gateway::start(&yaml(&upstream, &from)).await;
    // The rows of the start count from the first request on.
    for (shop, count) in [("acme", 5), ("none", 2), ("plus-1", 4), ("own", 3), ("other", 2)] {
        assert_eq!(count_passes(&gateway, shop).await, count, "{shop}");
    }
    until(&gateway, "two rows", |status| status["up"] == true && status["rows"] == 2).await;

    // A key keeps what it has used.
    database.execute("update shops set rate = '7/h' where shop = 'acme'").await;
    until_rate(&gateway, "acme", "7/h").await;
    assert_eq!(count_passes(&gateway, "acme").await, 2);

    database.execute("update shops set rate = '9/fortnight' where shop = 'acme'").await;
    until(&gateway, "an invalid row", |status| status["invalid"] == 1).await;
    assert_eq!(rate(&gateway, "acme").await, "7/h", "its last valid rate stays");
    let loaded = gateway.page("/readyz").await.json()["rates_from"]["shop"]["loaded"].clone();
    until(&gateway, "a further query", |status| status["loaded"] != loaded).await;
    assert_eq!(lines(&gateway, "key `acme`: `9/fortnight` has the unknown unit"), 1, "once");
    let labels = [("limiter", "shop")];
    assert_eq!(gateway.metric("paceway_rates_from_invalid_rows", &labels).await, 1.0);

    database.kill();
    until(&gateway, "the database is away", |status| status["up"] == false).await;
    assert_eq!(gateway.page("/readyz").await.status, 200);
    assert_eq!(gateway.metric("paceway_rates_from_up", &labels).await, 0.0);
    assert_eq!(rate(&gateway, "acme").await, "7/h", "everything stays as it was");
    database.restart().await;
    until(&gateway, "the database is back", |status| status["up"] == true).await;
    database.execute("delete from shops where shop = 'acme'").await;
    until_rate(&gateway, "acme", "2/h").await;
    until(&gateway, "a row is gone", |status| status["rows"] == 1 && status["invalid"] == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_read_again_when_it_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("shops.yaml");
    fs::write(&file, "acme: 5/h\nown: 6/h\n").expect("a file");
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, &of_file(&file))).await;
    for (shop, count) in [("acme", 5), ("own", 6), ("other", 2)] {
        assert_eq!(count_passes(&gateway, shop).await, count, "{shop}");
    }
    fs::write(&file, "{ \"acme\": \"8/h\", \"other\": \"0/h\" }").expect("a file");
    until_rate(&gateway, "acme", "8/h").await;
    assert_eq!(count_passes(&gateway, "acme").await, 3, "its used permits count");
    until(&gateway, "a mistake", |status| status["invalid"] == 1).await;
    assert_eq!(
        (rate(&gateway, "other").await, rate(&gateway, "own").await),
        ("2/h".into(), "3/h".into())
    );

    // A file that is none any more, or that is gone, changes nothing.
    fs::write(&file, "acme: [").expect("a file");
    until(&gateway, "no YAML", |status| status["error"].to_string().contains("line 1")).await;
    fs::remove_file(&file).expect("gone");
    until(&gateway, "no file", |status| status["error"].to_string().contains("cannot be read"))
        .await;
    assert_eq!(rate(&gateway, "acme").await, "8/h");
    fs::write(&file, "acme: 9/h\n").expect("a file");
    until_rate(&gateway, "acme", "9/h").await;

    // A reload takes the source away, and brings it back.
    let with = yaml(&upstream, &of_file(&file));
    gateway.rewrite(&with.replace(&format!(", rates_from: {}", of_file(&file)), ""));
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(rate(&gateway, "acme").await, "2/h");
    until(&gateway, "no source", Value::is_null).await;
    gateway.rewrite(&with);
    assert_eq!(gateway.reload().await.status, 200);
    until_rate(&gateway, "acme", "9/h").await;
}

/// An operator's rate counts before that of a row, and the row counts again at its end.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_overrides_a_row() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("shops.yaml");
    fs::write(&file, "acme: 5/h\nb: 6/h\n").expect("a file");
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, &of_file(&file))).await;
    let url = format!("http://{}", gateway.admin);
    let run = |args: &[&str]| {
        let done = paceway(&[args, &["--admin", &*url]].concat());
        assert!(done.status.success(), "{done:?}");
    };
    run(&["set", "shop", "rate=9/h", "--key", "acme", "--for", "1h", "--reason", "sale"]);
    until_rate(&gateway, "acme", "9/h").await;
    fs::write(&file, "acme: 7/h\nb: 8/h\n").expect("a file");
    until_rate(&gateway, "b", "8/h").await;
    assert_eq!(rate(&gateway, "acme").await, "9/h");
    run(&["resume", "shop", "--key", "acme"]);
    until_rate(&gateway, "acme", "7/h").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_read_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("shops.yaml");
    fs::write(&file, "acme: 5/h\nb: 0/h\n").expect("a file");
    let upstream = Upstream::ok().await;
    let config = directory.path().join("paceway.yaml");
    // Its path starts at the configuration.
    fs::write(&config, yaml(&upstream, "{ file: shops.yaml }")).expect("a file");
    let config = config.display().to_string();
    let run = |args: &[&str]| {
        let done = paceway(args);
        assert!(done.status.success(), "{done:?}");
        format!(
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        )
    };
    let explained = run(&["explain", &config, "GET", "/", "-H", "x-shop: acme"]);
    assert!(explained.contains("sliding_window 5/h"), "{explained}");
    let checked = run(&["check", &config]);
    assert!(
        checked.contains("rates_from of shop: line 2, key `b`: `0/h` allows nothing"),
        "{checked}"
    );
    fs::remove_file(&file).expect("gone");
    let checked = run(&["check", &config]);
    assert!(checked.contains("cannot be read"), "{checked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_keys_are_read_and_changed_soon() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("shops.yaml");
    let text = |first: usize| -> String {
        (0..100_000).map(|i| format!("shop-{i}: {}/h\n", first + i)).collect()
    };
    fs::write(&file, text(5)).expect("a file");
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, &of_file(&file))).await;
    assert_eq!(rate(&gateway, "shop-99999").await, "100004/h");
    fs::write(&file, text(6)).expect("a file");
    until_rate(&gateway, "shop-99999", "100005/h").await;
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(gateway.page("/limiters/shop").await.json()["rates"], 100_001);
}
