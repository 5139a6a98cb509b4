//! Validates the filters that many lists share: the agent's city, carrier and country, the time,
//! and the reasons of failures.

use chrono::{DateTime, Utc};
use landfall_proto::v1;

use crate::model::ReasonKind;

use super::request_fields::InvalidField;
use super::times_and_counts::moment;

/// The accepted cities, carriers and countries of agents; an empty list accepts all. Case is
/// ignored, also for letters outside ASCII.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::grpc) struct Places {
    cities: Vec<String>,
    carriers: Vec<String>,
    countries: Vec<String>,
}

impl Places {
    pub(in crate::grpc) fn new(cities: &[String], carriers: &[String], countries: &[String]) -> Self {
        let lower = |texts: &[String]| texts.iter().map(|text| text.to_lowercase()).collect();
        Self { cities: lower(cities), carriers: lower(carriers), countries: lower(countries) }
    }

    /// Whether all agents are accepted.
    pub(in crate::grpc) fn are_unset(&self) -> bool {
        self.cities.is_empty() && self.carriers.is_empty() && self.countries.is_empty()
    }

    pub(in crate::grpc) fn include(&self, city: &str, carrier: &str, country: &str) -> bool {
        let among = |asked: &[String], has: &str| asked.is_empty() || asked.contains(&has.to_lowercase());
        among(&self.cities, city) && among(&self.carriers, carrier) && among(&self.countries, country)
    }
}

/// The times from `since` (inclusive) to `until` (exclusive). `None` means no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::grpc) struct TimeRange {
    pub(in crate::grpc) since: Option<DateTime<Utc>>,
    pub(in crate::grpc) until: Option<DateTime<Utc>>,
}

impl TimeRange {
    /// Converts the fields `since` and `until`.
    pub(in crate::grpc) fn new(
        since: Option<prost_types::Timestamp>,
        until: Option<prost_types::Timestamp>,
    ) -> Result<Self, InvalidField> {
        let time = |field: &'static str, value: Option<prost_types::Timestamp>| {
            let valid = |value| moment(value).ok_or_else(|| InvalidField::new(field, "not a valid time"));
            value.map(valid).transpose()
        };
        let range = Self { since: time("since", since)?, until: time("until", until)? };
        match (range.since, range.until) {
            (Some(since), Some(until)) if until <= since => Err(InvalidField::new("until", "must be later than since")),
            _ => Ok(range),
        }
    }
}

pub(in crate::grpc) fn reasons(asked: &[i32]) -> Result<Vec<ReasonKind>, InvalidField> {
    let unknown = |value: &i32| InvalidField::new("reasons", format!("{value} is not a kind of reason"));
    let known = |value: &i32| ReasonKind::try_from(v1::ReasonKind::try_from(*value).ok()?).ok();
    asked.iter().map(|value| known(value).ok_or_else(|| unknown(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_matches_in_either_case_and_must_meet_every_list() {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let places = Places::new(&texts(&["harbin", "CHANGCHUN"]), &texts(&["Cernet"]), &[]);
        assert!(places.include("Harbin", "CERNET", "CN") && places.include("Changchun", "cernet", ""));
        assert!(!places.include("Harbin", "Unicom", "CN") && !places.include("Tokyo", "CERNET", "CN"));
        assert!(!places.are_unset() && Places::default().are_unset());
        assert!(Places::default().include("", "", ""));
        assert!(Places::new(&texts(&["ÅRHUS"]), &[], &[]).include("Århus", "", ""));
    }

    #[test]
    fn a_range_of_times_is_checked_and_names_its_field() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        assert!(TimeRange::new(at(1), at(2)).is_ok() && TimeRange::new(None, None) == Ok(TimeRange::default()));
        for (since, until, said) in [
            (at(2), at(2), "until: must be later than since"),
            (at(i64::MAX), None, "since: not a valid time"),
            (None, at(i64::MAX), "until: not a valid time"),
        ] {
            assert_eq!(TimeRange::new(since, until).unwrap_err().to_string(), said);
        }
    }
}
