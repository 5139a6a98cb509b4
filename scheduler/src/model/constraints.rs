//! A batch's constraints on its agents: country, carrier, tags, and a daily quota of bytes.
//!
//! Constraints apply before any strategy: an agent that does not meet them is not a candidate.
//! [`Constraints`] has a value for every field. [`ConstraintsRequest`] may leave values out.
//! Comparisons ignore case.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::quota_and_address_budget::{self, QuotaUse};
use crate::model::{OutOfBounds, PolicyDifference, UnmetCause, durations_and_sizes, naming, words};

/// Maximum number of values in a list of constraints, and of tags of an agent. This maximum is
/// small, because the scheduler often compares all values with every agent.
pub const MAX_VALUES: usize = 16;
/// Maximum length of a tag in bytes. Tags are short, because tables display them.
const MAX_TAG: usize = 32;

words!(
    /// What happens to a task that no agent may crawl.
    #[derive(Default, ValueEnum)]
    UnmetAction {
        /// It waits for an agent that may crawl it.
        #[default]
        Wait = "wait",
        Fail = "fail",
    }
);

/// A batch's constraints on its agents. An empty or absent value is no constraint. Constraints are
/// stored as JSON, which other programs read too.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraints {
    /// Countries (ISO 3166-1 alpha-2); the agent must be in one of them.
    pub countries: Vec<String>,
    pub carriers: Vec<String>,
    pub tags: Vec<String>,
    /// Maximum bytes that one agent may fetch for the batch within 24 hours; at least 1.
    pub bytes_per_day: Option<u64>,
    pub unmet: UnmetAction,
}

/// Requested constraints, from flags, a file or a message. Absent values are taken from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct ConstraintsRequest {
    /// Only agents in this country, two letters (ISO 3166-1); if repeated, in any of these
    #[arg(long = "country", value_name = "CC")]
    #[serde(rename = "country", deserialize_with = "one_or_many")]
    pub countries: Vec<String>,
    /// Only agents on this carrier (ISP); if repeated, on any of these
    #[arg(long = "carrier", value_name = "CARRIER")]
    #[serde(rename = "carrier", deserialize_with = "one_or_many")]
    pub carriers: Vec<String>,
    /// Only agents with this tag; if repeated, with all of these
    #[arg(long = "tag", value_name = "TAG")]
    #[serde(rename = "tag", deserialize_with = "one_or_many")]
    pub tags: Vec<String>,
    /// Maximum number of bytes that one agent fetches for the batch within 24 hours, such as 2GB
    #[arg(long, value_name = "SIZE", value_parser = durations_and_sizes::parse_size)]
    #[serde(deserialize_with = "durations_and_sizes::optional_size")]
    pub bytes_per_day: Option<u64>,
    /// What happens to sites that no agent may crawl: they wait, or they fail
    #[arg(long, value_name = "wait|fail", hide_possible_values = true)]
    pub unmet: Option<UnmetAction>,
}

/// Accepts a single string in place of a list, for files.
fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "neither a string nor a list of strings")]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Texts::deserialize(from)? {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    })
}

impl From<Constraints> for ConstraintsRequest {
    fn from(asked: Constraints) -> Self {
        let Constraints { countries, carriers, tags, bytes_per_day, unmet } = asked;
        Self { countries, carriers, tags, bytes_per_day, unmet: Some(unmet) }
    }
}

impl ConstraintsRequest {
    /// Checks the bounds of each value, and normalises and sorts the lists.
    pub fn checked(self) -> Result<Self, OutOfBounds> {
        self.bytes_per_day.map_or(Ok(()), quota_and_address_budget::check)?;
        Ok(Self {
            countries: list("country", &self.countries, country)?,
            carriers: list("carrier", &self.carriers, carrier)?,
            tags: list("tag", &self.tags, tag)?,
            ..self
        })
    }

    /// The constraints of a new batch: the requested values, and defaults for absent values.
    pub fn whole(&self) -> Constraints {
        Constraints {
            countries: self.countries.clone(),
            carriers: self.carriers.clone(),
            tags: self.tags.clone(),
            bytes_per_day: self.bytes_per_day,
            unmet: self.unmet.unwrap_or_default(),
        }
    }

    /// Merges two requests: values absent from `self` are taken from `other`.
    #[must_use]
    pub fn before(self, other: Self) -> Self {
        let or = |one: Vec<String>, other| if one.is_empty() { other } else { one };
        Self {
            countries: or(self.countries, other.countries),
            carriers: or(self.carriers, other.carriers),
            tags: or(self.tags, other.tags),
            bytes_per_day: self.bytes_per_day.or(other.bytes_per_day),
            unmet: self.unmet.or(other.unmet),
        }
    }

    /// The requested values that differ from the constraints `has`.
    pub fn differences(&self, has: &Constraints) -> Vec<PolicyDifference> {
        let mut found = Vec::new();
        let lists = [
            ("country", &has.countries, &self.countries),
            ("carrier", &has.carriers, &self.carriers),
            ("tag", &has.tags, &self.tags),
        ];
        for (field, has, asked) in lists {
            let same = has.len() == asked.len() && has.iter().zip(asked).all(|(one, other)| alike(one, other));
            if !asked.is_empty() && !same {
                let has = if has.is_empty() { "no".to_owned() } else { has.join(", ") };
                found.push(PolicyDifference { field, has, asked: asked.join(", ") });
            }
        }
        if let Some(asked) = self.bytes_per_day.filter(|asked| Some(*asked) != has.bytes_per_day) {
            let has = has.bytes_per_day.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
            found.push(PolicyDifference { field: "bytes_per_day", has, asked: asked.to_string() });
        }
        if let Some(asked) = self.unmet.filter(|asked| *asked != has.unmet) {
            found.push(PolicyDifference { field: "unmet", has: has.unmet.name().into(), asked: asked.name().into() });
        }
        found
    }
}

/// Normalises and sorts the values, and removes duplicates.
fn list(
    field: &'static str,
    values: &[String],
    spell: impl Fn(&str) -> Result<String, String>,
) -> Result<Vec<String>, OutOfBounds> {
    let invalid = |problem| OutOfBounds { field, problem };
    let mut spelled = values.iter().map(|value| spell(value)).collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    spelled.sort_by_cached_key(|value| (value.to_lowercase(), value.clone()));
    spelled.dedup_by(|one, other| alike(one, other));
    if spelled.len() > MAX_VALUES {
        return Err(invalid(format!("more than {MAX_VALUES}")));
    }
    Ok(spelled)
}

fn shown(text: &str) -> String {
    text.chars().take(naming::MAX_TEXT).flat_map(char::escape_debug).collect()
}

fn country(text: &str) -> Result<String, String> {
    let country = text.trim().to_ascii_uppercase();
    let known_shape = country.len() == 2 && country.bytes().all(|byte| byte.is_ascii_uppercase());
    if known_shape {
        Ok(country)
    } else {
        Err(format!("'{}' is not a two-letter country code (ISO 3166-1)", shown(text)))
    }
}

fn carrier(text: &str) -> Result<String, String> {
    naming::one_line(text).map(str::to_owned).map_err(|problem| problem.to_string())
}

fn tag(text: &str) -> Result<String, String> {
    let tag = text.trim().to_ascii_lowercase();
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-');
    if tag.is_empty() || tag.len() > MAX_TAG || !tag.bytes().all(allowed) {
        return Err(format!("'{}' is not 1 to {MAX_TAG} letters, digits, '.', '_' and '-'", shown(text)));
    }
    Ok(tag)
}

/// Normalises an agent's tags and removes duplicates.
pub fn tags(asked: &[String]) -> Result<Vec<String>, OutOfBounds> {
    list("tag", asked, tag)
}

fn alike(one: &str, other: &str) -> bool {
    one.to_lowercase() == other.to_lowercase()
}

fn is_among(value: &str, list: &[String]) -> bool {
    list.iter().any(|one| alike(one, value))
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentTraits {
    /// ISO 3166-1 alpha-2; empty if unknown.
    pub country: String,
    pub carrier: String,
    /// The tags that operators gave the agent.
    pub tags: Vec<String>,
}

/// Why an agent may not crawl for a batch: the first constraint that it does not meet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Exclusion {
    /// The agent is in another country.
    Country,
    /// The agent is on another carrier's network.
    Carrier,
    /// The agent lacks this tag.
    Tag(String),
    /// The agent has used up its quota, or is expected to do so with its unfinished tasks.
    Quota,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown exclusion '{0}'")]
pub struct UnknownExclusion(String);

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Country => f.write_str("country"),
            Self::Carrier => f.write_str("carrier"),
            Self::Tag(tag) => write!(f, "tag:{tag}"),
            Self::Quota => f.write_str("quota"),
        }
    }
}

impl From<Exclusion> for String {
    fn from(exclusion: Exclusion) -> Self {
        exclusion.to_string()
    }
}

impl TryFrom<String> for Exclusion {
    type Error = UnknownExclusion;

    fn try_from(name: String) -> Result<Self, UnknownExclusion> {
        name.parse()
    }
}

impl FromStr for Exclusion {
    type Err = UnknownExclusion;

    fn from_str(name: &str) -> Result<Self, UnknownExclusion> {
        match (name, name.strip_prefix("tag:")) {
            ("country", _) => Ok(Self::Country),
            ("carrier", _) => Ok(Self::Carrier),
            ("quota", _) => Ok(Self::Quota),
            (_, Some(tag)) => Ok(Self::Tag(tag.to_owned())),
            (_, None) => Err(UnknownExclusion(name.to_owned())),
        }
    }
}

/// Number of agents that a batch excludes, by the first constraint that an agent does not meet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExcludedAgents {
    pub fleet: usize,
    pub by: BTreeMap<Exclusion, usize>,
}

impl ExcludedAgents {
    /// Number of agents that meet the constraints.
    pub fn meet(&self) -> usize {
        self.fleet.saturating_sub(self.by.values().sum())
    }
}

/// Why no agent gets the tasks of a batch although some agent accepts work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoEligibleAgent {
    pub cause: UnmetCause,
    pub excluded: ExcludedAgents,
}

impl NoEligibleAgent {
    /// The cause for a fleet of `fleet` agents, of which some are excluded by `exclusions`.
    pub fn of<'a>(fleet: usize, exclusions: impl IntoIterator<Item = &'a Exclusion>) -> Self {
        let mut excluded = ExcludedAgents { fleet, by: BTreeMap::new() };
        for exclusion in exclusions {
            *excluded.by.entry(exclusion.clone()).or_default() += 1;
        }
        let cause = if excluded.meet() > 0 { UnmetCause::TakeNoWork } else { UnmetCause::Excluded };
        Self { cause, excluded }
    }
}

impl Constraints {
    /// Why an agent may not crawl for the batch, apart from its quota; `None` if it may.
    pub fn excludes(&self, agent: &AgentTraits) -> Option<Exclusion> {
        if !self.countries.is_empty() && !is_among(&agent.country, &self.countries) {
            return Some(Exclusion::Country);
        }
        if !self.carriers.is_empty() && !is_among(&agent.carrier, &self.carriers) {
            return Some(Exclusion::Carrier);
        }
        self.tags.iter().find(|tag| !is_among(tag, &agent.tags)).cloned().map(Exclusion::Tag)
    }

    /// Why an agent gets no further task of the batch; `None` if it may get one.
    pub fn refuses(&self, agent: &AgentTraits, spending: QuotaUse) -> Option<Exclusion> {
        let used_up = || self.bytes_per_day.is_some_and(|quota| spending.uses_up(quota));
        self.excludes(agent).or_else(|| used_up().then_some(Exclusion::Quota))
    }

    /// Why an agent may not begin its assigned tasks; `None` if it may. Only fetched bytes count,
    /// not the expected bytes of the assigned tasks.
    pub fn withdraws(&self, agent: &AgentTraits, fetched: u64) -> Option<Exclusion> {
        self.refuses(agent, QuotaUse { fetched, ..QuotaUse::default() })
    }

    /// One warning for each value that no agent has, because the value may be misspelled.
    pub fn unheard_of(&self, fleet: &[AgentTraits]) -> Vec<String> {
        let missing = |values: &[String], has: &dyn Fn(&AgentTraits, &str) -> bool| -> Vec<String> {
            values.iter().filter(|value| !fleet.iter().any(|agent| has(agent, value))).cloned().collect()
        };
        let country = missing(&self.countries, &|agent, value| alike(&agent.country, value));
        let carrier = missing(&self.carriers, &|agent, value| alike(&agent.carrier, value));
        let tag = missing(&self.tags, &|agent, value| is_among(value, &agent.tags));
        let sentence = |what: &str, value: String| format!("no agent has the {what} '{value}'");
        let lists = [("country", country), ("carrier", carrier), ("tag", tag)];
        lists
            .into_iter()
            .flat_map(|(what, values)| values.into_iter().map(move |value| sentence(what, value)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(values: &[&str]) -> Vec<String> {
        values.iter().map(|&value| value.to_owned()).collect()
    }

    fn agent(country: &str, carrier: &str, tags: &[&str]) -> AgentTraits {
        AgentTraits { country: country.into(), carrier: carrier.into(), tags: texts(tags) }
    }

    fn asked() -> ConstraintsRequest {
        ConstraintsRequest {
            countries: texts(&["jp", "CN", " cn "]),
            carriers: texts(&["CERNET"]),
            tags: texts(&["Fast", "rack-2"]),
            bytes_per_day: Some(1_500_000),
            unmet: Some(UnmetAction::Fail),
        }
    }

    #[test]
    fn a_list_means_any_and_tags_mean_all_whatever_the_case() {
        let constraints = asked().checked().unwrap().whole();
        assert_eq!(constraints.countries, ["CN", "JP"]);
        for (agent, excluded) in [
            (agent("cn", "Cernet", &["rack-2", "FAST", "x"]), None),
            (agent("JP", "CERNET", &["rack-2", "fast"]), None),
            (agent("", "CERNET", &["rack-2", "fast"]), Some(Exclusion::Country)),
            (agent("KR", "Telecom", &[]), Some(Exclusion::Country)),
            (agent("CN", "Telecom", &[]), Some(Exclusion::Carrier)),
            (agent("CN", "CERNET", &["rack-2"]), Some(Exclusion::Tag("fast".into()))),
        ] {
            let exclusion = constraints.excludes(&agent);
            assert_eq!(exclusion, excluded, "{agent:?}");
            let stored = exclusion.as_ref().map(|exclusion| exclusion.to_string().parse());
            assert_eq!(stored, exclusion.map(Ok));
        }
        assert_eq!(Constraints::default().excludes(&AgentTraits::default()), None);
        assert!("tags".parse::<Exclusion>().is_err());
    }

    #[test]
    fn a_quota_excludes_who_has_used_it_up_but_takes_no_task_for_what_is_under_way() {
        let constraints = Constraints { bytes_per_day: Some(100), ..Constraints::default() };
        let anyone = AgentTraits::default();
        let spent = |fetched| QuotaUse { fetched, under_way: 1, expected: 40 };
        assert_eq!(constraints.refuses(&anyone, spent(59)), None);
        assert_eq!(constraints.refuses(&anyone, spent(60)), Some(Exclusion::Quota));
        assert_eq!(constraints.withdraws(&anyone, 99), None, "what waits is not held against itself");
        assert_eq!(constraints.withdraws(&anyone, 100), Some(Exclusion::Quota));
        assert_eq!(Constraints::default().refuses(&anyone, spent(u64::MAX)), None);
    }

    #[test]
    fn a_value_of_another_shape_is_refused_and_one_that_nobody_has_is_named() {
        let none = ConstraintsRequest::default;
        let many: Vec<String> = (0..=MAX_VALUES).map(|number| number.to_string()).collect();
        for (wrong, field) in [
            (ConstraintsRequest { countries: texts(&["CHN"]), ..none() }, "country"),
            (ConstraintsRequest { countries: texts(&["C1"]), ..none() }, "country"),
            (ConstraintsRequest { carriers: texts(&[" "]), ..none() }, "carrier"),
            (ConstraintsRequest { carriers: texts(&["a\nb"]), ..none() }, "carrier"),
            (ConstraintsRequest { tags: texts(&["a b"]), ..none() }, "tag"),
            (ConstraintsRequest { tags: texts(&[""]), ..none() }, "tag"),
            (ConstraintsRequest { tags: vec!["x".repeat(33)], ..none() }, "tag"),
            (ConstraintsRequest { tags: many, ..none() }, "tag"),
            (ConstraintsRequest { bytes_per_day: Some(0), ..none() }, "bytes_per_day"),
        ] {
            assert_eq!(wrong.clone().checked().unwrap_err().field, field, "{wrong:?}");
        }
        let constraints = asked().checked().unwrap().whole();
        let fleet = [agent("CN", "cernet", &["fast"])];
        assert_eq!(constraints.unheard_of(&fleet), ["no agent has the country 'JP'", "no agent has the tag 'rack-2'"]);
    }

    #[test]
    fn another_value_than_a_batch_has_is_named() {
        let asked = asked().checked().unwrap();
        assert_eq!(asked.differences(&asked.whole()), []);
        assert_eq!(ConstraintsRequest::default().differences(&asked.whole()), []);
        let said: Vec<String> = asked.differences(&Constraints::default()).iter().map(ToString::to_string).collect();
        assert_eq!(
            said.join("; "),
            "country no (CN, JP was requested); carrier no (CERNET was requested); tag no (fast, rack-2 was requested); \
             bytes_per_day none (1500000 was requested); unmet wait (fail was requested)"
        );
        let spelled = ConstraintsRequest { carriers: texts(&["cernet"]), ..ConstraintsRequest::default() };
        assert_eq!(spelled.differences(&asked.whole()), []);
    }

    #[test]
    fn what_is_stored_of_the_excluded_is_read_as_it_was_written() {
        let exclusions = [Exclusion::Country, Exclusion::Tag("fast".into()), Exclusion::Country, Exclusion::Quota];
        let NoEligibleAgent { cause, excluded } = NoEligibleAgent::of(4, &exclusions);
        assert_eq!(cause, UnmetCause::Excluded);
        let stored = serde_json::to_string(&excluded).unwrap();
        assert_eq!(stored, r#"{"fleet":4,"by":{"country":2,"tag:fast":1,"quota":1}}"#);
        assert_eq!(serde_json::from_str::<ExcludedAgents>(&stored).unwrap(), excluded);
        assert!(serde_json::from_str::<ExcludedAgents>(r#"{"fleet":4,"by":{"tags":2}}"#).is_err());
        assert_eq!(NoEligibleAgent::of(5, &exclusions).cause, UnmetCause::TakeNoWork);
    }
}
