use super::*;
use rstest::rstest;

fn tcp(host: &str, port: u16) -> Endpoint {
    Endpoint::tcp(host, port)
}

#[rstest]
#[case("redis://redis", tcp("redis", 6379), None, None, None)]
#[case("redis://redis/", tcp("redis", 6379), None, None, None)]
#[case("redis://10.0.0.1:7000/3", tcp("10.0.0.1", 7000), None, None, Some(3))]
#[case("redis://:p%40ss@[::1]:7000", tcp("::1", 7000), None, Some("p@ss"), None)]
#[case("redis://[::1]", tcp("::1", 6379), None, None, None)]
#[case("redis://ann:secret@redis:7000/0", tcp("redis", 7000), Some("ann"), Some("secret"), Some(0))]
#[case("redis://ann:@redis", tcp("redis", 6379), Some("ann"), Some(""), None)]
#[case("redis://:@redis", tcp("redis", 6379), None, None, None)]
#[case("redis://:a:b@c@redis", tcp("redis", 6379), None, Some("a:b@c"), None)]
#[case("unix:/run/redis.sock", Endpoint::Unix("/run/redis.sock".into()), None, None, None)]
#[case("unix:///run/redis.sock?database=2", Endpoint::Unix("/run/redis.sock".into()), None, None, Some(2))]
#[case("unix://:p@/run/a%20b.sock", Endpoint::Unix("/run/a b.sock".into()), None, Some("p"), None)]
fn reads_the_url_of_one_server(
    #[case] text: &str,
    #[case] endpoint: Endpoint,
    #[case] user: Option<&str>,
    #[case] password: Option<&str>,
    #[case] database: Option<u8>,
) {
    let url = RedisUrl::parse(text).expect("a URL");
    assert_eq!(*url.servers, Servers::One(endpoint));
    let Login { user: u, password: p } = &url.login;
    assert_eq!((u.as_deref(), p.as_deref()), (user, password));
    assert_eq!((url.database, url.tls), (database, None));
}

#[test]
fn reads_the_urls_of_several_servers() {
    let sentinels = |text| {
        let RedisUrl { servers, database, .. } = RedisUrl::parse(text).expect("a URL");
        let Servers::Sentinels { endpoints, master, login } = *servers else {
            panic!("{servers:?}")
        };
        (endpoints, master, login.user, login.password, database)
    };
    let endpoints = vec![tcp("a", 26379), tcp("b", 1)];
    assert_eq!(
        sentinels("redis-sentinel://a,b:1/mymaster"),
        (endpoints.clone(), "mymaster".into(), None, None, None)
    );
    assert_eq!(
        sentinels("redis-sentinel://:x@a,b:1/m/4?sentinel_user=u&sentinel_password=p%26"),
        (endpoints, "m".into(), Some("u".into()), Some("p&".into()), Some(4))
    );
    let cluster = RedisUrl::parse("redis-cluster://ann:p@a:7000,[::1]:7001").expect("a URL");
    assert_eq!(*cluster.servers, Servers::Cluster(vec![tcp("a", 7000), tcp("::1", 7001)]));
    assert!(!cluster.is_tls() && cluster.login.password.as_deref() == Some("p"));
    assert_eq!(cluster.to_string(), "the Cluster of a:7000,[::1]:7001");
}

#[rstest]
#[case("rediss://:p@a")]
#[case("rediss-sentinel://a/mymaster")]
#[case("rediss-cluster://a:7000,b:7000")]
fn a_url_asks_for_tls(#[case] text: &str) {
    let url = RedisUrl::parse(text);
    if cfg!(feature = "tls") {
        assert!(url.expect("a URL").is_tls());
    } else {
        let error = url.expect_err("TLS is left out");
        assert!(error.contains("add the feature `tls`"), "{error}");
    }
}

/// Each error says what to do, and none what was written.
#[rstest]
#[case("hunter2", "write `memory`")]
#[case("http://hunter2", "not a scheme")]
#[case("redis://", "names no host")]
#[case("redis://:hunter2@", "names no host")]
#[case("redis://:hunter2@:6379", "names no host")]
#[case("redis://:hunter2/x@redis", "`%2F` for `/`")]
#[case("redis://hunter2@redis", "`user:password`")]
#[case("redis://redis:hunter2", "its port")]
#[case("redis://redis:0", "its port")]
#[case("redis://::1:6379", "names no host")]
#[case("redis://fe80::1", "`[` and `]`")]
#[case("redis://:hunter2%zz@redis", "`%25`")]
#[case("redis://:hunter2%ff@redis", "UTF-8")]
#[case("redis://redis/256", "0 to 255")]
#[case("redis://redis/hunter2", "0 to 255")]
#[case("redis://a,b", "several servers")]
#[case("redis://:hunter?2@redis", "`%3F` for a `?`")]
#[case("redis://redis?hunter=2", "no option `hunter`")]
#[case("redis://redis hunter2", "a space")]
#[case("redis-cluster://a/1", "no databases but 0")]
#[case("redis-sentinel://a", "name that the Sentinels have")]
#[case("redis-sentinel://a/m?sentinel_user=hunter2", "no `sentinel_password`")]
#[case("redis-sentinel://a/m?password=hunter2", "no option `password`")]
#[case("unix:", "names no socket")]
#[case("unix:run/hunter2", "names no socket")]
#[case("unix://hunter2/a", "begins with `/`")]
#[case("unix:/a?database=hunter2", "0 to 255")]
fn refuses_texts_that_are_no_url(#[case] text: &str, #[case] reason: &str) {
    let error = RedisUrl::parse(text).expect_err("no URL");
    assert!(error.contains(reason), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn a_shown_url_hides_the_password() {
    for text in ["redis://u:hunter2@a", "redis-sentinel://:hunter2@a/m?sentinel_password=hunter2"] {
        let url = RedisUrl::parse(text).expect("a URL");
        let shown = format!("{url} {url:?} {:?}", url.login);
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
