//! Node's own HTTP client, which keeps its connections, and a gateway that answers before it has read a body.

use super::{node, run};
use crate::support::{Gateway, Upstream};
use rstest::rstest;

/// An upstream that answers each request before its body, and closes the connection.
async fn hasty() -> Upstream {
    Upstream::raw(|mut conn| async move {
        if let Ok(Some(_)) = conn.head().await {
            let fields = "Content-Length: 3\r\nConnection: close\r\n";
            let _ = conn.send(format!("HTTP/1.1 413 Too Large\r\n{fields}\r\nno\n")).await;
        }
    })
    .await
}

#[rstest]
#[case::refused("/limited", 429, &["16000"])]
#[case::refused_and_larger("/limited", 429, &["300000"])]
#[case::refused_and_long("/limited", 429, &["6000000"])]
#[case::refused_and_chunked("/limited", 429, &["300000", "chunked"])]
#[case::without_a_route("/nothing", 404, &["16000"])]
#[case::without_an_upstream("/away", 502, &["16000"])]
#[case::answered_early("/hasty", 413, &["300000"])]
#[case::answered_early_and_long("/hasty", 413, &["6000000"])]
#[case::answered_early_and_chunked("/hasty", 413, &["300000", "chunked"])]
#[tokio::test(flavor = "multi_thread")]
async fn node_reads_each_early_answer_on_kept_connections(
    #[case] path: &str,
    #[case] status: u16,
    #[case] body: &[&str],
) {
    let upstream = hasty().await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ hasty: \"{}\", away: {{ url: \"http://127.0.0.1:9\", connect_timeout: 100ms }} }}\n\
         limiters: {{ none: 1/day }}\nroutes:\n- {{ suffix: /limited, limiters: [none], upstream: hasty }}\n\
         - {{ suffix: /hasty, upstream: hasty }}\n- {{ suffix: /away, upstream: away }}\n",
        upstream.url()
    ))
    .await;
    gateway.get("/limited").await;
    node_hears(format!("http://{}{path}", gateway.listen), status, body).await;
}

#[rstest]
#[case::no_page("/nothing", 404, &["3000000"])]
#[case::no_page_and_chunked("/nothing", 404, &["1000000", "chunked"])]
#[case::too_large("/limiters/none/acquire", 413, &["3000000"])]
#[tokio::test(flavor = "multi_thread")]
async fn node_reads_each_early_answer_of_the_admin_side(
    #[case] path: &str,
    #[case] status: u16,
    #[case] body: &[&str],
) {
    let gateway = Gateway::start(
        "upstream: http://127.0.0.1:9\nlimiters: { none: 1/day }\nroutes: [{ suffix: /, limiters: [none] }]\n",
    )
    .await;
    node_hears(format!("http://{}{path}", gateway.admin), status, body).await;
}

/// Posts 40 bodies to `url`, and expects the answer of each.
async fn node_hears(url: String, status: u16, body: &[&str]) {
    let script = ["tests/clients/early_answers.mjs", &url];
    let said = run(node(&[&script[..], body].concat())).await;
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["errors"], serde_json::json!([]), "{said}");
    assert_eq!(said["statuses"], serde_json::json!(vec![status; 40]));
}
