//! Flags that narrow lists, by place, by time or by one of several words, and how their values are
//! written.

use chrono::{DateTime, Days, Local, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, TimeZone, Utc};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use humantime::parse_duration;
use prost_types::Timestamp;

use crate::machine::clock::now;

/// The places of agents.
#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    /// Consider only agents in this city; may be repeated
    #[arg(long, value_name = "CITY")]
    pub(super) city: Vec<String>,
    /// Consider only agents on this carrier; may be repeated
    #[arg(long, value_name = "CARRIER")]
    pub(super) carrier: Vec<String>,
    /// Consider only agents in this country; may be repeated
    #[arg(long, value_name = "CC")]
    pub(super) country: Vec<String>,
}

impl PlaceArgs {
    pub(super) fn are_unset(&self) -> bool {
        self.city.is_empty() && self.carrier.is_empty() && self.country.is_empty()
    }
}

/// A range of time: when a site entered its state, a batch was first submitted, a circuit opened.
#[derive(Debug, Args)]
pub(super) struct TimeArgs {
    /// Only what happened since this time: how long ago (2h, '30min ago'), a day (2026-11-24, today,
    /// yesterday) or a time (2026-11-24T10:00Z; without Z, in this machine's time zone)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) since: Option<DateTime<Utc>>,
    /// Only what happened before this time, written as for --since
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) until: Option<DateTime<Utc>>,
}

impl TimeArgs {
    pub(super) const fn are_unset(&self) -> bool {
        self.since.is_none() && self.until.is_none()
    }
}

pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    all: impl IntoIterator<Item = T>,
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let all: Vec<T> = all.into_iter().collect();
    PossibleValuesParser::new(all.iter().map(|one| word(*one)))
        .map(move |said| all.iter().copied().find(|one| word(*one) == said).expect("a possible value"))
}

/// Converts a time to the type of the protocol.
pub(super) fn timestamp(time: DateTime<Utc>) -> Timestamp {
    let nanos = i32::try_from(time.timestamp_subsec_nanos()).unwrap_or_default();
    Timestamp { seconds: time.timestamp(), nanos }
}

/// Parses a time given on the command line.
pub(super) fn time(text: &str) -> Result<DateTime<Utc>, String> {
    parse(text, &now().with_timezone(&Local)).ok_or_else(|| {
        "not a time: give how long ago (2h, 30min), a day (2026-11-24, yesterday) or a time (2026-11-24T10:00Z)"
            .to_owned()
    })
}

/// Parses a duration before now, a day, or a time. A day means the midnight at which it begins.
/// Days, and times without a time zone, are in the time zone of `now`.
fn parse<Z: TimeZone>(text: &str, now: &DateTime<Z>) -> Option<DateTime<Utc>> {
    let text = text.trim();
    let at = |time: NaiveDateTime| Some(now.timezone().from_local_datetime(&time).earliest()?.to_utc());
    let midnight = |day: NaiveDate| at(day.and_time(NaiveTime::MIN));
    match text {
        "now" => return Some(now.to_utc()),
        "today" => return midnight(now.date_naive()),
        "yesterday" => return midnight(now.date_naive().checked_sub_days(Days::new(1))?),
        _ => {}
    }
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(time.to_utc());
    }
    if let Ok(time) = DateTime::parse_from_str(&text.replacen('Z', "+00:00", 1), "%Y-%m-%dT%H:%M%:z") {
        return Some(time.to_utc());
    }
    for format in ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M"] {
        if let Ok(time) = NaiveDateTime::parse_from_str(text, format) {
            return at(time);
        }
    }
    if let Ok(day) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        return midnight(day);
    }
    let ago = parse_duration(text.strip_suffix("ago").unwrap_or(text).trim()).ok()?;
    now.to_utc().checked_sub_signed(TimeDelta::from_std(ago).ok()?)
}

#[cfg(test)]
mod tests {
    use chrono::FixedOffset;

    use super::*;

    #[test]
    fn a_time_is_read_as_people_say_it() {
        let zone = FixedOffset::east_opt(8 * 3600).unwrap();
        let now = zone.with_ymd_and_hms(2026, 11, 25, 6, 30, 0).unwrap();
        for (text, meant) in [
            ("2h", "2026-11-24T20:30:00+00:00"),
            ("30min ago", "2026-11-24T22:00:00+00:00"),
            (" 1day 2h ago ", "2026-11-23T20:30:00+00:00"),
            ("1 day", "2026-11-23T22:30:00+00:00"),
            ("now", "2026-11-24T22:30:00+00:00"),
            ("today", "2026-11-24T16:00:00+00:00"),
            ("yesterday", "2026-11-23T16:00:00+00:00"),
            ("2026-11-24", "2026-11-23T16:00:00+00:00"),
            ("2026-11-24T10:00Z", "2026-11-24T10:00:00+00:00"),
            ("2026-11-24T10:00+02:00", "2026-11-24T08:00:00+00:00"),
            ("2026-11-24T10:00:05Z", "2026-11-24T10:00:05+00:00"),
            ("2026-11-24T10:00", "2026-11-24T02:00:00+00:00"),
            ("2026-11-24 10:00:05", "2026-11-24T02:00:05+00:00"),
        ] {
            assert_eq!(parse(text, &now).map(|time| time.to_rfc3339()).as_deref(), Some(meant), "{text}");
        }
        for bad in ["", "ago", "soon", "2h later", "2026-13-01", "24.11.2026", "-2h", "99999999999999999999days"] {
            assert_eq!(parse(bad, &now), None, "{bad}");
        }
        assert!(time("soon").unwrap_err().starts_with("not a time: give "));
    }
}
