//! The configuration of a running gateway changes, by signal and by request, and requests do not notice.

use crate::{
    grpc,
    support::{Gateway, Redis, Upstream, eventually, paceway, request},
    upgrades::{echo, says, tunnel},
};
use bytes::Bytes;
use rstest::rstest;
use serde_json::Value;
use std::{fs, os::unix::fs::symlink, path::Path};
use tokio::net::TcpListener;

fn yaml(upstream: &Upstream, rest: &str) -> String {
    format!("upstream: {}\nworkers: 2\n{rest}", upstream.url())
}

fn routes(rate: &str, more: &str) -> String {
    format!(
        "limiters:\n  one: {{ rate: {rate}, burst: 3 }}\n\
         routes:\n- {{ name: all, suffix: /all, limiters: [one], max_wait: 5m }}\n{more}"
    )
}

async fn ready(gateway: &Gateway) -> Value {
    gateway.page("/readyz").await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_takes_effect_and_levels_counters_and_connections_stay() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, &routes("1/h", ""))).await;
    assert_eq!(gateway.get("/all").await.status, 200);
    assert_eq!(gateway.get("/new").await.status, 404);
    let (before, connections) = (ready(&gateway).await, upstream.connections());
    gateway.rewrite(&yaml(&upstream, &routes("2/h", "- { name: new, suffix: /new }\n")));
    let answer = gateway.reload().await;
    assert_eq!((answer.status, &answer.json()["changed"]), (200, &Value::Bool(true)));
    // One of three permits is used, also by the new rule.
    let limiter = gateway.limiter("one").await;
    assert_eq!((&limiter["rate"], &limiter["level"]), (&"2/h".into(), &2.into()));
    assert_eq!(gateway.get("/new").await.status, 200);
    assert_eq!(gateway.count("all", "passed").await, 1.0);
    assert_eq!(gateway.metric("paceway_requests_total", &[("route", "-")]).await, 1.0);
    assert_eq!(gateway.metric("paceway_config_reloads_total", &[("result", "ok")]).await, 1.0);
    let after = ready(&gateway).await;
    assert_ne!(before["config"]["hash"], after["config"]["hash"]);
    assert_eq!(after["config"]["hash"], answer.json()["hash"]);
    let hash = after["config"]["hash"].as_str().expect("a hash");
    assert_eq!(gateway.metric("paceway_config_info", &[]).await, 1.0);
    assert_eq!(gateway.metric("paceway_config_info", &[("hash", hash)]).await, 1.0);
    // Each worker may have a connection of its own.
    assert!(upstream.connections() <= connections + 1, "{}", upstream.connections());
    // The same file again changes nothing.
    assert_eq!(gateway.reload().await.json()["changed"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_request_keeps_its_configuration() {
    let upstream = Upstream::ok().await;
    let slow = "limiters: { one: 1/s }\nroutes:\n\
                - { name: all, suffix: \"*\", limiters: [one], max_wait: 20s, max_waiting: 2 }\n";
    let gateway = Gateway::start(&yaml(&upstream, slow)).await;
    assert_eq!(gateway.get("/").await.status, 200);
    let mut waiting = [gateway.ask("/first", &[]).await, gateway.ask("/second", &[]).await];
    gateway.until_waiting("all", 2).await;
    // The new plan still counts the two requests that wait under the old one.
    gateway.rewrite(&yaml(&upstream, &slow.replace("20s", "19s")));
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(gateway.metric("paceway_waiting", &[("route", "all")]).await, 2.0);
    assert_eq!(gateway.limiter("one").await["waiting"], 2);
    assert_eq!(gateway.get("/third").await.status, 503);
    // Without the route, the limiter and the upstream of before.
    let other = Upstream::ok().await;
    gateway.rewrite(&yaml(&other, "routes: [{ name: other, suffix: /other }]\n"));
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(gateway.get("/other").await.status, 200);
    for conn in &mut waiting {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!((upstream.calls().len(), other.calls().len()), (3, 1));
    let names = |line: &Value| (line["route"].clone(), line["outcome"].clone());
    assert_eq!(names(&gateway.line("/second").await), ("all".into(), "waited".into()));
    let text = gateway.page("/metrics").await.text();
    assert!(!text.contains("route=\"all\",outcome"), "{text}");
}

#[rstest]
#[case::a_mistake("routes: [{ suffix: /a, limiters: [none] }]\n")]
#[case::no_yaml("routes: [\n")]
#[case::empty("")]
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_file_changes_nothing_and_is_reported_as_check_does(#[case] routes: &str) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, "routes: [{ suffix: /a }]\n")).await;
    let before = ready(&gateway).await;
    let loaded = gateway.metric("paceway_config_loaded_timestamp_seconds", &[]).await;
    gateway.rewrite(&if routes.is_empty() { String::new() } else { yaml(&upstream, routes) });
    let file = gateway.file();
    let said = paceway(&["check", file.to_str().expect("a path")]);
    let said = String::from_utf8(said.stderr).expect("text").trim_end().to_owned();
    let answer = gateway.reload().await;
    assert_eq!((answer.status, answer.json()["detail"].as_str()), (422, Some(&*said)));
    let after = ready(&gateway).await;
    assert_eq!(after["config"]["error"].as_str(), Some(&*said));
    assert_eq!(
        (&after["ready"], &after["config"]["hash"]),
        (&true.into(), &before["config"]["hash"])
    );
    assert_eq!(gateway.get("/a").await.status, 200);
    let command = |json: &[&str]| {
        let admin = gateway.admin.to_string();
        paceway(&[&["reload", "--admin", &admin], json].concat())
    };
    let refused = command(&[]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&refused.stderr), format!("error: {said}\n"));
    assert!(gateway.metric("paceway_config_reloads_total", &[("result", "error")]).await >= 2.0);
    assert_eq!(gateway.metric("paceway_config_loaded_timestamp_seconds", &[]).await, loaded);
    let event = eventually("the log has it", async || {
        gateway.events().into_iter().find(|event| event["error"] == *said)
    });
    assert_eq!(event.await["level"], "ERROR");
    gateway.rewrite(&yaml(&upstream, "watch: off\nroutes: [{ suffix: /b }]\n"));
    assert!(command(&[]).status.success());
    let again: Value = serde_json::from_slice(&command(&["--json"]).stdout).expect("JSON");
    assert_eq!(again["changed"], false);
    assert!(ready(&gateway).await["config"].get("error").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reads_secrets_again_and_names_what_needs_a_restart() {
    let upstream = Upstream::ok().await;
    let file = |more: &str| {
        yaml(
            &upstream,
            &format!(
                "{more}routes:\n- suffix: /a\n  headers: \
                 {{ request: {{ set: {{ X-Token: \"${{file:token}}\" }} }} }}\n"
            ),
        )
    };
    let dir = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::start_in(dir, &file(""), |dir| {
        fs::write(dir.join("token"), "first").expect("a secret");
    })
    .await;
    assert_eq!(gateway.get("/a").await.status, 200);
    let directory = gateway.file().parent().expect("a directory").to_owned();
    fs::write(directory.join("token"), "second").expect("a secret");
    gateway.rewrite(&file("listen: 127.0.0.1:1\nstore: redis://127.0.0.1:1\n"));
    gateway.signal("HUP");
    let event = eventually("it is reported", async || {
        gateway.events().into_iter().find(|event| event["keys"] == "listen, store")
    });
    assert_eq!(event.await["level"], "WARN");
    assert_eq!(ready(&gateway).await["config"]["needs_restart"][1], "store");
    assert_eq!(gateway.get("/a").await.status, 200);
    let tokens: Vec<_> = upstream
        .calls()
        .iter()
        .map(|call| call.head.get("x-token").expect("a token").to_owned())
        .collect();
    assert_eq!(tokens, ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_a_file_refuses_to_reload() {
    let gateway = Gateway::demo(&["--port", "0", "--admin-port", "0", "--vendor-port", "0"]).await;
    assert_eq!(gateway.reload().await.status, 409);
    gateway.signal("HUP");
    assert_eq!(gateway.page("/readyz").await.status, 200);
}

/// A request that the admin side does not expect.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_post_reloads() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, "routes: [{ suffix: /a }]\n")).await;
    assert_eq!(gateway.page("/reload").await.status, 405);
    let answer = gateway.admin_request(request("PUT", "/reload", &[])).await;
    assert_eq!(answer.status, 405);
}

/// Puts `text` in place of the file, as an editor does.
fn in_place(file: &Path, text: &str) {
    fs::write(file, text).expect("the configuration");
}

/// Puts `text` in place of the file by a swap of a link, as Kubernetes does.
fn by_a_swap(file: &Path, text: &str) {
    let directory = file.parent().expect("a directory");
    fs::create_dir(directory.join("data")).expect("a directory");
    fs::write(directory.join("data/paceway.yaml"), text).expect("the configuration");
    symlink("data/paceway.yaml", directory.join("next")).expect("a link");
    fs::rename(directory.join("next"), file).expect("a swap");
}

#[rstest]
#[case::in_place(in_place)]
#[case::by_a_swap(by_a_swap)]
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_takes_effect_by_itself(#[case] change: fn(&Path, &str)) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, "routes: [{ suffix: /a }]\n")).await;
    let (file, before) = (gateway.file(), ready(&gateway).await);
    let text = fs::read_to_string(&file).expect("the configuration");
    change(&file, &text.replace("/a", "\"${file:suffix}\""));
    let mistake = eventually("the missing file is named", async || {
        ready(&gateway).await["config"]["error"].as_str().map(str::to_owned)
    });
    assert!(mistake.await.contains("there is no such file"));
    // The gateway waits for the secret, although its own file stays the same.
    let secret = file.parent().expect("a directory").join("suffix");
    fs::write(&secret, "/b\n").expect("a secret");
    gateway.until_answered("/b", 200).await;
    // The page says so a moment after the new routes answer.
    let without_mistake = eventually("the mistake is gone", async || {
        let page = ready(&gateway).await;
        page["config"].get("error").is_none().then_some(page)
    });
    let after = without_mistake.await;
    assert_ne!(before["config"]["hash"], after["config"]["hash"]);
    fs::write(&secret, "/c\n").expect("a secret");
    gateway.until_answered("/c", 200).await;
    assert_eq!(ready(&gateway).await["config"]["hash"], after["config"]["hash"]);
    // One reload for each of the three changes; the missing file was reported once.
    for (result, count) in [("ok", 2), ("error", 1)] {
        let labels = [("result", result)];
        gateway.until_metric("paceway_config_reloads_total", &labels, count).await;
    }
}

/// An upstream that speaks HTTP/2 and returns each piece of a stream.
async fn h2_echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(tcp).await.expect("a handshake");
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let mut body = request.into_body();
                    let head = http::Response::new(());
                    let mut answer = respond.send_response(head, false).expect("send");
                    tokio::spawn(async move {
                        while let Some(Ok(piece)) = body.data().await {
                            let _ = body.flow_control().release_capacity(piece.len());
                            let _ = answer.send_data(piece, false);
                        }
                        let _ = answer.send_data(Bytes::new(), true);
                    });
                }
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_live_through_reloads_that_remove_their_routes() {
    let ((upstream, _ended), calls) = (echo("").await, h2_echo().await);
    let uploads = Upstream::ok().await;
    let with = format!(
        "upstreams:\n  sockets: {}\n  calls: {{ url: {calls}, http2: on }}\n  uploads: {}\n\
         limiters:\n  places: {{ algorithm: concurrency, max: 3, lease: 1s }}\n\
         routes:\n- {{ suffix: /socket, upstream: sockets, limiters: [places] }}\n\
         - {{ suffix: /Call, upstream: calls, limiters: [places] }}\n\
         - {{ suffix: /upload, upstream: uploads, limiters: [places] }}\n",
        upstream.url(),
        uploads.url()
    );
    let gateway = Gateway::start(&with).await;
    let mut socket = tunnel(&gateway, "/socket").await;
    let mut client = grpc::connect(gateway.listen).await;
    let (answer, mut call) = client.send_request(grpc::call("/a.B/Call"), false).expect("send");
    let mut answer = answer.await.expect("an answer").into_body();
    let mut upload = gateway.connect().await;
    let head = request("POST", "/upload", &[("Content-Length", "40")]);
    upload.send(head).await.expect("send");
    for i in 0..20 {
        match i % 2 {
            0 => gateway.rewrite(&yaml(&uploads, "routes: [{ suffix: /other }]\n")),
            _ => gateway.rewrite(&with),
        }
        assert_eq!(gateway.reload().await.json()["changed"], true);
        says(&mut socket, &format!("{i}\n")).await;
        call.send_data(Bytes::from(format!("{i:02}")), false).expect("send");
        let piece = answer.data().await.expect("a piece").expect("a piece");
        let _ = answer.flow_control().release_capacity(piece.len());
        assert_eq!(piece, format!("{i:02}"));
        upload.send(format!("{i:02}")).await.expect("send");
    }
    assert_eq!(upload.answer().await.expect("an answer").status, 200);
    assert_eq!(uploads.calls()[0].body.len(), 40);
    call.send_data(Bytes::new(), true).expect("send");
    // The last frame may be an empty one.
    while let Some(last) = answer.data().await {
        assert_eq!(last.expect("a piece"), "");
    }
    // Two of three places are taken by now, and one is still.
    eventually("the places of both are free", async || {
        (gateway.limiter("places").await["level"] == 2).then_some(())
    })
    .await;
    drop(socket);
    eventually("all places are free", async || {
        (gateway.limiter("places").await["level"] == 3).then_some(())
    })
    .await;
}

/// The limits of a fleet hold while its gateways have different files, and while one of them is killed as it reloads.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_with_two_files_shares_its_levels_and_shows_the_difference() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let file = |more: &str| {
        let store = format!("store: {}\n", redis.url());
        let routes = "- { name: all, suffix: /all, limiters: [one] }\n";
        yaml(&upstream, &format!("{store}limiters: {{ one: 10/h }}\nroutes:\n{routes}{more}"))
    };
    let more = "- { suffix: /more }\n";
    let one = Gateway::start(&file("")).await;
    let [two, mut three] = [Gateway::start(&file("")).await, Gateway::start(&file(more)).await];
    let hash = async |gateway: &Gateway| ready(gateway).await["config"]["hash"].clone();
    // Each has the addresses that the system chose in the place of its own.
    assert_eq!(hash(&one).await, hash(&two).await);
    assert_ne!(hash(&one).await, hash(&three).await);
    for gateway in [&one, &two, &three] {
        assert_eq!(gateway.get("/all").await.status, 200);
    }
    for i in 0..30 {
        three.rewrite(&file(if i % 2 == 0 { "" } else { more }));
        three.signal("HUP");
    }
    assert_eq!(three.get("/all").await.status, 200);
    three.signal("KILL");
    three.end().await;
    let three = Gateway::start(&file("")).await;
    two.rewrite(&file(more));
    assert_eq!(two.reload().await.status, 200);
    for gateway in [&one, &two, &three] {
        assert_eq!(gateway.limiter("one").await["level"], 6);
    }
    for i in 0..9 {
        let status = [&one, &two, &three][i % 3].get("/all").await.status;
        assert_eq!(status, if i < 6 { 200 } else { 429 });
    }
}

/// A permit that becomes free wakes a request of another gateway, although the limiter came with a reload.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_can_add_a_concurrency_limiter() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let file = |limiter: &str| {
        format!(
            "upstream: {}\nstore: {}\nlimiters: {{ one: {limiter} }}\n\
             routes: [{{ name: all, suffix: \"*\", limiters: [one], max_wait: 20s }}]\n",
            upstream.url(),
            redis.url()
        )
    };
    let gateway = Gateway::start(&file("100/s")).await;
    assert_eq!(gateway.get("/").await.status, 200);
    gateway.rewrite(&file("{ algorithm: concurrency, max: 1, lease: 1h }"));
    assert_eq!(gateway.reload().await.status, 200);
    let taken = request("POST", "/limiters/one/acquire", &[("Content-Length", "0")]);
    let lease = gateway.admin_request(taken).await.json()["lease"].clone();
    let mut waiting = gateway.ask("/", &[]).await;
    gateway.until_waiting("all", 1).await;
    let body = format!("{{\"lease\": {lease}}}");
    let length = body.len().to_string();
    let fields = [("Content-Length", &*length), ("Content-Type", "application/json")];
    let mut release = request("POST", "/limiters/one/release", &fields).to_string();
    release.push_str(&body);
    assert_eq!(gateway.admin_request(release).await.status, 200);
    assert_eq!(waiting.answer().await.expect("an answer").status, 200);
}
