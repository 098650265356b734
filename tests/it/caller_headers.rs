//! The headers from which a caller learns of its limiters: for which one it waited, and what that has left.

use crate::support::{Answer, Gateway, Upstream, free_port, reply};

#[tokio::test(flavor = "multi_thread")]
async fn only_a_delayed_answer_names_its_wait_and_limiter() {
    let upstream =
        Upstream::start(|_| reply("200 OK", &[("Server-Timing", "db;dur=5")], "ok")).await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ up: \"{}\", dead: \"http://127.0.0.1:{}\" }}
limiters: {{ wide: 1000/s, narrow: {{ rate: 1/200ms, burst: 1 }} }}
routes:
- {{ suffix: /dead, upstream: dead, limiters: [narrow], max_wait: 10s }}
- {{ suffix: \"*\", upstream: up, limiters: [wide, narrow], max_wait: 10s }}
",
        upstream.url(),
        free_port()
    ))
    .await;
    let first = gateway.get("/").await;
    assert_eq!(first.head.all("server-timing"), ["db;dur=5"]);
    // The next slot may have come by itself; asked for at once, the last of several cannot have. The upstream of the last
    // one is away.
    let mut all = Vec::new();
    for path in ["/", "/", "/dead"] {
        all.push(gateway.ask(path, &[]).await);
    }
    let mut longest = 0.0;
    for conn in &mut all {
        let answer = conn.answer().await.expect("an answer");
        let mut timing = answer.head.all("server-timing");
        if answer.status == 200 {
            assert_eq!(timing.remove(0), "db;dur=5");
        }
        let Some(own) = timing.first() else { continue };
        let (dur, desc) = own.split_once(';').and_then(|(_, own)| own.split_once(';')).expect(own);
        assert_eq!((&own[..8], desc), ("paceway;", "desc=\"narrow\""));
        let millis: f64 = dur.strip_prefix("dur=").expect("ours").parse().expect("ms");
        assert_eq!(
            gateway.line(if answer.status == 200 { "/" } else { "/dead" }).await["limiter"],
            "narrow"
        );
        longest = f64::max(longest, millis);
    }
    assert!(longest > 0.0, "one of them waited");
}

/// The permits of `field` that are left, and the seconds until more can be had.
fn left(field: &str) -> (i64, i64) {
    let (left, until) =
        field.strip_prefix("\"account\";r=").expect(field).split_once(";t=").expect(field);
    (left.parse().expect("a number"), until.parse().expect("a number"))
}

fn fields(answer: &Answer) -> [Vec<&str>; 2] {
    ["ratelimit", "ratelimit-policy"].map(|name| answer.head.all(name))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_names_the_remaining_permits_next_to_the_upstreams_headers() {
    let upstream = Upstream::start(|call| {
        let fields: &[(&str, &str)] = match call.target.as_str() {
            "/named" => {
                &[("RateLimit", "\"theirs\";r=9;t=9"), ("RateLimit-Policy", "\"theirs\";q=10;w=9")]
            }
            "/same" => &[("RateLimit", "\"account\";r=9;t=9")],
            "/older" => &[("RateLimit", "limit=10, remaining=9, reset=5")],
            _ => &[],
        };
        reply("200 OK", fields, "ok")
    })
    .await;
    let gateway = Gateway::start(&format!(
        "ratelimit_headers: all
upstreams:
  up: {{ url: \"{}\", throttle: off }}
  dead: \"http://127.0.0.1:{}\"
limiters:
  account: {{ rate: 6/hour }}
  seen: {{ rate: 1/hour, mode: observe }}
routes:
- {{ suffix: /refused, upstream: up, limiters: [account], ratelimit_headers: refused }}
- {{ suffix: /free, upstream: up }}
- {{ suffix: /seen, upstream: up, limiters: [seen] }}
- {{ suffix: /dead, upstream: dead, limiters: [account] }}
- {{ suffix: \"*\", upstream: up, limiters: [account, seen] }}
",
        upstream.url(),
        free_port()
    ))
    .await;
    let policy = "\"account\";q=6;w=3600";
    let first = gateway.get("/").await;
    let [limit, rule] = fields(&first);
    let (permits, seconds) = left(limit[0]);
    assert!(permits == 5 && (590..=600).contains(&seconds), "{limit:?}");
    assert_eq!((limit.len(), rule), (1, vec![policy]));
    for path in ["/refused", "/free", "/seen"] {
        assert_eq!(fields(&gateway.get(path).await), [[""; 0], [""; 0]], "{path}");
    }
    // The upstream's quotas come first; a field that is no list of quotas with other names stays as it is.
    let [limit, rule] = fields(&gateway.get("/named").await).map(|all| all.join(" | "));
    assert!(limit.starts_with("\"theirs\";r=9;t=9 | \"account\";r=3;t="), "{limit}");
    assert_eq!(rule, format!("\"theirs\";q=10;w=9 | {policy}"));
    for (path, own) in
        [("/same", "\"account\";r=9;t=9"), ("/older", "limit=10, remaining=9, reset=5")]
    {
        assert_eq!(fields(&gateway.get(path).await), [vec![own], vec![]], "{path}");
    }
    // The permit of a call that reached no upstream is back.
    let failed = gateway.get("/dead").await;
    assert_eq!((failed.status, left(fields(&failed)[0][0]).0), (502, 0));
    let last = gateway.get("/").await;
    assert_eq!((last.status, left(fields(&last)[0][0]).0), (200, 0));
    // A refusal has its fields on every route.
    for path in ["/", "/refused"] {
        let refused = gateway.get(path).await;
        assert_eq!((refused.status, left(fields(&refused)[0][0]).0), (429, 0), "{path}");
        assert_eq!(fields(&refused).map(|all| all.len()), [1, 1]);
    }
}
