//! `resets` of a limiter: the instants at which the windows of an hour, a day, a week or a month begin, in a time zone.
//! Reads no clock.

use super::{keys::Choice, limiter::LimiterConfig, settings::Config};
use crate::{
    algorithm::{Algorithm, CalendarWindow, Micros, Rule},
    suggest::suggest,
};
use jiff::{
    Timestamp, ToSpan,
    civil::{Date, Weekday},
    tz::{self, TimeZone},
};
use paceway_limit::rate::MONTH;
use std::{fmt, sync::Arc, time::Duration};

const HOUR: i64 = 3_600;
const EXAMPLES: &str = "as in `00:00 UTC` or `00:00 America/Los_Angeles`";
const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// The instants at which the windows of a limiter begin, such as each first of a month at 00:00 in Los Angeles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calendar {
    text: String,
    zone: TimeZone,
    start: WindowStart,
    /// The minute of the hour, or of the day.
    minute: i64,
    spread: Spread,
}

/// When the permits of a window can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    /// All of them from the start of the window on.
    None,
    /// One after the other, until its end.
    Even,
}

/// The period of the windows, with the day on which one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WindowStart {
    Hour,
    Day,
    Week(Weekday),
    /// A month without this day begins a window on its last day.
    Month(i8),
}

// === impl Calendar ===

impl Calendar {
    /// Reads a time with its zone, such as `00:00 UTC`, for windows of `period`: for hours `:15 UTC`, for weeks also
    /// `sun 00:00 UTC` (without a day Monday), for months also `day 15 00:00 UTC` (without a day the first).
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` needs a time zone".
    pub(super) fn parse(text: &str, period: Duration) -> Result<Self, String> {
        let mut words: Vec<_> = text.split_whitespace().collect();
        let zone = words.pop().unwrap_or_default();
        let Some(time) = words.pop().filter(|_| !zone.contains(':')) else {
            return Err(format!("needs a time and a time zone, {EXAMPLES}"));
        };
        let start = WindowStart::parse(&words, period)?;
        let minute = minute(time, start)?;
        let zone = tz::db().get(zone).map_err(|_| unknown_zone(zone))?;
        Ok(Self { text: text.to_owned(), zone, start, minute, spread: Spread::None })
    }

    /// The same with such a spread.
    pub(super) fn spread(self, spread: Spread) -> Self {
        Self { spread, ..self }
    }

    /// Whether a rate has such a period.
    pub(super) fn has(&self, period: Duration) -> bool {
        WindowStart::of(period).is_some_and(|start| match (start, self.start) {
            (WindowStart::Week(_), WindowStart::Week(_)) => true,
            (WindowStart::Month(_), WindowStart::Month(_)) => true,
            (start, own) => start == own,
        })
    }

    /// The rule of `count` permits in each window, with the instants around `now`. `None` unless `count` is legal.
    pub(crate) fn rule(&self, count: i64, now: Timestamp) -> Option<CalendarWindow> {
        let rule = CalendarWindow::new(count, self.resets(now))?;
        Some(if self.spread == Spread::Even { rule.even() } else { rule })
    }

    /// The end of the window around `now`, as the clocks of the zone show it.
    pub(crate) fn next_reset(&self, now: Timestamp) -> Option<String> {
        Timestamp::from_microsecond(self.resets(now)[1]).ok().map(|reset| self.local_time(reset))
    }

    /// Whether the permits of a window flow until its end.
    pub(crate) fn is_even(&self) -> bool {
        self.spread == Spread::Even
    }

    /// The start of the window around `now`, that of the next one and of the one after it, µs since 1970.
    fn resets(&self, now: Timestamp) -> [Micros; 3] {
        let mut all: Vec<_> = (-3..=4).filter_map(|steps| self.reset(now, steps)).collect();
        all.sort_unstable();
        all.dedup();
        let after = all.partition_point(|reset| *reset <= now);
        let first = after.saturating_sub(1);
        // Only the first and the last week of all years that jiff knows have fewer.
        let found: Option<[Timestamp; 3]> =
            all.get(first..first + 3).and_then(|three| three.try_into().ok());
        found.map_or([0, 86_400_000_000, 172_800_000_000], |three| {
            three.map(Timestamp::as_microsecond)
        })
    }

    /// The reset that is `steps` periods from that of the hour, day, week or month of `now`; `None` if that hour has none. A time
    /// that the clocks skip is as much later; of a time that they show twice it is the first.
    fn reset(&self, now: Timestamp, steps: i32) -> Option<Timestamp> {
        let local = self.zone.to_datetime(now).date();
        let day = match self.start {
            WindowStart::Hour => return self.reset_of_hour(now, i64::from(steps)),
            WindowStart::Day => local.checked_add(steps.days()).ok()?,
            WindowStart::Week(day) => {
                let since = i32::from(day.until(local.weekday()));
                local.checked_add((7 * steps - since).days()).ok()?
            }
            WindowStart::Month(day) => {
                let month = local.first_of_month().checked_add(steps.months()).ok()?;
                Date::new(month.year(), month.month(), day.min(month.days_in_month())).ok()?
            }
        };
        let [hour, minute] =
            [self.minute / 60, self.minute % 60].map(|part| i8::try_from(part).ok());
        self.zone.to_timestamp(day.at(hour?, minute?, 0, 0)).ok()
    }

    /// An hour has its minute twice, or not at all, where a zone moves by a part of an hour.
    fn reset_of_hour(&self, now: Timestamp, steps: i64) -> Option<Timestamp> {
        let since = |second: i64| {
            let instant = Timestamp::from_second(second).ok()?;
            let offset = i64::from(self.zone.to_offset(instant).seconds());
            Some((second + offset - self.minute * 60).rem_euclid(HOUR))
        };
        let second = now.as_second() + steps * HOUR;
        let reset = second - since(second)?;
        (since(reset)? == 0).then(|| Timestamp::from_second(reset).ok()).flatten()
    }

    /// An instant as the clocks of the zone show it, such as `2026-12-01 00:00 America/Los_Angeles`.
    fn local_time(&self, instant: Timestamp) -> String {
        let name = self.zone.iana_name().unwrap_or("UTC");
        format!("{} {name}", self.zone.to_datetime(instant).strftime("%Y-%m-%d %H:%M"))
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// === impl Spread ===

impl Choice for Spread {
    const CHOICES: &'static [(&'static str, Self)] = &[("none", Self::None), ("even", Self::Even)];
}

// === impl Config ===

impl Config {
    /// Whether a limiter has instants of the calendar that are past.
    pub(crate) fn has_past_windows(&self, now: Timestamp) -> bool {
        self.limiters.iter().any(|limiter| limiter.has_past_window(now))
    }

    /// The same with the instants of the calendar around `now`.
    pub(crate) fn renew_windows(&mut self, now: Timestamp) {
        let past = self.limiters.iter_mut().filter(|limiter| limiter.has_past_window(now));
        past.for_each(|limiter| limiter.renew_windows(now));
    }
}

// === impl LimiterConfig ===

impl LimiterConfig {
    fn has_past_window(&self, now: Timestamp) -> bool {
        let now = now.as_microsecond();
        matches!(
            self.algorithms.first(),
            Some(Rule::Rate(Algorithm::CalendarWindow(rule))) if !rule.begins_with(now)
        )
    }

    fn renew_windows(&mut self, now: Timestamp) {
        let Some(calendar) = &self.calendar else { return };
        let rule = |count: u64| calendar.rule(i64::try_from(count).ok()?, now);
        for (algorithm, rate) in self.algorithms.iter_mut().zip(&self.rates) {
            *algorithm = rule(rate.count).map_or(*algorithm, Rule::from);
        }
        for own in Arc::make_mut(&mut self.key_rates).rules_mut() {
            own.rule = rule(own.rate.count).map_or(own.rule, Algorithm::from);
        }
    }
}

// === impl WindowStart ===

impl WindowStart {
    /// The start of windows of a period, on the day that is usual.
    fn of(period: Duration) -> Option<Self> {
        let day = Duration::from_secs(86_400);
        let all = [
            (Duration::from_secs(3_600), Self::Hour),
            (day, Self::Day),
            (7 * day, Self::Week(Weekday::Monday)),
            (MONTH, Self::Month(1)),
        ];
        all.into_iter().find(|(own, _)| *own == period).map(|(_, start)| start)
    }

    /// Reads the words before the time.
    fn parse(words: &[&str], period: Duration) -> Result<Self, String> {
        let Some(usual) = Self::of(period) else {
            return Err("needs a rate per hour, day, week or month, as in 5000/day".into());
        };
        match (usual, words) {
            (usual, []) => Ok(usual),
            (Self::Week(_), [day]) => {
                let day = day.to_lowercase();
                let is_short = |name: &str| day.len() >= 3 && name.starts_with(&day);
                let found = WEEKDAYS.iter().find(|(name, _)| is_short(name));
                found.map(|(_, day)| Self::Week(*day)).ok_or_else(|| {
                    format!("names no day of a week; write mon, tue, wed, thu, fri, sat or sun, as in `mon {TIME}`")
                })
            }
            (Self::Month(_), ["day", number]) => {
                let number = number.parse().ok().filter(|day| (1..=31).contains(day));
                number.map(Self::Month).ok_or_else(|| {
                    format!("names no day of a month; write day 1 to day 31, as in `day 15 {TIME}`; a shorter month resets on its last day")
                })
            }
            (usual, _) => Err(match usual {
                Self::Hour => {
                    "belongs to a longer period; a rate per hour has a minute, as in `:15 UTC`"
                        .into()
                }
                Self::Day => format!(
                    "has more than a time and a time zone; for a rate per day write `{TIME}` or `09:00 America/Los_Angeles`"
                ),
                Self::Week(_) => format!("is not read; for a rate per week write `mon {TIME}`"),
                Self::Month(_) => {
                    format!("is not read; for a rate per month write `{TIME}` or `day 15 {TIME}`")
                }
            }),
        }
    }
}

/// The letters of an abbreviation such as `AEST`.
const LONGEST_ABBREVIATION: usize = 4;
/// The time in messages.
const TIME: &str = "00:00 UTC";

/// Reads `09:30`, or for windows of an hour `:30`, as minutes.
fn minute(text: &str, start: WindowStart) -> Result<i64, String> {
    let number = |digits: &str, most: i64| {
        let is_short =
            (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<i64>().ok().filter(|number| is_short && *number <= most)
    };
    let (hour, minute) = text.split_once(':').unwrap_or((text, ""));
    let hour = match start {
        WindowStart::Hour if hour.is_empty() => Some(0),
        WindowStart::Hour => None,
        _ => number(hour, 23),
    };
    match (hour, number(minute, 59).filter(|_| minute.len() == 2)) {
        (Some(hour), Some(minute)) => Ok(60 * hour + minute),
        _ if start == WindowStart::Hour => {
            Err("has no minute of the hour; write `:00 UTC` to `:59 UTC`".into())
        }
        _ => Err(format!("has no time of the day; write 00:00 to 23:59, {EXAMPLES}")),
    }
}

fn unknown_zone(name: &str) -> String {
    let all: Vec<String> = tz::db().available().map(|known| known.to_string()).collect();
    let city = |known: &&String| {
        known.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name))
    };
    let meant = all.iter().find(city).map(|known| format!("did you mean `{known}`?"));
    // `PST` is no misspelt `EST`.
    let is_name = name.len() > LONGEST_ABBREVIATION;
    let similar = || suggest(name, all.iter().map(String::as_str)).filter(|_| is_name);
    let meant = meant.or_else(similar);
    let meant = meant.unwrap_or_else(|| format!("write a name of the IANA database, {EXAMPLES}"));
    format!("names the unknown time zone `{name}`; {meant}")
}

#[cfg(test)]
mod tests;
