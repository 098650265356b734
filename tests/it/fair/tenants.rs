//! The tenants that wait, as the admin side and `paceway top` show them.

use super::{Ordered, served};
use crate::support::paceway_in;
use serde_json::{Value, json};
use std::path::Path;

const TENANTS: &str = "limiters:
  vendor: { rate: 1/min, burst: 1, fair: { by: '{query.team}', weights: { a: 4 } } }
  shop: { rate: 1/min, burst: 1, key: '{header.x-shop}', fair: { by: '{header.authorization}' } }
  plain: 5/s
routes:
  - { name: x, suffix: /x, limiters: [vendor], max_wait: 1h }
  - { name: low, suffix: /low, limiters: [vendor], priority: low, max_wait: 1h }
  - { name: shop, suffix: /shop, limiters: [shop], max_wait: 1h }
  - { name: plain, suffix: /plain, limiters: [plain], max_wait: 1h }
";

/// The rows of a page about tenants, as tenant, weight, priority and waiting requests.
fn rows(page: &Value) -> Vec<Value> {
    let all = page["tenants"].as_array().unwrap_or_else(|| panic!("no tenants: {page}"));
    let row = |row: &Value| json!([row["tenant"], row["weight"], row["priority"], row["waiting"]]);
    all.iter().map(row).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_lists_the_tenants_that_wait() {
    let ordered = Ordered::start(TENANTS).await;
    served(ordered.ask("/x?team=b", &[], 1)).await;
    let _waiting = [
        ordered.ask("/x?team=a", &[], 5),
        ordered.ask("/x?team=b", &[], 3),
        ordered.ask("/low?team=a", &[], 2),
        ordered.ask("/x", &[], 1),
    ];
    ordered.until_asked(12).await;
    let gateway = &ordered.gateway;
    let page = gateway.page("/limiters/vendor/tenants").await.json();
    let expected = [
        json!(["a", 4, "normal", 5]),
        json!(["b", 1, "normal", 3]),
        json!(["a", 4, "low", 2]),
        json!(["-", 1, "normal", 1]),
    ];
    assert_eq!(rows(&page), expected, "{page}");
    assert_eq!(
        (&page["waiting"], &page["total"], &page["by"]),
        (&json!(11), &json!(4), &json!("{query.team}"))
    );
    let one = gateway.page("/limiters/vendor/tenants?limit=1").await.json();
    assert_eq!((rows(&one).len(), &one["total"]), (1, &json!(4)));
    let status = gateway.page("/status").await.json();
    assert_eq!(rows(&status), expected, "{status}");
    let top =
        paceway_in(Path::new("."), &["top", "--once", "--admin", &gateway.admin.to_string()], &[]);
    let text = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(text.contains("TENANT") && text.contains("normal"), "{text}");
}

/// Tenants by a credential are hashes wherever they are shown. Each bucket has tenants of its own.
#[tokio::test(flavor = "multi_thread")]
async fn each_key_has_its_own_tenants_and_secrets_are_hashed() {
    let ordered = Ordered::start(TENANTS).await;
    let gateway = &ordered.gateway;
    const FIELDS: &[(&str, &str)] = &[("X-Shop", "acme"), ("Authorization", "Bearer hunter2")];
    served(ordered.ask("/shop", FIELDS, 1)).await;
    let _waiting = ordered.ask("/shop", FIELDS, 2);
    ordered.until_asked(3).await;
    let page = gateway.page("/limiters/shop/tenants?key=acme").await.json();
    let [row] = &rows(&page)[..] else { panic!("one: {page}") };
    let tenant = row[0].as_str().expect("a name").to_owned();
    assert!(tenant.starts_with("%23") && row[3] == 2, "{page}");
    let other = gateway.page("/limiters/shop/tenants?key=bolt").await.json();
    assert_eq!(rows(&other), [json!(null); 0]);
    let line = gateway.line("/shop").await;
    assert_eq!((&line["tenant"], &line["priority"]), (&json!(tenant), &json!("normal")));
    for (path, status) in [
        ("/limiters/shop/tenants", 400),
        ("/limiters/vendor/tenants?key=acme", 400),
        ("/limiters/vendor/tenants?limit=0", 400),
        ("/limiters/plain/tenants", 400),
        ("/limiters/none/tenants", 404),
    ] {
        assert_eq!(gateway.page(path).await.status, status, "{path}");
    }
    let (out, err) = gateway.output();
    assert!(out.iter().chain(&err).all(|line| !line.contains("hunter2")));
}
