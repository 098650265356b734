//! Requests that upstreams can read in two ways are refused, or limited as one: headers that come twice, bodies, numbers of
//! paths. And the memory of the bodies that are read for that.

use crate::support::{Answer, Conn, Gateway, Upstream, eventually, request, service_address};
use bytes::Bytes;
use http_body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rstest::rstest;
use std::{
    convert::Infallible,
    env,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{net::TcpStream, process::Command};

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Each limiter reads another header.
const BY_HEADERS: &str = "limiters:
  key: { rate: 1000/h, key: '{header.x-key}' }
  tenant: { rate: 1000/s, fair: { by: '{header.x-team}' } }
  cost: 1000/h
  ranked: 1000/s
routes:
  - { name: key, suffix: /key, limiters: [key] }
  - { name: tenant, suffix: /tenant, limiters: [tenant] }
  - { name: cost, suffix: /cost, limiters: [{ limiter: cost, cost: '{header.x-cost}' }] }
  - { name: priority, suffix: /priority, limiters: [ranked], priority: '{header.x-rank}' }
  - { name: none, suffix: '*' }
";

/// A body of so many spaces that does not end.
struct Unfinished(Option<usize>);

impl http_body::Body for Unfinished {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = |length| Poll::Ready(Some(Ok(Frame::data(vec![b' '; length].into()))));
        self.0.take().map_or(Poll::Pending, data)
    }
}

/// A gateway before `upstream` with 1000 permits an hour at `points`, of which a request costs `{body./n}`.
async fn counting(upstream: &Upstream) -> Gateway {
    Gateway::before(upstream, "limiters: { points: 1000/h }\n\
         routes: [{ name: all, suffix: \"*\", limiters: [{ limiter: points, cost: '{body./n}' }] }]\n")
    .await
}

async fn post(gateway: &Gateway, fields: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut conn = gateway.connect().await;
    let length = body.len().to_string();
    let fields = [fields, &[("Content-Length", &*length)]].concat();
    conn.send([request("POST", "/", &fields).as_bytes(), body].concat()).await.expect("send");
    conn.answer().await.expect("an answer")
}

#[rstest]
#[case::key("/key", "X-Key")]
#[case::tenant("/tenant", "X-Team")]
#[case::cost("/cost", "X-Cost")]
#[case::priority("/priority", "X-Rank")]
#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_header_of_a_limiter_that_is_sent_twice(#[case] path: &str, #[case] name: &str) {
    let upstream = Upstream::ok().await;
    let services = "services: { forward_auth: 127.0.0.1:0 }";
    let gateway =
        Gateway::start(&format!("upstream: {}\n{services}\n{BY_HEADERS}", upstream.url())).await;
    let name = &*name.to_ascii_lowercase();
    let (alike, dotted) = (name.replace('-', "_"), name.replace('-', "."));
    let ask = async |path: &str, fields: &[(&str, &str)]| {
        gateway.ask(path, fields).await.answer().await.expect("an answer")
    };
    for second in ["1", "2"] {
        let refused = ask(path, &[(name, "1"), (name, second)]).await;
        assert_eq!((refused.status, refused.problem().as_str()), (400, "bad-request"));
        assert!(refused.text().contains(name), "{}", refused.text());
    }
    assert_eq!(upstream.calls().len(), 0);
    assert_eq!(ask(path, &[(name, "1")]).await.status, 200);
    // Some upstreams read these names as that of the header.
    assert_eq!(ask(path, &[(name, "1"), (&alike, "2"), (&dotted, "3")]).await.status, 200);
    assert_eq!(ask("/other", &[(name, "1"), (name, "2"), (&alike, "3")]).await.status, 200);
    let [_, passed, other] = &upstream.calls()[..] else { panic!("three calls") };
    assert_eq!(passed.head.all(name), ["1"]);
    assert_eq!((passed.head.get(&alike), passed.head.get(&dotted)), (None, None));
    assert_eq!((other.head.all(name).len(), other.head.get(&alike)), (2, Some("3")));
    let decide = async |fields: &[(&str, &str)]| {
        let described = [("X-Forwarded-Uri", path), ("X-Forwarded-Method", "GET")];
        let address = service_address(&gateway, "forward_auth");
        let mut conn = Conn::to(address).await.expect("connect");
        conn.send(request("GET", "/", &[&described, fields].concat())).await.expect("send");
        conn.answer().await.expect("an answer").status
    };
    assert_eq!(decide(&[(name, "1")]).await, 200);
    assert_eq!(decide(&[(name, "1"), (name, "2")]).await, 400);
    // The gateway does not forward the request, so it cannot remove the name.
    assert_eq!(decide(&[(name, "1"), (&alike, "2")]).await, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn ext_authz_refuses_a_header_of_a_key_that_comes_twice() {
    let services = "services: { ext_authz: { listen: 127.0.0.1:0, token: hunter2 } }";
    let gateway =
        Gateway::start(&format!("upstream: http://127.0.0.1:9\n{services}\n{BY_HEADERS}")).await;
    let address = service_address(&gateway, "ext_authz").to_string();
    let python = env::current_dir().expect("a directory").join("target/clients/python/bin/python");
    let ask = async |fields: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["tests/clients/ext_authz.py", &address, "9", "1"]);
        command.args(["GET", "/key", "a.test", "192.0.2.1"]).args(fields);
        let output = command.output().await.expect("Python");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        answer["status"].as_u64()
    };
    assert_eq!(ask(&["x-key:1"]).await, Some(200));
    assert_eq!(ask(&["x-key:1", "X-Key:2"]).await, Some(400));
    assert_eq!(ask(&["x-key:1", "x_key:2"]).await, Some(400));
}

/// Each of these is read by some framework, whatever its type says.
#[rstest]
#[case::text(&[("Content-Type", "text/plain")], "{\"n\":300}")]
#[case::bytes(&[("Content-Type", "application/octet-stream")], "{\"n\":300}")]
#[case::no_type(&[], "{\"n\":300}")]
#[case::parameter(&[("Content-Type", "application/json; charset=\"UTF-8\"")], "{\"n\":300}")]
#[case::identity(&[JSON, ("Content-Encoding", "Identity")], "{\"n\":300}")]
#[case::byte_order_mark(&[JSON], "\u{feff}{\"n\":300}")]
#[case::exponent(&[JSON], "{\"n\":3e2}")]
#[case::elsewhere_twice(&[JSON], "{\"n\":300,\"a\":1,\"a\":{\"n\":1}}")]
#[tokio::test(flavor = "multi_thread")]
async fn reads_a_body_as_its_upstream_does(#[case] fields: &[(&str, &str)], #[case] body: &str) {
    let upstream = Upstream::ok().await;
    let gateway = counting(&upstream).await;
    let answer = post(&gateway, fields, body.as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(gateway.limiter("points").await["level"], 700);
    assert_eq!(upstream.calls()[0].body, body.as_bytes());
}

#[rstest]
#[case::two_types(&[JSON, ("Content-Type", "text/plain")], b"{\"n\":300}")]
#[case::compressed(&[JSON, ("Content-Encoding", "gzip")], b"{\"n\":300}")]
#[case::compressed_after_identity(&[JSON, ("Content-Encoding", "identity, br")], b"{\"n\":300}")]
#[case::two_codings(&[JSON, ("Content-Encoding", "identity"), ("Content-Encoding", "gzip")], b"{\"n\":300}")]
#[case::utf_7(&[("Content-Type", "application/json; charset=utf-7")], b"{\"+AG4-\":300,\"n\":1}")]
#[case::second_charset(&[("Content-Type", "text/json;charset=utf-8;charset =utf-16")], b"{\"n\":300}")]
#[case::utf_16(&[JSON], b"\xff\xfe{\x00\"\x00n\x00\"\x00:\x003\x00}\x00")]
#[case::form(&[("Content-Type", "application/x-www-form-urlencoded")], b"n=300")]
#[case::a_form_that_is_json(&[("Content-Type", "application/x-www-form-urlencoded")], b"\"&n=300&\"")]
#[case::twice(&[JSON], b"{\"n\":300,\"n\":null}")]
#[case::another_case(&[JSON], b"{\"N\":300,\"n\":1}")]
#[case::not_a_number(&[JSON], b"{\"n\":300,\"x\":NaN}")]
#[case::lone_surrogate(&[JSON], b"{\"\\ud800\":1,\"n\":300}")]
#[case::trailing_text(&[JSON], b"{\"n\":300}x")]
#[case::cut(&[JSON], b"{\"n\":300")]
#[case::not_json(&[("Content-Type", "text/plain")], b"hello")]
#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_body_that_its_upstream_may_read_differently(
    #[case] fields: &[(&str, &str)],
    #[case] body: &[u8],
) {
    let upstream = Upstream::ok().await;
    let gateway = counting(&upstream).await;
    let answer = post(&gateway, fields, body).await;
    assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"), "{answer:?}");
    assert_eq!(gateway.limiter("points").await["level"], 1000);
    assert_eq!(upstream.calls().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_integer_of_a_path_has_one_spelling() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { each: { rate: 1/h, key: '{path.id:int}' } }\n\
         routes: [{ path: '/channels/{id}', limiters: [each] }, { suffix: '*' }]\n",
    )
    .await;
    for path in ["05", "005", "+5", "5.0", "%205", "0x5", "5e0", "%EF%BC%95", "five"] {
        let answer = gateway.get(&format!("/channels/{path}")).await;
        assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"), "{path}");
    }
    assert_eq!(gateway.get("/channels/5").await.status, 200);
    for path in ["//channels/%35", "/channels/5%20", "/channels/5;a=1"] {
        assert_eq!(gateway.get(path).await.status, 429, "{path}");
    }
    assert_eq!(gateway.get("/channels/6").await.status, 200);
    assert_eq!(gateway.get("/channels/-6").await.status, 200);
}

/// 16 bodies of which one byte is missing use up the room: further ones are refused, and pass when it is free again.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_read_for_limiters_have_a_bound() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(&upstream, "workers: 1\nlimits: { retry_bodies: 0 }\nlimiters: { points: 1000000/h }\n\
         routes: [{ name: all, suffix: \"*\", limiters: [{ limiter: points, cost: '{body./n}' }] }]\n")
    .await;
    // 1 MiB is for such bodies alone: 16 of 64 KiB.
    let tcp = TcpStream::connect(gateway.listen).await.expect("connect");
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    for _ in 0..8 {
        let request = http::Request::post("http://gateway.test/").body(Unfinished(Some(65_000)));
        tokio::spawn(sender.send_request(request.expect("a request")));
    }
    let hold = async || {
        let mut conn = gateway.connect().await;
        let head = request("POST", "/", &[("Content-Length", "65000")]);
        conn.send(head + &" ".repeat(64_999)).await.expect("send");
        conn
    };
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(hold().await);
    }
    let another = format!("{{\"n\":1}}{}", " ".repeat(60_000));
    let refused = eventually("the room is used up", async || {
        let answer = post(&gateway, &[JSON], another.as_bytes()).await;
        if answer.status == 200 {
            // It may have had the room in which one of the others was refused.
            held.push(hold().await);
        }
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!((refused.status, refused.problem().as_str()), (503, "too-many-bodies"));
    assert_eq!(refused.field("retry-after"), Some("1"));
    connection.abort();
    drop(held);
    eventually("there is room again", async || {
        (post(&gateway, &[JSON], another.as_bytes()).await.status == 200).then_some(())
    })
    .await;
}

/// Each byte comes in time, and the whole body does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_read_for_limiters_and_drips_is_given_up() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(&upstream, "client: { body_timeout: 1s }\nlimiters: { points: 1000/h }\n\
         routes: [{ name: all, suffix: \"*\", limiters: [{ limiter: points, cost: '{body./n}' }] }]\n")
    .await;
    let (mut reads, mut writes) = gateway.connect().await.split();
    writes.send(request("POST", "/", &[("Content-Length", "60000")])).await.expect("send");
    let dripping = tokio::spawn(async move {
        while writes.send(" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let answer = reads.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (408, "body-timeout"));
    dripping.abort();
}
