use super::*;
use rstest::rstest;

fn config(limiter: &str, cost: i64) -> Config {
    let text = format!(
        "upstream: http://a\nroutes: [{{ suffix: '*', limiters: [{{ limiter: shop, cost: {cost} }}] }}]\n\
         limiters: {{ shop: {{ rate: 10/s, key: '{{header.x-shop}}', rates_from: {{ file: a.yaml }}{limiter} }} }}\n"
    );
    Config::parse(&text, "test.yaml", Path::new("."), &|_| None).expect("a config")
}

fn row(key: &str, rate: &str, former: Option<&str>) -> RateRow {
    let (key, rate, former) = (key.into(), rate.into(), former.map(Into::into));
    RateRow { key, rate, former, number: 7 }
}

fn with(config: Config, rows: Vec<RateRow>, edits: &[ConfigEdit]) -> LimiterConfig {
    let tables = RateTables::from([("shop".into(), rows.into())]);
    config.with_rates(&tables, edits).limiters[0].clone()
}

fn count(limiter: &LimiterConfig, key: &str) -> u64 {
    limiter.of_key(Some(key)).rates[0].count
}

fn reasons(limiter: &LimiterConfig) -> Vec<&str> {
    limiter.unfit_rows.iter().map(|own| own.reason.as_str()).collect()
}

#[test]
fn rows_replace_rates_of_the_file_and_add_some() {
    let own = config(", rates: { acme: 20/s, own: 30/s, 'plus-*': 40/s }", 1);
    let rows = vec![row("acme", "50/s", None), row("new", "60/s", None), row("p*", "70/s", None)];
    let limiter = with(own, rows, &[]);
    let counts = ["acme", "own", "new", "plus-1", "p-1", "other"].map(|key| count(&limiter, key));
    assert_eq!(counts, [50, 30, 60, 40, 70, 10]);
    assert_eq!((limiter.key_rates.len(), reasons(&limiter)), (5, Vec::<&str>::new()));
}

/// The operator's rate counts whatever a row says, and other rows stay.
#[test]
fn the_rate_of_an_operator_counts_before_that_of_a_row() {
    let rates = vec!["5/s".into()];
    let edit = ConfigEdit::Rates { limiter: "shop".into(), key: Some("acme".into()), rates };
    let config = config("", 1).edited(std::slice::from_ref(&edit)).expect("a config");
    let edits = [edit];
    let rows = vec![row("acme", "50/s", None), row("b", "60/s", None)];
    let limiter = with(config.clone(), rows, &edits);
    assert_eq!(["acme", "b"].map(|key| count(&limiter, key)), [5, 60]);
    // A mistake is reported meanwhile, and the last valid rate is known when the operator's ends.
    let limiter = with(config, vec![row("acme", "30/sek", Some("30/s"))], &edits);
    assert_eq!((count(&limiter, "acme"), limiter.unfit_rows.len()), (5, 1));
    assert!(limiter.unfit_rows[0].has_former);
}

#[rstest]
#[case::a_unit("5/fortnight", None, 10, "line 7, key `acme`: `5/fortnight` has the unknown unit")]
#[case::the_last_one_stays("0/s", Some("20/s"), 20, "line 7, key `acme`: `0/s` allows nothing")]
#[case::the_last_one_is_no_better("0/s", Some("x"), 10, "line 7, key `acme`: `0/s` allows nothing")]
#[case::a_cost(
    "2/s",
    Some("30/s"),
    30,
    "line 7, key `acme`: a request costs at least 3 of `shop`, and 2/s"
)]
#[case::a_variable("${HOME}", None, 10, "line 7, key `acme`: `${HOME}` is not a rate")]
fn a_row_with_a_mistake_is_left_out(
    #[case] rate: &str,
    #[case] former: Option<&str>,
    #[case] expected: u64,
    #[case] reason: &str,
) {
    let limiter = with(config("", 3), vec![row("acme", rate, former), row("b", "60/s", None)], &[]);
    assert_eq!(["acme", "b"].map(|key| count(&limiter, key)), [expected, 60]);
    assert_eq!(reasons(&limiter).len(), 1);
    assert!(reasons(&limiter)[0].starts_with(reason), "{:?}", reasons(&limiter));
    assert_eq!(limiter.unfit_rows[0].has_former, expected != 10);
}

#[test]
fn a_key_has_one_row_and_patterns_are_few() {
    let twice = with(config("", 1), vec![row("a", "1/s", None), row("a", "2/s", None)], &[]);
    assert_eq!(count(&twice, "a"), 1);
    assert_eq!(reasons(&twice), ["line 7, key `a`: names a key that has a rate already"]);
    let patterns = (0..100).map(|i| row(&format!("p{i}-*"), "20/s", None)).collect();
    let many = with(config(", rates: { 'own-*': 3/s }", 1), patterns, &[]);
    assert_eq!((many.key_rates.len(), many.unfit_rows.len()), (100, 1));
}

/// The keys of a limiter may be credentials.
#[test]
fn no_message_quotes_a_credential() {
    let text = "upstream: http://a\nroutes: [{ suffix: '*' }]\nlimiters: { shop: { rate: 10/s, \
                key: '{header.authorization}', rates_from: { file: a.yaml } } }\n";
    let config = Config::parse(text, "t", Path::new("."), &|_| None).expect("a config");
    let key = config.limiters[0].key.clone().expect("a key").canonical_name("Bearer hunter2");
    let rows = vec![row("Bearer hunter2", "20/s", None), row("20/s", "Bearer hunter3", None)];
    let limiter = with(config, rows, &[]);
    assert_eq!(count(&limiter, &key), 20);
    assert!(
        reasons(&limiter)[0].starts_with("line 7: `***` is not a rate"),
        "{:?}",
        reasons(&limiter)
    );
}

/// The reader of the file does not know whether the keys of its limiter are credentials.
#[rstest]
#[case::two_rates("hunter2: 5/s: 6/s", "line 1: this is not YAML")]
#[case::an_alias("a: 1/s\n*hunter2: 5/s", "write quotes around a key that begins with `*`")]
#[case::an_address("hunter2: [::]:80", "line 1")]
#[case::a_template("{{hunter2}}: 5/s", "line 1")]
#[case::no_end("'hunter2: 5/s", "line 1")]
#[case::twice("hunter2: 5/s\nhunter2: 6/s", "line 2: written twice")]
#[case::a_list("hunter2: [5/s]", "line 1: a key must have one rate")]
fn no_mistake_of_a_file_quotes_it(#[case] text: &str, #[case] said: &str) {
    let reason = RateRow::read_file(text).expect_err("a mistake");
    assert!(!reason.contains("hunter2") && reason.contains(said), "{reason}");
}

#[rstest]
#[case::yaml("acme: 20/s\n'b c': 10/min\nnone:\n", Ok(2))]
#[case::json("{ \"acme\": \"20/s\", \"b\": \"10/min\" }", Ok(2))]
#[case::no_keys("{}", Ok(0))]
#[case::nothing("", Err("is empty; write `{}` for no rates"))]
#[case::comments("# a list\n\n", Err("is empty"))]
#[case::a_list("[20/s]", Err("is no map of keys and rates"))]
#[case::a_list_of_rates("a: [1/s, 2/min]", Err("line 1: a key must have one rate"))]
#[case::twice("a: 1/s\na: 2/s", Err("line 2: written twice"))]
#[case::no_yaml("a: {", Err("line 1: this is not YAML"))]
#[case::a_secret("a: ${file:/etc/passwd}", Err("line 1: `${` has no meaning"))]
fn a_file_is_a_map_of_keys_and_rates(#[case] text: &str, #[case] expected: Result<usize, &str>) {
    match (RateRow::read_file(text), expected) {
        (Ok(rows), Ok(count)) => assert_eq!(rows.len(), count),
        (Err(reason), Err(start)) => assert!(reason.starts_with(start), "{reason}"),
        (read, _) => panic!("{read:?}"),
    }
}

#[test]
fn a_file_has_a_hundred_thousand_keys() {
    let text = |count| (0..count).map(|i| format!("shop-{i}: {}/h\n", i % 500 + 1)).collect();
    let text: fn(usize) -> String = text;
    assert_eq!(RateRow::read_file(&text(MOST_RATES)).map(|rows| rows.len()), Ok(MOST_RATES));
    assert!(RateRow::read_file(&text(MOST_RATES + 1)).is_err());
}
