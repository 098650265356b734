//! `paceway demo`: a vendor with a quota, a gateway before it, and a story to paste.

use super::{address, said};
use crate::support::{Gateway, eventually, get, paceway};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_vendor_refuses_no_request_of_the_gateway() {
    let demo = Gateway::demo(&["--port", "0", "--admin-port", "0", "--vendor-port", "0"]).await;
    let out = eventually("all is printed", async || {
        let out = demo.output().0.join("\n");
        out.contains("Ctrl-C").then_some(out)
    })
    .await;
    let vendor = address(&out, "# A pretend vendor");
    let gateway = address(&out, "# The gateway before it");
    assert_eq!(gateway, demo.listen);
    assert!(out.starts_with("# The dashboard"), "{out}");
    for line in ["# The dashboard", "# The state and the metrics"] {
        assert_eq!(address(&out, line), demo.admin);
    }
    for address in [vendor, gateway] {
        let line = |line: &str| line.contains("; do curl ") && line.contains(&address.to_string());
        let printed = out.lines().any(line);
        assert!(printed, "a line to try with {address} in\n{out}");
    }

    // The vendor counts arrivals. A slot is a window and the margin, 1.1 s, after that of the call five before, or it is
    // the instant of asking. When the machine stalls and a call comes more than the margin after its slot, the vendor may
    // refuse the fifth call after it: that says nothing about the gateway, and the test tries again.
    let mut slots: Vec<Instant> = Vec::new();
    let mut latest = Duration::ZERO;
    for attempt in 1.. {
        assert!(attempt <= 10, "the machine stalled ten times");
        let mut statuses = Vec::new();
        for _ in 0..20 {
            let asked = Instant::now();
            let before = slots.len().checked_sub(5).map(|i| slots[i]);
            let slot = before.map_or(asked, |slot| asked.max(slot + Duration::from_millis(1100)));
            statuses.push(get(gateway, "/search").await.status);
            latest = latest.max(slot.elapsed());
            slots.push(slot);
        }
        if statuses == [200; 20] {
            break;
        }
        assert!(latest > Duration::from_millis(100), "{statuses:?}, at most {latest:?} late");
    }

    let refused = eventually("the vendor refuses who comes straight to it", async || {
        let answer = get(vendor, "/search").await;
        (answer.status == 429).then_some(answer)
    })
    .await;
    assert_eq!(refused.field("paceway-origin"), None);
    let metrics = get(demo.admin, "/metrics").await.text();
    assert!(metrics.contains("paceway_requests_total"), "{metrics}");
    eventually("the dashboard has something to show", async || {
        let said = get(demo.admin, "/requests").await.json();
        let all = said["requests"].as_array().expect("requests");
        all.iter().any(|one| one["decision"] == "held" && one["key"] == "acme").then_some(())
    })
    .await;
}

/// Runs the commands that `demo` printed, as a user pastes them into a terminal; returns each line of statuses, and how
/// long all took.
fn pasted(text: &str) -> (Vec<Vec<u16>>, Duration) {
    let started = Instant::now();
    let ran = std::process::Command::new("sh").args(["-c", text]).output().expect("a shell");
    let (out, err) =
        [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).into();
    assert_eq!(err.lines().find(|line| line.contains("not found")), None, "{err}");
    let statuses = |line: &str| -> Option<Vec<u16>> {
        line.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    let lines: Vec<_> = out.lines().filter_map(statuses).filter(|all| !all.is_empty()).collect();
    (lines, started.elapsed())
}

/// All that is printed, and then its loops in the other order, without a pause anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_demo_work_in_any_order() {
    let demo = Gateway::demo(&["--port", "0", "--admin-port", "0", "--vendor-port", "0"]).await;
    let out = eventually("all is printed", async || {
        let out = demo.output().0.join("\n");
        out.contains("Ctrl-C").then_some(out)
    })
    .await;
    let loops: Vec<_> = out.lines().filter(|line| line.starts_with("for ")).collect();
    let [direct, paced] = loops[..] else { panic!("two loops in {out}") };
    let turned = [paced, direct].join("\n");
    // Where the machine stalls for over 100 ms the vendor may count a paced call with later ones.
    for attempt in 1.. {
        let mut stories = Vec::new();
        for (text, order) in [(&out, [0, 1]), (&turned, [1, 0])] {
            let (lines, took) = tokio::task::block_in_place(|| pasted(text));
            assert_eq!(lines.len(), 2, "{lines:?}");
            let [direct, paced] = order.map(|i| lines[i].clone());
            // Five in each second that has begun.
            let passed = direct.iter().filter(|status| **status == 200).count();
            let most = 5 * (took.as_secs() as usize + 1);
            assert!((5..=most).contains(&passed), "{passed} in {took:?}: {direct:?}");
            assert!(direct.iter().all(|status| [200, 429].contains(status)), "{direct:?}");
            assert_eq!(direct.len(), 20);
            stories.push(paced);
        }
        if stories == [[200; 20]; 2] {
            break;
        }
        assert!(attempt < 5, "the gateway does not pace them: {stories:?}");
    }
    // The call that shows headers is among what was pasted.
    let passed = demo.count("all", "passed").await + demo.count("all", "waited").await;
    assert!(passed >= 41.0, "{passed}");
}

#[test]
fn the_demo_names_an_occupied_port() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    for (option, others) in [
        ("--port", ["--admin-port", "--vendor-port"]),
        ("--admin-port", ["--port", "--vendor-port"]),
        ("--vendor-port", ["--port", "--admin-port"]),
    ] {
        let args = ["demo", option, &port, others[0], "0", others[1], "0"];
        let (code, _, err) = said(&paceway(&args));
        assert_eq!(code, Some(1), "{err}");
        assert!(err.lines().last().is_some_and(|line| line.contains(&port)), "{err}");
    }
}

/// The callers of the demo itself are not waited for, and the operator reads what is.
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_names_the_requests_that_delay_its_end() {
    let mut demo = Gateway::demo(&["--port", "0", "--admin-port", "0", "--vendor-port", "0"]).await;
    eventually("callers wait", async || {
        let all = ["catalog", "orders", "exports"];
        let mut waiting = 0.0;
        for route in all {
            waiting += demo.metric("paceway_waiting", &[("route", route)]).await;
        }
        (waiting > 0.0).then_some(())
    })
    .await;
    demo.signal("INT");
    eventually("it is said", async || {
        let out = demo.output().0.join("\n");
        out.contains("Calls from other terminals that run or wait end first").then_some(())
    })
    .await;
    assert_eq!(demo.end().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_ctrl_c_ends_the_demo_at_once() {
    let mut demo = Gateway::demo(&["--port", "0", "--admin-port", "0", "--vendor-port", "0"]).await;
    // Calls of another program, some of which wait for longer than the test does.
    let mut callers = Vec::new();
    for _ in 0..60 {
        callers.push(demo.ask("/search", &[]).await);
    }
    eventually("calls wait", async || {
        let waiting = demo.metric("paceway_waiting", &[("route", "all")]).await;
        (waiting > 20.0).then_some(())
    })
    .await;
    demo.signal("INT");
    eventually("it drains", async || {
        demo.events().iter().any(|event| event["message"] == "the gateway drains").then_some(())
    })
    .await;
    demo.signal("INT");
    assert_eq!(demo.end().await.code(), Some(1));
}
