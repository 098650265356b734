//! The quota headers of real upstreams, each family in its own units. Values without sense are left out: -1, NaN, text.

use super::{
    QuotaReport, Style,
    structured::{self, StructuredQuota},
    style::Family,
    time::{self, UpstreamClock, number},
};
use http::HeaderMap;
use std::{borrow::Cow, time::Duration};

/// The quotas in the head of one answer.
#[derive(Debug, Default)]
pub(super) struct HeadQuotas {
    buckets: Vec<HeadBucket>,
    /// The time in which the upstream grants one call, from a header that names a rate.
    pub(super) pace: Option<Duration>,
}

/// One quota, as far as headers describe it.
#[derive(Debug)]
struct HeadBucket {
    family: Family,
    name: Cow<'static, str>,
    limit: Option<u64>,
    /// The permits that remain; `Some(None)` if the header has no sense.
    remaining: Option<Option<u64>>,
    used: Option<u64>,
    window: Option<Duration>,
    reset: Option<Duration>,
    /// Whether it counts something else than requests.
    is_of_other_unit: bool,
}

/// The parts of a quota that a header may hold.
pub(super) enum HeaderPart {
    Limit,
    Remaining,
    Used,
    /// A duration or an instant, by its form.
    Reset,
    /// A duration in seconds, which is more precise than the instant beside it.
    ResetAfter,
    ResetMillis,
    WindowMillis,
    /// `32/40`: used and limit.
    UsedOfLimit,
    /// `10:10,100:120`: limits with their windows.
    LimitsOfWindows,
    /// `3:10,3:120`: used in each window.
    UsedOfWindows,
    /// `api-usage=25/5000`.
    UsageOfLimit,
    /// Permits a second.
    Rate,
    /// `RateLimit` and `RateLimit-Policy`.
    Structured,
    Policy,
}

/// A header about a quota: its family, the name of its quota, and the part that it holds.
pub(super) struct KnownHeader<'n> {
    pub(super) family: Family,
    bucket: &'n str,
    pub(super) part: HeaderPart,
}

/// The most quotas of one answer. Anthropic's has four.
pub(super) const MAX_BUCKETS: usize = 16;
/// A greater number of permits has no sense.
const MOST: f64 = 1e15;
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// Headers of Azure, whose zeros mean unknown.
const AZURE: [&str; 3] = ["apim-request-id", "x-ms-region", "azureml-model-session"];

// === impl HeadQuotas ===

impl HeadQuotas {
    /// Reads the headers of an answer, in one pass.
    pub(super) fn read(headers: &HeaderMap, style: Style, clock: &UpstreamClock<'_>) -> Self {
        let mut quotas = Self::default();
        for (name, value) in headers {
            let Some(header) = KnownHeader::of(name.as_str()) else { continue };
            if let Ok(text) = value.to_str()
                && style.reads(header.family)
            {
                quotas.take(header, text.trim(), clock);
            }
        }
        // A quota of nothing is one that the upstream does not know, whatever else it says about it.
        quotas.buckets.retain(|bucket| bucket.limit != Some(0));
        let is_azure = || match style {
            Style::Azure => true,
            Style::Auto => AZURE.iter().any(|name| headers.contains_key(*name)),
            _ => false,
        };
        let is_zero = |bucket: &HeadBucket| bucket.remaining == Some(Some(0));
        if quotas.buckets.iter().any(is_zero) && is_azure() {
            quotas.buckets.retain(|bucket| !is_zero(bucket));
        }
        quotas
    }

    fn take(&mut self, header: KnownHeader<'_>, text: &str, clock: &UpstreamClock<'_>) {
        let KnownHeader { family, bucket, part } = header;
        match part {
            HeaderPart::Rate => {
                let pace = number(text).filter(|rate| *rate > 0.0).map(|rate| 1.0 / rate);
                self.pace = pace.and_then(time::seconds);
            }
            HeaderPart::Structured => {
                structured::limits(text).into_iter().for_each(|quota| self.merge(quota));
            }
            HeaderPart::Policy => {
                structured::policies(text).into_iter().for_each(|quota| self.merge(quota));
            }
            HeaderPart::LimitsOfWindows | HeaderPart::UsedOfWindows => {
                for pair in text.split(',').take(MAX_BUCKETS) {
                    let Some((permits, window)) = pair.split_once(':') else { continue };
                    let name = format!("{bucket}{}", window.trim());
                    let Some(bucket) = self.bucket(family, name.into()) else { continue };
                    bucket.window = number(window).and_then(time::seconds);
                    match part {
                        HeaderPart::UsedOfWindows => bucket.used = permits_of(permits),
                        _ => bucket.limit = permits_of(permits),
                    }
                }
            }
            _ => {
                let Some(bucket) = self.bucket(family, interned(bucket)) else { return };
                bucket.set(part, text, clock);
            }
        }
    }

    /// Returns the bucket of this name, which is made if there is room for it.
    fn bucket(&mut self, family: Family, name: Cow<'static, str>) -> Option<&mut HeadBucket> {
        let found = self.buckets.iter().position(|own| own.family == family && own.name == name);
        if found.is_none() {
            if self.buckets.len() >= MAX_BUCKETS {
                return None;
            }
            self.buckets.push(HeadBucket::new(family, name));
        }
        match found {
            Some(found) => self.buckets.get_mut(found),
            None => self.buckets.last_mut(),
        }
    }

    /// Adds a quota of a structured field to the one of its name.
    fn merge(&mut self, quota: StructuredQuota) {
        let Some(bucket) = self.bucket(Family::Ietf, interned(&quota.name)) else { return };
        bucket.limit = bucket.limit.or(quota.limit);
        bucket.remaining = bucket.remaining.or(quota.remaining.map(Some));
        bucket.window = bucket.window.or(quota.window);
        bucket.reset = bucket.reset.or(quota.reset);
        bucket.is_of_other_unit |= quota.is_of_other_unit;
    }

    /// The quotas of requests of which the head says how much remains.
    pub(super) fn reports(&self) -> impl Iterator<Item = QuotaReport> {
        let of_requests = self.buckets.iter().filter(|bucket| !bucket.is_of_other_unit);
        of_requests.filter_map(HeadBucket::report)
    }

    /// The latest time at which an exhausted quota has permits again. A quota without a word about what remains counts as
    /// exhausted, because the answer is a refusal.
    pub(super) fn reset(&self) -> Option<Duration> {
        let exhausted = self.buckets.iter().filter(|bucket| match bucket.remaining() {
            Some(remaining) => remaining == 0,
            None => bucket.remaining.is_none() && bucket.used.is_none(),
        });
        exhausted.filter_map(HeadBucket::again).max()
    }
}

// === impl HeadBucket ===

impl HeadBucket {
    fn new(family: Family, name: Cow<'static, str>) -> Self {
        let window = window_of(family, &name);
        let (limit, remaining, used, reset) = Default::default();
        Self { family, name, limit, remaining, used, window, reset, is_of_other_unit: false }
    }

    fn set(&mut self, part: HeaderPart, text: &str, clock: &UpstreamClock<'_>) {
        match part {
            // `100, 100;w=60`: the drafts before 06 put the policy after the limit.
            HeaderPart::Limit => {
                let limit = text.split([',', ';']).next().unwrap_or_default();
                // -1 means unknown, as 0 does.
                let is_negative = number(limit).is_some_and(|limit| limit < 0.0);
                let limit = if is_negative { Some(0) } else { permits_of(limit) };
                self.limit = self.limit.or(limit);
            }
            HeaderPart::Remaining => self.remaining = self.remaining.or(Some(permits_of(text))),
            HeaderPart::Used => self.used = permits_of(text),
            // A reset of 0 is no time: Azure sends it beside -1.
            HeaderPart::Reset => {
                let reset = clock.read(text).filter(|reset| !reset.is_zero());
                self.reset = self.reset.or(reset);
            }
            HeaderPart::ResetAfter => {
                self.reset = number(text).and_then(time::seconds).or(self.reset)
            }
            HeaderPart::ResetMillis => self.reset = time::millis(text),
            HeaderPart::WindowMillis => self.window = time::millis(text),
            HeaderPart::UsedOfLimit | HeaderPart::UsageOfLimit => {
                let usage = match part {
                    HeaderPart::UsageOfLimit => {
                        let mut members = text.split([',', ';']).map(str::trim);
                        members.find_map(|member| member.strip_prefix("api-usage="))
                    }
                    _ => Some(text),
                };
                let Some((used, limit)) = usage.and_then(|usage| usage.split_once('/')) else {
                    return;
                };
                (self.used, self.limit) = (permits_of(used), permits_of(limit));
            }
            _ => {}
        }
    }

    /// The permits that remain, as far as the headers have sense.
    fn remaining(&self) -> Option<u64> {
        match self.remaining {
            Some(remaining) => remaining,
            None => Some(self.limit?.saturating_sub(self.used?)),
        }
    }

    fn report(&self) -> Option<QuotaReport> {
        let Self { name, limit, window, reset, .. } = self;
        let remaining = self.remaining()?;
        let (limit, window, reset) = (*limit, *window, *reset);
        Some(QuotaReport { name: name.clone(), remaining, limit, window, reset })
    }

    /// The time at which an exhausted quota has permits again: its reset, at the latest after a whole window.
    fn again(&self) -> Option<Duration> {
        match (self.reset, self.remaining()) {
            (Some(reset), _) => Some(reset),
            (None, Some(_)) => self.window,
            (None, None) => None,
        }
    }
}

/// Reads a number of permits, rounded down. `None` if it has no sense.
pub(super) fn permits_of(text: &str) -> Option<u64> {
    let number = number(text).filter(|number| (0.0..=MOST).contains(number))?;
    Some(number as u64)
}

// === impl KnownHeader ===

impl<'n> KnownHeader<'n> {
    const fn new(family: Family, bucket: &'n str, part: HeaderPart) -> Self {
        Self { family, bucket, part }
    }

    pub(super) fn of(name: &'n str) -> Option<Self> {
        if let Some(rest) = name.strip_prefix("x-ratelimit-") {
            return Self::suffixed(rest);
        }
        if let Some(rest) = name.strip_prefix("ratelimit") {
            let part = match rest {
                "" => HeaderPart::Structured,
                "-policy" => HeaderPart::Policy,
                rest => triple(rest.strip_prefix('-')?)?,
            };
            return Some(Self::new(Family::Ietf, "", part));
        }
        if let Some(rest) = name.strip_prefix("x-rate-limit-") {
            // `x-rate-limit-reset-tokens` is Azure's.
            return Some(Self { family: Family::X, ..Self::suffixed(rest)? });
        }
        if let Some(rest) = name.strip_prefix("anthropic-ratelimit-") {
            let (bucket, part) = rest.rsplit_once('-')?;
            return Some(Self::new(Family::Anthropic, bucket, triple(part)?));
        }
        if let Some(rest) = name.strip_prefix("x-hubspot-ratelimit-") {
            let (bucket, part) = match rest {
                "max" => ("", HeaderPart::Limit),
                "remaining" => ("", HeaderPart::Remaining),
                "interval-milliseconds" => ("", HeaderPart::WindowMillis),
                _ => match rest.strip_suffix("-remaining") {
                    Some(bucket) => (bucket, HeaderPart::Remaining),
                    None => (rest, HeaderPart::Limit),
                },
            };
            return Some(Self::new(Family::Hubspot, bucket, part));
        }
        if let Some(rest) = name.strip_prefix("opik-") {
            let of = |end, part| Some(Self::new(Family::Opik, rest.strip_suffix(end)?, part));
            return of("-remaining-limit-ttl-millis", HeaderPart::ResetMillis)
                .or_else(|| of("-remaining-limit", HeaderPart::Remaining));
        }
        let (family, bucket, part) = match name {
            "x-app-rate-limit" => (Family::Riot, "app:", HeaderPart::LimitsOfWindows),
            "x-app-rate-limit-count" => (Family::Riot, "app:", HeaderPart::UsedOfWindows),
            "x-method-rate-limit" => (Family::Riot, "method:", HeaderPart::LimitsOfWindows),
            "x-method-rate-limit-count" => (Family::Riot, "method:", HeaderPart::UsedOfWindows),
            "x-shopify-shop-api-call-limit" => (Family::Shopify, "", HeaderPart::UsedOfLimit),
            "sforce-limit-info" => (Family::Salesforce, "", HeaderPart::UsageOfLimit),
            "x-amzn-ratelimit-limit" => (Family::Amazon, "", HeaderPart::Rate),
            _ => return None,
        };
        Some(Self::new(family, bucket, part))
    }

    /// Reads the end of a name such as `remaining`, `reset-after` or `remaining-tokens`.
    fn suffixed(rest: &'n str) -> Option<Self> {
        match rest {
            "used" => return Some(Self::new(Family::Plain, "", HeaderPart::Used)),
            "reset-after" => return Some(Self::new(Family::Plain, "", HeaderPart::ResetAfter)),
            _ => {}
        }
        match rest.split_once('-') {
            Some((part, bucket)) => Some(Self::new(Family::Suffixed, bucket, triple(part)?)),
            None => Some(Self::new(Family::Plain, "", triple(rest)?)),
        }
    }
}

fn triple(part: &str) -> Option<HeaderPart> {
    match part {
        "limit" => Some(HeaderPart::Limit),
        "remaining" => Some(HeaderPart::Remaining),
        "reset" => Some(HeaderPart::Reset),
        _ => None,
    }
}

/// The window that a quota has by its name: `secondly` (HubSpot), `minute` (Kong).
fn window_of(family: Family, name: &str) -> Option<Duration> {
    let has_name = matches!(family, Family::Hubspot | Family::Suffixed | Family::Salesforce);
    match name {
        _ if family == Family::Salesforce => Some(DAY),
        _ if !has_name => None,
        "secondly" | "second" => Some(SECOND),
        "minute" => Some(SECOND * 60),
        "hour" => Some(SECOND * 3600),
        "daily" | "day" => Some(DAY),
        _ => None,
    }
}

/// The name of a quota, without a copy for those that come with every answer.
fn interned(name: &str) -> Cow<'static, str> {
    const KNOWN: [&str; 8] =
        ["", "requests", "tokens", "input-tokens", "output-tokens", "default", "daily", "secondly"];
    match KNOWN.iter().find(|known| **known == name) {
        Some(known) => Cow::Borrowed(known),
        None => Cow::Owned(name.to_owned()),
    }
}

#[cfg(test)]
mod tests;
