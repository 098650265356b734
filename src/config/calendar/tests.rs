//! The instants of resets, over changes of daylight saving and months of 28 to 31 days.

use super::*;
use rstest::rstest;

const DAY: Duration = Duration::from_secs(86_400);
const WEEK: Duration = Duration::from_secs(7 * 86_400);
const AN_HOUR: Duration = Duration::from_secs(3_600);

fn instant(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

/// The window that `at` lies in and the next two, in UTC.
#[rstest]
#[case::day_in_utc(
    "00:00 UTC",
    DAY,
    "2026-11-28T05:00:00Z",
    "2026-11-28T00:00:00Z 2026-11-29T00:00:00Z 2026-11-30T00:00:00Z"
)]
#[case::at_the_reset(
    "00:00 UTC",
    DAY,
    "2026-11-28T00:00:00Z",
    "2026-11-28T00:00:00Z 2026-11-29T00:00:00Z 2026-11-30T00:00:00Z"
)]
#[case::before_the_reset(
    "00:00 UTC",
    DAY,
    "2026-11-27T23:59:59Z",
    "2026-11-27T00:00:00Z 2026-11-28T00:00:00Z 2026-11-29T00:00:00Z"
)]
#[case::a_day_of_23_hours(
    "00:00 America/Los_Angeles",
    DAY,
    "2026-03-08T12:00:00Z",
    "2026-03-08T08:00:00Z 2026-03-09T07:00:00Z 2026-03-10T07:00:00Z"
)]
#[case::a_day_of_25_hours(
    "00:00 America/Los_Angeles",
    DAY,
    "2026-11-02T07:30:00Z",
    "2026-11-01T07:00:00Z 2026-11-02T08:00:00Z 2026-11-03T08:00:00Z"
)]
#[case::a_short_day_in_berlin(
    "09:00 Europe/Berlin",
    DAY,
    "2026-03-29T06:59:59Z",
    "2026-03-28T08:00:00Z 2026-03-29T07:00:00Z 2026-03-30T07:00:00Z"
)]
#[case::a_long_day_in_berlin(
    "09:00 Europe/Berlin",
    DAY,
    "2026-10-25T07:59:59Z",
    "2026-10-24T07:00:00Z 2026-10-25T08:00:00Z 2026-10-26T08:00:00Z"
)]
#[case::a_time_that_the_clocks_skip(
    "02:30 America/Los_Angeles",
    DAY,
    "2026-03-08T12:00:00Z",
    "2026-03-08T10:30:00Z 2026-03-09T09:30:00Z 2026-03-10T09:30:00Z"
)]
#[case::a_time_that_the_clocks_show_twice(
    "01:30 America/Los_Angeles",
    DAY,
    "2026-11-01T12:00:00Z",
    "2026-11-01T08:30:00Z 2026-11-02T09:30:00Z 2026-11-03T09:30:00Z"
)]
#[case::a_day_that_a_zone_skips(
    "00:00 Pacific/Apia",
    DAY,
    "2011-12-30T09:00:00Z",
    "2011-12-29T10:00:00Z 2011-12-30T10:00:00Z 2011-12-31T10:00:00Z"
)]
#[case::a_week(
    "00:00 UTC",
    WEEK,
    "2026-11-28T05:00:00Z",
    "2026-11-23T00:00:00Z 2026-11-30T00:00:00Z 2026-12-07T00:00:00Z"
)]
#[case::a_week_from_sunday(
    "sun 00:00 America/New_York",
    WEEK,
    "2026-11-01T05:30:00Z",
    "2026-11-01T04:00:00Z 2026-11-08T05:00:00Z 2026-11-15T05:00:00Z"
)]
#[case::a_week_later_on_its_day(
    "Friday 12:00 UTC",
    WEEK,
    "2026-11-27T11:00:00Z",
    "2026-11-20T12:00:00Z 2026-11-27T12:00:00Z 2026-12-04T12:00:00Z"
)]
#[case::months_of_30_and_31_days(
    "00:00 America/Los_Angeles",
    MONTH,
    "2026-11-28T05:00:00Z",
    "2026-11-01T07:00:00Z 2026-12-01T08:00:00Z 2027-01-01T08:00:00Z"
)]
#[case::february(
    "00:00 UTC",
    MONTH,
    "2026-02-28T05:00:00Z",
    "2026-02-01T00:00:00Z 2026-03-01T00:00:00Z 2026-04-01T00:00:00Z"
)]
#[case::february_of_a_leap_year(
    "00:00 UTC",
    MONTH,
    "2028-02-29T05:00:00Z",
    "2028-02-01T00:00:00Z 2028-03-01T00:00:00Z 2028-04-01T00:00:00Z"
)]
#[case::day_15(
    "day 15 00:00 UTC",
    MONTH,
    "2026-11-14T23:59:59Z",
    "2026-10-15T00:00:00Z 2026-11-15T00:00:00Z 2026-12-15T00:00:00Z"
)]
#[case::day_31(
    "day 31 00:00 UTC",
    MONTH,
    "2026-02-28T05:00:00Z",
    "2026-02-28T00:00:00Z 2026-03-31T00:00:00Z 2026-04-30T00:00:00Z"
)]
#[case::day_31_in_january(
    "day 31 18:00 UTC",
    MONTH,
    "2028-01-31T17:00:00Z",
    "2027-12-31T18:00:00Z 2028-01-31T18:00:00Z 2028-02-29T18:00:00Z"
)]
#[case::over_new_year(
    "day 10 00:00 Asia/Kolkata",
    MONTH,
    "2026-12-31T05:00:00Z",
    "2026-12-09T18:30:00Z 2027-01-09T18:30:00Z 2027-02-09T18:30:00Z"
)]
#[case::an_hour(
    ":15 UTC",
    AN_HOUR,
    "2026-11-28T05:14:59Z",
    "2026-11-28T04:15:00Z 2026-11-28T05:15:00Z 2026-11-28T06:15:00Z"
)]
#[case::an_hour_of_a_zone_with_a_half(
    ":00 Asia/Kolkata",
    AN_HOUR,
    "2026-11-28T05:14:59Z",
    "2026-11-28T04:30:00Z 2026-11-28T05:30:00Z 2026-11-28T06:30:00Z"
)]
#[case::an_hour_over_a_change_of_30_minutes(
    ":00 Australia/Lord_Howe",
    AN_HOUR,
    "2026-10-03T15:10:00Z",
    "2026-10-03T14:30:00Z 2026-10-03T16:00:00Z 2026-10-03T17:00:00Z"
)]
fn a_window_begins_at_its_instants(
    #[case] text: &str,
    #[case] period: Duration,
    #[case] at: &str,
    #[case] expected: &str,
) {
    let calendar = Calendar::parse(text, period).expect("a calendar");
    let resets = calendar
        .resets(instant(at))
        .map(|reset| Timestamp::from_microsecond(reset).expect("an instant").to_string());
    assert_eq!(resets.join(" "), expected);
}

/// From any instant the same instants are found, over 30 years of changes.
#[rstest]
#[case::day("00:00 America/Los_Angeles", DAY, 22..=26)]
#[case::day_in_berlin("02:30 Europe/Berlin", DAY, 22..=26)]
#[case::week("thu 23:59 Europe/London", WEEK, 7 * 24 - 1..=7 * 24 + 1)]
#[case::month("day 31 00:00 Australia/Sydney", MONTH, 28 * 24 - 1..=31 * 24 + 1)]
fn windows_follow_each_other_without_gaps(
    #[case] text: &str,
    #[case] period: Duration,
    #[case] hours: std::ops::RangeInclusive<i64>,
) {
    let calendar = Calendar::parse(text, period).expect("a calendar");
    let mut at = instant("2000-01-01T00:00:00Z");
    let mut before = calendar.resets(at);
    while at < instant("2030-01-01T00:00:00Z") {
        at = Timestamp::from_microsecond(before[1]).expect("an instant");
        let [start, end, next] = calendar.resets(at);
        assert_eq!([start, end], [before[1], before[2]], "{at}");
        assert!(hours.contains(&((end - start) / 3_600_000_000)), "{at}: {}", end - start);
        let last = Timestamp::from_microsecond(end - 1).expect("an instant");
        assert_eq!(calendar.resets(last), [start, end, next], "{at}");
        before = [start, end, next];
    }
}

#[rstest]
#[case::no_zone("00:00", DAY, "needs a time and a time zone, as in `00:00 UTC`")]
#[case::nothing("", DAY, "needs a time and a time zone")]
#[case::zone_first("UTC 00:00", DAY, "needs a time and a time zone")]
#[case::no_time("midnight UTC", DAY, "has no time of the day; write 00:00 to 23:59")]
#[case::hour_24("24:00 UTC", DAY, "has no time of the day")]
#[case::city(
    "00:00 Los_Angeles",
    DAY,
    "names the unknown time zone `Los_Angeles`; did you mean `America/Los_Angeles`?"
)]
#[case::misspelt(
    "00:00 Europe/Berlim",
    DAY,
    "names the unknown time zone `Europe/Berlim`; did you mean `Europe/Berlin`?"
)]
#[case::unknown(
    "00:00 Middle/Earth_of_Tolkien",
    DAY,
    "names the unknown time zone `Middle/Earth_of_Tolkien`; write a name of the IANA database"
)]
#[case::abbreviation(
    "00:00 PST",
    DAY,
    "names the unknown time zone `PST`; write a name of the IANA database"
)]
#[case::prefix_of_a_day("monster 00:00 UTC", WEEK, "names no day of a week; write mon,")]
#[case::day_of_a_day(
    "mon 00:00 UTC",
    DAY,
    "has more than a time and a time zone; for a rate per day write `00:00 UTC` or `09:00 America/Los_Angeles`"
)]
#[case::day_of_a_week("first 00:00 UTC", WEEK, "names no day of a week; write mon,")]
#[case::number_of_a_week(
    "day 15 00:00 UTC",
    WEEK,
    "is not read; for a rate per week write `mon 00:00 UTC`"
)]
#[case::day_32("day 32 00:00 UTC", MONTH, "names no day of a month; write day 1 to day 31")]
#[case::weekday_of_a_month(
    "mon 00:00 UTC",
    MONTH,
    "is not read; for a rate per month write `00:00 UTC` or `day 15 00:00 UTC`"
)]
#[case::time_of_an_hour("09:15 UTC", AN_HOUR, "has no minute of the hour; write `:00 UTC`")]
#[case::day_of_an_hour("mon :15 UTC", AN_HOUR, "belongs to a longer period")]
#[case::two_days("00:00 UTC", 2 * DAY, "needs a rate per hour, day, week or month")]
fn a_wrong_reset_names_the_cure(
    #[case] text: &str,
    #[case] period: Duration,
    #[case] expected: &str,
) {
    let reason = Calendar::parse(text, period).expect_err("a mistake");
    assert!(reason.starts_with(expected), "{reason}");
}
