//! The description of the service in OpenAPI, and the programs of examples/decisions, against the real service.

use super::{post, service};
use crate::support::{Conn, request};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, env, process::Stdio};
use tokio::process::Command;

const DOCUMENT: &str = include_str!("../../../src/services/decisions/openapi.json");

fn names(schema: &Value) -> BTreeSet<String> {
    let fields = schema["properties"].as_object().into_iter().flatten();
    fields.map(|(name, _)| name.clone()).collect()
}

fn schema<'d>(document: &'d Value, content: &Value) -> &'d Value {
    let place = content["schema"]["$ref"].as_str().expect("a reference");
    document.pointer(place.trim_start_matches('#')).expect("a schema")
}

/// Each path answers its own example, and each field of an answer is one that the service gives.
#[tokio::test(flavor = "multi_thread")]
async fn each_path_and_each_field_of_the_document_exists() {
    let (_gateway, address) = service("").await;
    let mut conn = Conn::to(address).await.expect("connect");
    conn.send(request("GET", "/openapi.json", &[])).await.expect("send");
    let served = conn.answer().await.expect("a whole answer").json();
    let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
    assert_eq!(served, document);
    let call =
        json!({ "limiters": [{ "limiter": "few" }, { "limiter": "shop", "key": "a", "cost": 4 }] });
    let given = post(address, "/v1/acquire", &call).await.json();
    let refused = post(address, "/v1/acquire", &call).await.json();
    let permit = json!({ "limiter": "few", "key": null, "lease": given["lease"] });
    let costs = json!([{ "limiter": "shop", "key": "a", "cost": 3 }]);
    let settled = json!({ "reservation": given["reservation"], "limiters": costs });
    let waits = json!({ "limiters": [{ "limiter": "search", "key": null, "cost": 1 }], "wait": true, "max_wait_ms": 0 });
    for (path, body) in [
        ("/v1/acquire", waits),
        ("/v1/renew", permit.clone()),
        ("/v1/settle", settled),
        ("/v1/refund", json!({ "reservation": given["reservation"] })),
        ("/v1/release", permit),
    ] {
        let described = &document["paths"][path]["post"];
        let asked = schema(&document, &described["requestBody"]["content"]["application/json"]);
        let sent = body.as_object().expect("fields").keys().cloned().collect();
        assert_eq!(names(asked), sent, "{path} is asked with each of its fields");
        let answer = post(address, path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let mut said = answer.json().as_object().expect("fields").clone();
        if path == "/v1/acquire" {
            said.extend(given.as_object().cloned().unwrap_or_default());
        }
        let told = schema(&document, &described["responses"]["200"]["content"]["application/json"]);
        assert_eq!(names(told), said.keys().cloned().collect(), "{path}");
    }
    let required = document["components"]["schemas"]["Decision"]["required"].clone();
    let is_in = |said: &Value, name: &Value| said.get(name.as_str().unwrap_or_default()).is_some();
    for said in [&given, &refused] {
        let names = required.as_array().expect("names");
        assert!(names.iter().all(|name| is_in(said, name)), "{said}");
    }
    let paths = document["paths"].as_object().map(Map::len);
    assert_eq!(paths, Some(6), "a path is added here, too");
}

/// Schemathesis asks with examples, limits of each field and random bodies: no answer is a 5xx or breaks its schema.
#[tokio::test(flavor = "multi_thread")]
async fn schemathesis_finds_no_wrong_answer() {
    let (_gateway, address) = service(", max_wait: 50ms").await;
    let program =
        env::current_dir().expect("a directory").join("target/clients/python/bin/schemathesis");
    let dir = tempfile::tempdir().expect("a directory");
    let output = Command::new(program)
        .current_dir(dir.path())
        .args([
            "run",
            &format!("http://{address}/openapi.json"),
            "--url",
            &format!("http://{address}"),
        ])
        .args([
            "--checks",
            "not_a_server_error,response_schema_conformance,content_type_conformance",
        ])
        .args([
            "--phases",
            "examples,coverage,fuzzing",
            "--max-examples",
            "30",
            "--seed",
            "7",
            "--no-color",
        ])
        .args(["--generation-database", "none"])
        .stdin(Stdio::null())
        .output()
        .await
        .expect("schemathesis, by `make test-tools`");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Each of the programs gets 5 permits at once at 5/s, and waits for the others.
#[tokio::test(flavor = "multi_thread")]
async fn the_examples_take_permits() {
    let own = env::current_dir().expect("a directory").join("target/clients/python/bin");
    let path = format!("{}:{}", env::var("PATH").unwrap_or_default(), own.display());
    for (tool, args, file) in [
        ("python3", None, "acquire.py"),
        ("node", None, "acquire.mjs"),
        ("java", None, "Acquire.java"),
        ("go", Some("run"), "acquire.go"),
    ] {
        let (_gateway, address) = service(", token: hunter2").await;
        let output = Command::new(tool)
            .args(args)
            .arg(format!("examples/decisions/{file}"))
            .args([&format!("http://{address}"), "search", "8"])
            .env("PATH", &path)
            .env("PACEWAY_TOKEN", "hunter2")
            .stdin(Stdio::null())
            .output()
            .await;
        let output = match output {
            Ok(output) => output,
            // Not every machine has a JDK or Go, and `make test` does not install them.
            Err(error) if matches!(tool, "java" | "go") => {
                eprintln!("{tool}: {error}");
                continue;
            }
            Err(error) => panic!("{tool}: {error}; `make test` installs it"),
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{tool}: {said}{errors}");
        assert_eq!(
            said.lines().filter(|line| line.starts_with("answer ")).count(),
            8,
            "{tool}: {said}"
        );
    }
}
