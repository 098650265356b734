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
async fn rows_become_limiters(#[case] kind: ServerKind) {
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
async fn without_the_database_the_limiters_of_the_file_count() {
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

fn only_a_row(upstream: &Upstream, url: &str) -> String {
    format!(
        "upstream: {}\nlimiters: {{ known: 1000/s }}\n\
         limits_from: {{ url: '{url}', query: 'select name, rate from limits', every: 100ms }}\n\
         routes:\n- {{ suffix: /row, limiters: [row] }}\n- {{ suffix: '*', limiters: [known] }}\n",
        upstream.url()
    )
}

const TABLE: &str = "create table limits (name varchar(64) primary key, rate varchar(64));";

/// A route names a limiter that only the database has: it keeps its rule when the row is invalid or deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_route_names_a_row() {
    let database = DatabaseServer::start(ServerKind::Postgres).await;
    database.execute(&format!("{TABLE} insert into limits values ('row', '2/hour')")).await;
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&only_a_row(&upstream, &database.url())).await;
    let first = [gateway.get("/row").await, gateway.get("/row").await, gateway.get("/row").await];
    assert_eq!(first.map(|answer| answer.status), [200, 200, 429], "from the first request on");
    assert_eq!(status(&gateway).await["missing"], Value::Null);

    database
        .execute("update limits set rate = '2/fortnight'; insert into limits values ('b', '5/s')")
        .await;
    until(&gateway, "an invalid row", |status| status["invalid"] == 1 && status["rows"] == 2).await;
    assert_eq!(gateway.get("/row").await.status, 429, "its last valid value stays");
    database.execute("delete from limits where name = 'row'; update limits set rate = '6/s'").await;
    eventually("the other row changes", async || {
        (gateway.limiter("b").await["rate"] == "6/s").then_some(())
    })
    .await;
    until(&gateway, "the row is missed", |status| status["invalid"] == 1).await;
    assert_eq!(gateway.get("/row").await.status, 429, "its last valid value stays");
    assert_eq!(lines(&gateway, "is gone, and the file names it"), 1);
    assert_eq!(gateway.metric("paceway_limits_from_invalid_rows", &[]).await, 1.0);

    // A file that names a further limiter is refused until the row is there, and then takes effect by itself.
    let more = only_a_row(&upstream, &database.url())
        .replace("limiters: [known]", "limiters: [known, later]");
    gateway.rewrite(&more);
    let refused = gateway.reload().await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("`later` is no limiter"), "{}", refused.text());
    assert_eq!(gateway.get("/").await.status, 200);
    database.execute("insert into limits values ('later', '1/hour')").await;
    gateway.until_answered("/", 429).await;
}

/// Without the database a route whose limiter is a row is closed, and the others are served.
#[tokio::test(flavor = "multi_thread")]
async fn an_undefined_limiter_closes_its_routes() {
    let mut database = DatabaseServer::start(ServerKind::Postgres).await;
    database.execute(TABLE).await;
    database.kill();
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&only_a_row(&upstream, &database.url())).await;
    let answer = gateway.get("/row").await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "limiter-missing"));
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert_eq!(gateway.get("/").await.status, 200);
    assert!(upstream.calls().iter().all(|call| call.target == "/"), "nothing passes unlimited");
    let ready = gateway.page("/readyz").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json()["limits_from"]["missing"], serde_json::json!(["row"]));
    assert_eq!(gateway.metric("paceway_limits_from_missing_limiters", &[]).await, 1.0);
    let outcome = [("route", "/row"), ("outcome", "limiter_missing")];
    assert_eq!(gateway.metric("paceway_requests_total", &outcome).await, 1.0);

    database.restart().await;
    until(&gateway, "the database is back", |status| status["up"] == true).await;
    assert_eq!(gateway.page("/readyz").await.status, 200, "the other routes are served");
    assert_eq!(gateway.get("/row").await.status, 503);
    database.execute("insert into limits values ('row', '1/hour')").await;
    gateway.until_answered("/row", 200).await;
    assert_eq!(gateway.get("/row").await.status, 429);
    assert_eq!(status(&gateway).await["missing"], Value::Null);
}
