//! The recipes of docs/recipes.md: each file as the page shows it, before a pretend vendor. The tests assert on counts and on the
//! laws of the limiters, never on speed.

use crate::support::{
    Answer, Gateway, Redis, Upstream, assert_lawful, blocks, eventually, paceway_fed, reply,
    request, service_address,
};
use serde_json::json;
use std::{
    fs,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::{process::Command, sync::Semaphore, task::JoinHandle, time::Instant};

const PAGE: &str = "docs/recipes.md";
const JSON: (&str, &str) = ("Content-Type", "application/json");
/// The key of the vendor, in the file that a recipe names.
const SECRET: &str = "hunter2";

/// The place of a recipe on the page.
#[derive(Clone, Copy)]
enum Recipe {
    Tokens,
    GitHub,
    Batch,
    Shops,
    Program,
}

// === impl Recipe ===

impl Recipe {
    /// The file of the recipe as the page shows it.
    fn file(self) -> String {
        let files = blocks(PAGE, "yaml");
        assert_eq!(files.len(), Self::Program as usize + 1, "each recipe has one file and a test");
        files[self as usize].clone()
    }

    /// The file with the address of a pretend vendor, and with that of a Redis if the recipe has one.
    fn before(self, vendor: &Upstream, redis: Option<&Redis>) -> String {
        let file = self.file();
        let (start, rest) = file.split_once("https://").expect("an upstream");
        let (_, rest) = rest.split_once('\n').expect("the end of its line");
        let yaml = format!("{start}{}\n{rest}", vendor.url());
        let Some(redis) = redis else { return yaml };
        assert!(yaml.contains("redis://127.0.0.1:6379"), "{yaml}");
        yaml.replace("redis://127.0.0.1:6379", &redis.url())
    }

    async fn start(self, vendor: &Upstream, redis: Option<&Redis>) -> Gateway {
        let dir = tempfile::tempdir().expect("a directory");
        Gateway::start_in(dir, &self.before(vendor, redis), write_secrets).await
    }
}

/// Writes the files that recipes name.
fn write_secrets(dir: &Path) {
    fs::create_dir(dir.join("secrets")).expect("a folder");
    for vendor in ["openai", "github"] {
        fs::write(dir.join("secrets").join(vendor), SECRET).expect("a file");
    }
}

async fn post(gateway: &Gateway, target: &str, fields: &[(&str, &str)], body: &str) -> Answer {
    let mut conn = gateway.connect().await;
    let length = body.len().to_string();
    let fields = [fields, &[JSON, ("Content-Length", &*length)]].concat();
    conn.send(request("POST", target, &fields) + body).await.expect("send");
    conn.answer().await.expect("an answer")
}

/// Sends one GET for each target at the same time, to the gateways in turn; each task ends with the answer.
async fn get_all(gateways: &[&Gateway], targets: &[&str]) -> Vec<JoinHandle<Answer>> {
    let mut asked = Vec::new();
    for (i, target) in targets.iter().enumerate() {
        let mut conn = gateways[i % gateways.len()].ask(target, &[]).await;
        asked.push(tokio::spawn(async move { conn.answer().await.expect("an answer") }));
    }
    asked
}

/// Waits for the answers, which must all be those of the vendor.
async fn expect_served(asked: Vec<JoinHandle<Answer>>) {
    for task in asked {
        let answer = task.await.expect("a task");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[test]
fn each_recipe_is_valid_and_causes_no_warning() {
    for file in blocks(PAGE, "yaml") {
        let output = paceway_fed(Path::new("."), &["check", "--offline", "-"], &file);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(printed.contains(": ok: "), "{printed}");
    }
}

/// Each call reserves what it may use, and the rest of the reserve is free for calls at another gateway once the answer has named
/// the true cost.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_model_cost_the_tokens_that_the_answer_names() {
    const USED: &str = r#"{"usage": {"total_tokens": 120}}"#;
    let (redis, gate) = (Redis::start(), Arc::new(Semaphore::new(0)));
    let held = gate.clone();
    let vendor = Upstream::start(move |_| reply("200 OK", &[JSON], USED).behind(&held)).await;
    let first = Recipe::Tokens.start(&vendor, Some(&redis)).await;
    let second = Recipe::Tokens.start(&vendor, Some(&redis)).await;
    let chat = "/v1/chat/completions";

    let all = tokio::spawn(async move {
        let answer = post(&first, chat, &[], r#"{"max_completion_tokens": 29000}"#).await;
        (first, answer)
    });
    eventually("the vendor has the call", async || (vendor.calls().len() == 1).then_some(())).await;
    let at_once = [("Prefer", "wait=0")];
    let refused = post(&second, chat, &at_once, r#"{"max_completion_tokens": 29000}"#).await;
    assert_eq!((refused.status, refused.problem().as_str()), (429, "quota-exceeded"));
    assert_eq!(refused.json()["violated-policies"], json!(["tokens"]));
    gate.add_permits(100);
    let (first, answer) = all.await.expect("a task");
    assert_eq!(answer.status, 200, "{answer:?}");
    let refunded = async |gateway: &Gateway| {
        let labels = [("limiter", "tokens"), ("direction", "refund")];
        gateway.metric("paceway_settled_permits_total", &labels).await
    };
    eventually("the call is settled", async || (refunded(&first).await == 28_880.0).then_some(()))
        .await;
    // At 500 tokens a second they would come back in 40 s.
    let answer = post(&second, chat, &at_once, r#"{"max_completion_tokens": 20000}"#).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = post(&second, chat, &[], "{}").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // The second call has reserved the default.
    eventually("both calls are settled", async || {
        (refunded(&second).await == 19_880.0 + 880.0).then_some(())
    })
    .await;
    let keys =
        vendor.calls().into_iter().map(|call| call.head.get("authorization").map(String::from));
    assert_eq!(keys.collect::<Vec<_>>(), vec![Some(format!("Bearer {SECRET}")); 3]);
}

/// The jobs of a CI wait for the quota of the hour, and for the pause that GitHub names, and none fails.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_wait_for_the_quota_and_the_pauses_of_github() {
    let calls = AtomicUsize::new(0);
    let vendor = Upstream::start(move |_| match calls.fetch_add(1, Relaxed) {
        0 => {
            reply("403 Forbidden", &[("X-RateLimit-Remaining", "4000"), ("Retry-After", "1")], "{}")
        }
        _ => reply("200 OK", &[JSON], "{}"),
    })
    .await;
    let gateway = Recipe::GitHub.start(&vendor, None).await;
    let start = Instant::now();
    let refused = gateway.get("/repos/a/b/actions/runs").await;
    assert_eq!(
        (refused.status, refused.field("paceway-attempts")),
        (200, Some("2")),
        "{refused:?}"
    );
    let write = post(&gateway, "/repos/a/b/issues", &[], "{}").await;
    assert_eq!(write.status, 200, "{write:?}");
    expect_served(get_all(&[&gateway], &["/repos/a/b/pulls"; 52]).await).await;

    assert_lawful(start, &vendor.arrivals(), 50.0, 4950.0 / 3600.0);
    let calls = vendor.calls();
    assert_eq!(calls.len(), 55, "two attempts of the first call, a write and 52 reads");
    let gap = calls[1].at - calls[0].at;
    // The pause begins when the gateway has the answer, a little after the vendor has the call.
    assert!(gap.as_millis() + 50 >= 1000, "{gap:?}");
    let granted = async |limiter: &str| {
        gateway.metric("paceway_granted_permits_total", &[("limiter", limiter)]).await
    };
    let (hourly, points) = (granted("hourly").await, granted("points").await);
    // A call that wakes late on a busy machine takes permits again.
    assert!(hourly >= 55.0, "{hourly}");
    assert_eq!(points - hourly, 4.0, "the write costs five points, and all other calls one");
    assert!(calls.iter().all(|call| call.head.get("authorization") == Some("Bearer hunter2")));
}

/// Users find a slot before an export that has queued seconds of work, and the export loses no call by that.
#[tokio::test(flavor = "multi_thread")]
async fn users_pass_before_a_batch_that_waits() {
    let vendor = Upstream::ok().await;
    let gateway = Recipe::Batch.start(&vendor, None).await;
    let start = Instant::now();
    let batch = get_all(&[&gateway], &["/export"; 200]).await;
    eventually("most of the batch waits", async || {
        (gateway.metric("paceway_waiting", &[("route", "export")]).await >= 90.0).then_some(())
    })
    .await;
    // The slots of the batch alone are more than the 2 s of a user ahead.
    expect_served(get_all(&[&gateway], &["/page"; 5]).await).await;
    assert!(gateway.metric("paceway_waiting", &[("route", "export")]).await >= 1.0);
    expect_served(batch).await;
    assert_lawful(start, &vendor.arrivals(), 1.0, 30.0);
    assert_eq!(vendor.calls().len(), 205);
}

/// A shop that has used up its own quota makes no other shop wait, through whichever gateway.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_shop_waits_and_the_others_do_not() {
    let (redis, vendor) = (Redis::start(), Upstream::ok().await);
    let first = Recipe::Shops.start(&vendor, Some(&redis)).await;
    let second = Recipe::Shops.start(&vendor, Some(&redis)).await;
    let start = Instant::now();
    let busy = get_all(&[&first, &second], &["/shops/busy/orders"; 8]).await;
    eventually("calls of the busy shop wait", async || {
        let waiting = async |gateway: &Gateway| gateway.metric("paceway_waiting", &[]).await;
        (waiting(&first).await + waiting(&second).await >= 2.0).then_some(())
    })
    .await;
    for gateway in [&first, &second] {
        let mut conn = gateway.ask("/shops/calm/orders", &[("Prefer", "wait=0")]).await;
        let answer = conn.answer().await.expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    expect_served(busy).await;
    let calls = vendor.calls();
    let of = |shop: &str| -> Vec<_> {
        let own = calls.iter().filter(|call| call.target.contains(shop));
        own.map(|call| call.at).collect()
    };
    assert_eq!((of("busy").len(), of("calm").len()), (8, 2));
    assert_lawful(start, &of("busy"), 2.0, 2.0);
    assert_lawful(start, &vendor.arrivals(), 40.0, 40.0);
}

/// The program gets its permits from the service, calls the vendor, and returns the points that its calls did not use.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_waits_for_its_permits_and_settles_its_costs() {
    let vendor = Upstream::start(|_| reply("200 OK", &[JSON], r#"{"cost": 12}"#)).await;
    let file = Recipe::Program.file();
    assert!(file.contains("127.0.0.1:8084"), "{file}");
    let gateway = Gateway::start(&file.replace("127.0.0.1:8084", "127.0.0.1:0")).await;
    let programs = blocks(PAGE, "python");
    assert_eq!(programs.len(), 1);
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("orders.py"), &programs[0]).expect("a file");
    let service = format!("http://{}", service_address(&gateway, "decisions"));
    let run = async |vendor: &str, pages: &str| {
        let mut python = Command::new("python3");
        python.args(["orders.py", &service, vendor, pages]).current_dir(dir.path());
        python.stdin(Stdio::null()).output().await.expect("python3, by `make test-tools`")
    };
    let start = Instant::now();
    let output = run(&vendor.url(), "12").await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "12 pages for 144 points\n");
    assert_eq!(vendor.calls().len(), 12);
    assert_lawful(start, &vendor.arrivals(), 5.0, 5.0);
    let labels = [("limiter", "points"), ("direction", "refund")];
    let settled = gateway.metric("paceway_settled_permits_total", &labels).await;
    assert_eq!(settled, 12.0 * (50.0 - 12.0));

    // A vendor that cannot be reached costs nothing.
    let level = async || gateway.limiter("points").await["level"].as_i64().expect("a level");
    let before = level().await;
    let closed = format!("http://127.0.0.1:{}", crate::support::free_port());
    let output = run(&closed, "1").await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let after = level().await;
    assert!(after >= before, "{after} of {before}");
}
