//! Prints messages for programs, as JSON and CSV. The names and words in this output never change.
//!
//! `tests/contract/generated.rs` lists the messages that are printed, and the fields that functions
//! of this module print.

use chrono::{DateTime, SecondsFormat, Utc};
use prost_types::{Duration, Timestamp};
use serde::ser::{SerializeMap as _, SerializeStruct as _};
use serde::{Serialize, Serializer};

use crate::v1::{
    ChoiceCause, ExplainedCandidate, ExplainedChoice, FallbackCause, Gain, MeasurementFailure, Parting, Wait, Why,
};

/// An enum of the wire contract whose values have names for programs.
pub trait Word: Copy + Default + TryFrom<i32> {
    /// The name of the value for programs, which never changes; empty for the unspecified value.
    fn word(self) -> &'static str;

    /// The name of the value, or `unknown` if it has none. A scheduler of another version may send
    /// a value that has no name here.
    fn word_or_unknown(self) -> &'static str {
        match self.word() {
            "" => "unknown",
            word => word,
        }
    }
}

include!("../generated/words.rs");

/// Converts a timestamp; `None` if it is absent or outside the calendar's range.
pub fn moment(time: Option<Timestamp>) -> Option<DateTime<Utc>> {
    let time = time?;
    DateTime::from_timestamp(time.seconds, u32::try_from(time.nanos).ok()?)
}

/// Converts a duration to milliseconds, rounded to a microsecond.
pub fn milliseconds(duration: Option<Duration>) -> Option<f64> {
    let duration = std::time::Duration::try_from(duration?).ok()?;
    Some((duration.as_secs_f64() * 1e6).round() / 1e3)
}

/// Formats a time as RFC 3339 in UTC, with milliseconds.
pub fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

type Printed<S> = Result<<S as Serializer>::Ok, <S as Serializer>::Error>;

/// Prints a time; null if absent.
pub fn time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Printed<S> {
    moment(*time).map(rfc3339).serialize(serializer)
}

/// Prints a duration in milliseconds; null if absent.
pub fn millis<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Printed<S> {
    milliseconds(*duration).serialize(serializer)
}

/// Prints a duration in milliseconds; 0 if absent.
pub(crate) fn length<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Printed<S> {
    milliseconds(*duration).unwrap_or_default().serialize(serializer)
}

pub(crate) fn word<W: Word, S: Serializer>(value: &i32, serializer: S) -> Printed<S> {
    serializer.serialize_str(W::try_from(*value).unwrap_or_default().word_or_unknown())
}

/// Prints the name of an enum's value; an empty text if the value is unspecified or unknown.
pub fn kind<W: Word, S: Serializer>(value: &i32, serializer: S) -> Printed<S> {
    serializer.serialize_str(W::try_from(*value).unwrap_or_default().word())
}

/// Prints why a task waits; an empty text if the task does not wait.
pub fn wait<S: Serializer>(wait: &Option<Wait>, serializer: S) -> Printed<S> {
    serializer.serialize_str(wait.as_ref().map_or("", |wait| wait.cause().word()))
}

/// Prints a value, or null instead of an empty text or the number 0.
pub fn some<T: Default + PartialEq + Serialize, S: Serializer>(value: &T, serializer: S) -> Printed<S> {
    Some(value).filter(|value| **value != T::default()).serialize(serializer)
}

/// Prints a message. An absent message is printed with default values.
pub(crate) fn or_default<T: Clone + Default + Serialize, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Printed<S> {
    value.clone().unwrap_or_default().serialize(serializer)
}

/// Prints texts separated by spaces.
pub(crate) fn joined<S: Serializer>(texts: &[String], serializer: S) -> Printed<S> {
    serializer.serialize_str(&texts.join(" "))
}

/// Prints numbers rounded to thousandths.
pub(crate) fn rounded<S: Serializer>(numbers: &[f64], serializer: S) -> Printed<S> {
    serializer.collect_seq(numbers.iter().map(|number| (number * 1e3).round() / 1e3))
}

/// Prints a list whose best element comes first, and adds to each element its rank, counted from 1.
pub(crate) fn ranked<T: Serialize, S: Serializer>(list: &[T], serializer: S) -> Printed<S> {
    #[derive(Serialize)]
    struct Ranked<'a, T> {
        rank: u32,
        #[serde(flatten)]
        one: &'a T,
    }
    serializer.collect_seq((1..).zip(list).map(|(rank, one)| Ranked { rank, one }))
}

/// Prints why an agent was chosen, in the form that the scheduler stores. Prints null if the cause
/// is missing (from an older scheduler) or unknown (from a newer scheduler). For a rebalanced task,
/// also prints null if the task's gain is missing or unknown.
impl Serialize for Why {
    fn serialize<S: Serializer>(&self, serializer: S) -> Printed<S> {
        #[derive(Serialize)]
        struct Parted<'a> {
            agent: &'a str,
            how: &'static str,
        }
        #[derive(Serialize)]
        struct Fallback<'a> {
            cause: &'static str,
            #[serde(skip_serializing_if = "str::is_empty")]
            said: &'a str,
        }
        let whole_millis =
            |time: Option<Duration>| std::time::Duration::try_from(time?).ok().map(|time| time.as_millis());
        let cause = self.cause();
        let no_gain = cause == ChoiceCause::Rebalanced && self.gain() == Gain::Unspecified;
        if cause == ChoiceCause::Unspecified || no_gain {
            return serializer.serialize_none();
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("cause", cause.word())?;
        match cause {
            ChoiceCause::Strategy => {
                for (name, count) in [("full", self.full), ("of", self.of)].iter().filter(|(_, count)| *count > 0) {
                    map.serialize_entry(name, count)?;
                }
            }
            ChoiceCause::Spread => {
                map.serialize_entry("confidence", &self.confidence)?;
                map.serialize_entry("near", &self.near)?;
            }
            ChoiceCause::Rebalanced => {
                map.serialize_entry("from", &self.from)?;
                map.serialize_entry("gain", self.gain().word())?;
            }
            ChoiceCause::TakenBack => {
                map.serialize_entry("from", &self.from)?;
                map.serialize_entry("remaining_ms", &whole_millis(self.remaining).unwrap_or_default())?;
                if let Some(takes) = whole_millis(self.takes) {
                    map.serialize_entry("takes_ms", &takes)?;
                }
            }
            ChoiceCause::Unspecified | ChoiceCause::Explores | ChoiceCause::NextCandidate => {}
        }
        if self.parted() != Parting::Unspecified {
            map.serialize_entry("parted", &Parted { agent: &self.parted_agent, how: self.parted().word() })?;
        }
        if self.fallback() != FallbackCause::Unspecified {
            let fallback = Fallback { cause: self.fallback().word(), said: &self.fallback_said };
            map.serialize_entry("fallback", &fallback)?;
        }
        map.end()
    }
}

/// Prints the choice of an agent. Each candidate has its rank, counted from 1, and a flag that is
/// true if it was chosen. The seed of the choice's random draw is printed as text, because many
/// JSON parsers round such large numbers.
impl Serialize for ExplainedChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Printed<S> {
        #[derive(Serialize)]
        struct Candidate<'a> {
            rank: u32,
            #[serde(flatten)]
            one: &'a ExplainedCandidate,
            chosen: bool,
        }
        let candidate = |(rank, one): (u32, _)| Candidate { rank, one, chosen: one.agent == self.agent };
        let candidates: Vec<Candidate<'_>> = (1..).zip(&self.candidates).map(candidate).collect();
        let mut choice = serializer.serialize_struct("ExplainedChoice", 13)?;
        choice.serialize_field("assignment_id", &self.assignment_id)?;
        choice.serialize_field("chosen_at", &moment(self.chosen_at).map(rfc3339))?;
        choice.serialize_field("newest", &self.newest)?;
        choice.serialize_field("agent", &self.agent)?;
        choice.serialize_field("strategy", &self.strategy)?;
        choice.serialize_field("seed", &self.seed.to_string())?;
        choice.serialize_field("because", &self.because)?;
        choice.serialize_field("candidates", &candidates)?;
        choice.serialize_field("available", &self.available)?;
        choice.serialize_field("excluded", &self.excluded)?;
        choice.serialize_field("fallback", &self.fallback)?;
        choice.serialize_field("note", &self.note)?;
        choice.serialize_field("why", &self.why)?;
        choice.end()
    }
}

/// Prints why a measurement failed: the cause as a word or null, and the message.
pub(crate) fn failure<S: Serializer>(failure: &Option<MeasurementFailure>, serializer: S) -> Printed<S> {
    #[derive(Serialize)]
    struct Failed<'a> {
        cause: Option<&'static str>,
        failure: &'a str,
    }
    let cause = failure.as_ref().map(|failure| failure.reason().word_or_unknown());
    Failed { cause, failure: failure.as_ref().map_or("", |failure| &failure.message) }.serialize(serializer)
}
