//! The rates of quotas that headers of an answer name: `x-amzn-RateLimit-Limit`, `RateLimit-Policy`, and the limits with a
//! window of other families. A limit without its window is no rate.

use super::{
    Style,
    dialect::{HeaderPart, KnownHeader, MAX_BUCKETS, permits_of},
    structured::{self, StructuredQuota},
    time::{self, number},
};
use crate::algorithm::nanohertz::{MAX_RATE, MIN_RATE, Nanohertz, nanohertz};
use http::HeaderMap;
use paceway_limit::Rate;
use std::time::Duration;

/// A quota whose rate an answer names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaRate {
    /// The vendor's name for it; empty if it has none.
    name: String,
    /// The rate, in permits in 10^9 s.
    pub rate: Nanohertz,
    /// The period of the quota; `None` if the header names permits a second.
    window: Option<Duration>,
}

/// Reads the rates that headers name, each once.
pub(super) fn read(headers: &HeaderMap, style: Style) -> Vec<QuotaRate> {
    let (mut all, mut others) = (Vec::new(), Vec::new());
    for (name, value) in headers {
        let Some(header) = KnownHeader::of(name.as_str()) else { continue };
        let Some(text) = value.to_str().ok().filter(|_| style.reads(header.family)) else {
            continue;
        };
        let quotas = match header.part {
            HeaderPart::Rate => {
                let rate = permits_a_second(text.trim());
                let named = |rate| QuotaRate { name: String::new(), rate, window: None };
                all.extend(rate.map(named));
                continue;
            }
            HeaderPart::Structured => structured::limits(text),
            // `RateLimit-Limit: 100, 100;w=60`: the drafts before 06 put the policy after the limit.
            HeaderPart::Policy | HeaderPart::Limit => structured::policies(text),
            HeaderPart::LimitsOfWindows => text.split(',').filter_map(of_window).collect(),
            _ => continue,
        };
        let quotas = quotas.into_iter().take(MAX_BUCKETS);
        let (other, own): (Vec<_>, Vec<_>) = quotas.partition(|quota| quota.is_of_other_unit);
        others.extend(other.into_iter().map(|quota| quota.name));
        all.extend(own.into_iter().filter_map(QuotaRate::of));
    }
    // One of the fields that name a quota has its unit.
    all.retain(|own: &QuotaRate| !others.contains(&own.name));
    let mut rates: Vec<QuotaRate> = Vec::new();
    for own in all {
        if !rates.contains(&own) {
            rates.push(own);
        }
    }
    rates
}

/// The rate of the quota that a limiter keeps with the rate `start`: the only one if the answer `is_for_one` limiter, or else
/// the one of its name, or of its period. `None` if none or several are.
pub(crate) fn rate_for(
    quotas: &[QuotaRate],
    limiter: &str,
    start: &Rate,
    is_for_one: bool,
) -> Option<Nanohertz> {
    if let ([only], true) = (quotas, is_for_one) {
        return Some(only.rate);
    }
    let only = |is_of: &dyn Fn(&&QuotaRate) -> bool| {
        let mut fitting = quotas.iter().filter(is_of);
        fitting.next().filter(|_| fitting.next().is_none()).map(|own| own.rate)
    };
    let named = only(&|own| !own.name.is_empty() && own.name.eq_ignore_ascii_case(limiter));
    named.or_else(|| only(&|own| own.window == Some(start.period)))
}

/// Reads a number of permits a second. One below 1 is rounded by vendors, 1/60 to `0.0167`: the next whole number of seconds is
/// taken if it is written alike.
fn permits_a_second(text: &str) -> Option<Nanohertz> {
    let rate = number(text).filter(|rate| *rate > 0.0)?;
    let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len().min(12));
    let seconds = (1.0 / rate).ceil();
    let is_alike = format!("{:.digits$}", 1.0 / seconds) == format!("{rate:.digits$}");
    let rate = if is_alike { 1.0 / seconds } else { rate };
    plausible((rate * nanohertz(1, 1_000_000) as f64) as Nanohertz)
}

/// `10:100`: permits, and the seconds of their window.
fn of_window(pair: &str) -> Option<StructuredQuota> {
    let (permits, window) = pair.split_once(':')?;
    let (limit, window) = (permits_of(permits), number(window).and_then(time::seconds));
    Some(StructuredQuota { limit, window, ..StructuredQuota::default() })
}

fn plausible(rate: Nanohertz) -> Option<Nanohertz> {
    (MIN_RATE..=MAX_RATE).contains(&rate).then_some(rate)
}

// === impl QuotaRate ===

impl QuotaRate {
    fn of(quota: StructuredQuota) -> Option<Self> {
        let window = quota.window.filter(|window| !window.is_zero())?;
        let period = i64::try_from(window.as_micros()).ok()?;
        let rate = plausible(nanohertz(i64::try_from(quota.limit?).ok()?, period))?;
        Some(Self { name: quota.name, rate, window: Some(window) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use rstest::rstest;

    const SECOND: Nanohertz = 1_000_000_000;

    fn rates(style: Style, lines: &[&str]) -> Vec<QuotaRate> {
        let fields = lines.iter().map(|line| {
            let (name, value) = line.split_once(": ").expect("a field");
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            (name, HeaderValue::from_str(value).expect("a value"))
        });
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value);
        }
        read(&headers, style)
    }

    #[rstest]
    #[case::amazon("x-amzn-ratelimit-limit: 2.5", Some(5 * SECOND / 2))]
    #[case::amazon_once_a_minute("x-amzn-ratelimit-limit: 0.0167", Some(16_666_666))]
    #[case::amazon_once_in_three_minutes("x-amzn-ratelimit-limit: 0.0055", Some(5_494_505))]
    #[case::amazon_twelve_seconds("x-amzn-ratelimit-limit: 0.083", Some(83_000_000))]
    #[case::half_a_second("x-amzn-ratelimit-limit: 0.5", Some(SECOND / 2))]
    #[case::a_policy("ratelimit-policy: \"x\";q=100;w=60", Some(1_666_666_666))]
    #[case::an_older_policy("ratelimit-policy: 100;w=10", Some(10 * SECOND))]
    #[case::an_old_limit("ratelimit-limit: 100, 100;w=10", Some(10 * SECOND))]
    #[case::a_window("x-app-rate-limit: 100:10", Some(10 * SECOND))]
    #[case::a_policy_of_requests(
        "ratelimit-policy: \"x\";q=100;qu=\"requests\";w=60",
        Some(1_666_666_666)
    )]
    #[case::bytes("ratelimit-policy: \"x\";q=100;qu=\"content-bytes\";w=60", None)]
    #[case::calls_at_a_time("ratelimit-policy: \"x\";q=100;qu=concurrent-requests;w=60", None)]
    #[case::requests_beside_bytes(
        "ratelimit-policy: \"b\";q=9;qu=\"content-bytes\";w=1, \"r\";q=100;w=10", Some(10 * SECOND)
    )]
    #[case::no_window("ratelimit-limit: 100", None)]
    #[case::no_window_of_a_policy("ratelimit-policy: \"x\";q=100", None)]
    #[case::a_limit_alone("x-ratelimit-limit: 100", None)]
    #[case::nothing("x-amzn-ratelimit-limit: 0", None)]
    #[case::negative("x-amzn-ratelimit-limit: -1", None)]
    #[case::text("x-amzn-ratelimit-limit: many", None)]
    #[case::endless("x-amzn-ratelimit-limit: 1e300", None)]
    #[case::no_number("x-amzn-ratelimit-limit: NaN", None)]
    #[case::a_window_of_nothing("ratelimit-policy: \"x\";q=100;w=0", None)]
    #[case::a_quota_of_nothing("ratelimit-policy: \"x\";q=0;w=60", None)]
    fn a_rate_is_read_with_its_window(#[case] line: &str, #[case] expected: Option<Nanohertz>) {
        let found = rates(Style::Auto, &[line]);
        assert_eq!(found.first().map(|own| own.rate), expected, "{found:?}");
    }

    #[test]
    fn a_style_reads_its_own_headers() {
        assert_eq!(rates(Style::Ietf, &["x-amzn-ratelimit-limit: 2"]), []);
    }

    #[test]
    fn the_unit_of_a_quota_holds_for_each_of_its_fields() {
        let lines = [
            "ratelimit: \"b\";q=9;w=1;r=3, \"r\";q=100;w=10;r=5",
            "ratelimit-policy: \"b\";q=9;qu=\"content-bytes\";w=1",
        ];
        let found = rates(Style::Auto, &lines);
        assert_eq!(found.iter().map(|own| &*own.name).collect::<Vec<_>>(), ["r"]);
    }

    #[rstest]
    #[case::one(&["ratelimit-limit: 10, 10;w=1", "ratelimit-policy: 10;w=1"], "x", 60, true, Some(10))]
    #[case::one_for_two_limiters(&["ratelimit-policy: 10;w=1"], "x", 60, false, None)]
    #[case::by_period(&["ratelimit-policy: 10;w=1, 120;w=60"], "x", 60, true, Some(2))]
    #[case::by_name(&["ratelimit-policy: \"a\";q=10;w=1, \"b\";q=120;w=60"], "A", 60, true, Some(10))]
    #[case::none(&["ratelimit-policy: 10;w=1, 120;w=60"], "x", 3_600, true, None)]
    #[case::two_of_a_period(&["ratelimit-policy: 60;w=60, 120;w=60"], "x", 60, true, None)]
    #[case::two_rates(&["x-amzn-ratelimit-limit: 2", "x-amzn-ratelimit-limit: 3"], "x", 1, true, None)]
    fn the_quota_of_a_limiter_is_found(
        #[case] lines: &[&str],
        #[case] limiter: &str,
        #[case] period: u64,
        #[case] is_for_one: bool,
        #[case] expected: Option<Nanohertz>,
    ) {
        let start = Rate { count: 1, period: Duration::from_secs(period) };
        let found = rate_for(&rates(Style::Auto, lines), limiter, &start, is_for_one);
        assert_eq!(found, expected.map(|rate| rate * SECOND));
    }
}
