//! Limiters from a real PostgreSQL and a real MariaDB: rows that change, rows that are invalid, and a database that is away.

use crate::support::{DatabaseServer, Gateway, ServerKind, Upstream, eventually, free_port};
use rstest::rstest;
use serde_json::Value;

fn yaml(upstream: &Upstream, url: &str) -> String {
    format!(
        "upstream: {}\nlimiters: {{ search: 1000/s }}\n\
         limits_from: {{ url: '{url}', query: 'select name, rate, burst, enabled from limits', every: 100ms }}\n\
         routes: [{{ suffix: '*', limiters: [{{ limiter: search, cost: 3 }}] }}]\n",
        upstream.url()
    )
}

async fn status(gateway: &Gateway) -> Value {
    let ready: Value = serde_json::from_slice(&gateway.page("/readyz").await.body).expect("JSON");
    ready["limits_from"].clone()
}

async fn until(gateway: &Gateway, what: &str, is: impl Fn(&Value) -> bool) {
    eventually(what, async || is(&status(gateway).await).then_some(())).await;
}

/// The lines of the log about a limiter or a mistake.
fn lines(gateway: &Gateway, part: &str) -> usize {
    gateway.events().iter().filter(|event| event.to_string().contains(part)).count()
}

#[rstest]
#[case::postgres(ServerKind::Postgres)]
#[case::mariadb(ServerKind::MariaDb)]
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_limiters(#[case] kind: ServerKind) {
    let mut database = DatabaseServer::start(kind).await;
    database
        .execute(
            "create table limits (name varchar(64) primary key, rate varchar(64), burst int, enabled boolean);
             insert into limits values ('search', '4/hour', 4, true)",
        )
        .await;
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, &database.url())).await;
    // The rows of the start count from the first request on.
    assert_eq!((gateway.get("/").await.status, gateway.get("/").await.status), (200, 429));

    database.execute("update limits set rate = '1000/s', burst = 1000").await;
    gateway.until_answered("/", 200).await;

    database.execute("update limits set rate = '5/fortnight'").await;
    until(&gateway, "an invalid row", |status| status["invalid"] == 1).await;
    assert_eq!(gateway.get("/").await.status, 200, "its last valid value stays");
    // Its burst is below the cost of a route: the mistake is not in the row alone.
    database.execute("update limits set rate = '1/s', burst = 1").await;
    eventually("the reason", async || {
        (lines(&gateway, "routes[0].limiters[0].cost") > 0).then_some(())
    })
    .await;
    assert_eq!(gateway.get("/").await.status, 200, "its last valid value stays");
    let loaded = status(&gateway).await["loaded"].clone();
    until(&gateway, "a further query", |status| status["loaded"] != loaded).await;
    let reported = lines(&gateway, "limits_from row \\\"search\\\", column rate");
    assert_eq!(reported, 1, "once for each change: {:?}", gateway.events());

    database.execute("insert into limits values ('new', '[5/s, 100/min]', null, true)").await;
    until(&gateway, "two rows", |status| status["rows"] == 2).await;
    assert_eq!(gateway.limiter("new").await["mode"], "enforce");
    database.execute("update limits set rate = '3/hour', burst = 3, enabled = false").await;
    eventually("it is off", async || {
        (gateway.limiter("search").await["mode"] == "off").then_some(())
    })
    .await;

    database.kill();
    until(&gateway, "the database is away", |status| status["up"] == false).await;
    assert_eq!(gateway.metric("paceway_limits_from_up", &[]).await, 0.0);
    assert!(gateway.metric("paceway_limits_from_errors_total", &[]).await >= 1.0);
    assert_eq!(gateway.limiter("search").await["mode"], "off", "everything stays as it was");
    database.restart().await;
    until(&gateway, "the database is back", |status| status["up"] == true).await;
    database.execute("delete from limits").await;
    until(&gateway, "no rows", |status| status["rows"] == 0).await;
    assert_eq!(gateway.limiter("search").await["mode"], "enforce", "the file's own again");
}

/// A gateway that cannot reach the database at its start has the limiters of its file, and shows no password.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_the_file_counts() {
    let upstream = Upstream::ok().await;
    let url = format!("postgres://paceway:hunter2@127.0.0.1:{}/limits", free_port());
    let gateway = Gateway::start(&yaml(&upstream, &url)).await;
    assert_eq!(gateway.get("/").await.status, 200);
    let ready = gateway.page("/readyz").await;
    assert_eq!(ready.status, 200);
    let status = status(&gateway).await;
    assert_eq!(status["up"], false);
    assert!(status["error"].is_string(), "{status}");
    assert_eq!(gateway.limiter("search").await["mode"], "enforce");
    assert!(lines(&gateway, "limits_from: the database gives no limits") > 0);
    assert_eq!(lines(&gateway, "hunter2"), 0);
    assert!(!ready.text().contains("hunter2"));
}
