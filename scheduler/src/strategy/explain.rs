//! Explains in sentences why a task has its agent, or why it has none. The sentences use only the
//! data stored with the choice.

use std::time::Duration;

use crate::model::constraints::{Constraints, ExcludedAgents, Exclusion, NoEligibleAgent};
use crate::model::{
    ChoiceCause, ChoiceReasons, Fallback, FallbackCause, FormerAgent, Gain, Parting, Rtt, Strategy, UnmetCause,
    WaitCause,
};

/// Describes how a previous agent was lost, such as "a, chosen before, was lost with its crawl".
pub fn parted(FormerAgent { agent, how }: &FormerAgent) -> String {
    let how = match how {
        Parting::Lost => "was lost with its crawl",
        Parting::Restarted => "restarted without its crawl",
        Parting::Reconnected => "reconnected without its crawl",
        Parting::Replaced => "was moved to another machine",
        Parting::Left => "left with its crawl",
        Parting::Removed => "was removed with its crawl",
        Parting::Restored => "was crawling it when the restored backup was made",
        Parting::Crashed => "had a crash while crawling it",
        Parting::Drained => "was drained and handed it back",
        Parting::HandedBack => "handed it back",
        Parting::WaitedAway => "was away before it began it",
        Parting::WaitedRemoved => "was removed before it began it",
        Parting::WaitedDrained => "was drained before it began it",
        Parting::WaitedPaused => "paused before it began it",
        Parting::WaitedDisconnected => "disconnected before it began it",
        Parting::WaitedExcluded => "was excluded by the constraints before it began it",
    };
    format!("{agent}, chosen before, {how}")
}

pub fn fallback(Fallback { cause, said }: &Fallback) -> String {
    let why = match cause {
        FallbackCause::NoDistance => "no agent's distance to the site is known",
        FallbackCause::NoAddress => "the site's address is not known",
        FallbackCause::NothingShared => "no agent's address shares a bit with the site's",
        FallbackCause::NoSuffix => "the site's name is an address and has no suffix",
        FallbackCause::NoPosition => "the site's position is not known",
        FallbackCause::NoAgentPosition => "no agent's position is known",
        FallbackCause::NoMap => {
            "there is no map to choose confirming agents by: the nearest agent that measured it was taken"
        }
        FallbackCause::NobodyMeasured => {
            "no agent that measured the site is connected: one of the three predicted nearest was taken"
        }
        FallbackCause::Unmeasured if said.is_empty() => "no landmark could measure it: nothing was reported",
        FallbackCause::Unmeasured => return format!("no landmark could measure it: {said}"),
        FallbackCause::UntrustedMap => return said.clone(),
    };
    why.to_owned()
}

/// Describes what was unusual about the choice; `None` if nothing was unusual.
pub fn note(why: &ChoiceReasons) -> Option<String> {
    let parted = why.parted.as_ref().map(parted);
    let how = match &why.cause {
        ChoiceCause::Strategy { full: 0, .. } => return parted,
        ChoiceCause::Strategy { full, of } => format!("{full} of {of} candidates had no free slot"),
        ChoiceCause::Explores => "explores: it may be nearer than the best known agent".to_owned(),
        ChoiceCause::Spread { confidence, near } => {
            format!(
                "the site is in several places (confidence {confidence:.2}): of {near} near agents it has the most \
                 free slots"
            )
        }
        ChoiceCause::NextCandidate => {
            return Some(format!("the next candidate: {}", parted.as_deref().unwrap_or("the former agent is gone")));
        }
        ChoiceCause::Rebalanced { from, gain: Gain::BeginsAtOnce } => {
            format!("waited at {from}, which was full; begins at once here")
        }
        ChoiceCause::Rebalanced { from, gain: Gain::EndsSooner } => format!("waited at {from}; ends sooner here"),
        ChoiceCause::Rebalanced { from, gain: Gain::Nearer } => {
            format!("waited at {from}; this agent came later and is clearly nearer")
        }
        ChoiceCause::TakenBack { from, remaining_ms, takes_ms } => {
            let remaining = about(Duration::from_millis(*remaining_ms));
            let takes = takes_ms.map(|takes| format!("; here it takes about {}", about(Duration::from_millis(takes))));
            let takes = takes.unwrap_or_default();
            format!("was taken back from {from}, where it would have taken about {remaining} more{takes}")
        }
    };
    Some([Some(how), parted].into_iter().flatten().collect::<Vec<String>>().join("; "))
}

/// Explains why the scheduler preempts a lease. The text is sent to the agent that has the lease.
pub fn ends_sooner(to: &str, there: Duration, here: Duration) -> String {
    format!("{to} would finish it in about {}; here it takes about {} more", about(there), about(here))
}

/// Formats a duration, such as "12 s" or "0.4 s".
fn about(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedCandidate {
    pub agent: String,
    pub predicted: Option<Rtt>,
    pub measured: Option<Rtt>,
    /// The agent's load level; `None` if the agent was disconnected or no level was stored.
    pub level: Option<i64>,
}

impl ExplainedCandidate {
    /// The distance, followed by "measured" or "predicted".
    fn distance(&self) -> Option<String> {
        let said = |rtt: Option<Rtt>, how: &str| rtt.map(|rtt| format!("{rtt} {how}"));
        said(self.measured, "measured").or_else(|| said(self.predicted, "predicted"))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedChoice {
    /// The name of the chosen agent.
    pub agent: String,
    /// The strategy that made the choice.
    pub strategy: Strategy,
    /// The batch's strategy.
    pub asked: Strategy,
    pub seed: u64,
    /// The candidates, best first.
    pub candidates: Vec<ExplainedCandidate>,
    /// Number of agents that accepted work and were not excluded; `None` if not stored.
    pub available: Option<u32>,
    /// Number of agents excluded by constraints.
    pub excluded: usize,
    /// Why the agent was chosen, and any deviation from the batch's strategy.
    pub why: ChoiceReasons,
}

/// Returns a sentence that starts with "chosen because".
pub fn because(choice: &ExplainedChoice) -> String {
    let note = note(&choice.why);
    // If the task was moved from another agent, the strategy did not choose this agent, so the text
    // does not describe the strategy.
    let moved = match (&choice.why.cause, &note) {
        (ChoiceCause::NextCandidate, Some(note)) => Some(format!("it is {note}")),
        (ChoiceCause::Rebalanced { .. } | ChoiceCause::TakenBack { .. }, Some(note)) => {
            Some(format!("the site {note}"))
        }
        _ => None,
    };
    let mut text = "chosen because ".to_owned();
    let last = match moved {
        Some(moved) => {
            text.push_str(&moved);
            ranked(choice).map(|rank| format!("it is {rank}"))
        }
        None => {
            text.push_str(&drawn(choice));
            note
        }
    };
    if let Some(last) = last {
        text.push_str(&format!("; {last}"));
    }
    match choice.excluded {
        0 => {}
        1 => text.push_str("; 1 agent was excluded by the batch's constraints"),
        count => text.push_str(&format!("; {count} agents were excluded by the batch's constraints")),
    }
    text
}

fn drawn(choice: &ExplainedChoice) -> String {
    let ExplainedChoice { strategy, asked, seed, .. } = choice;
    let among = match choice.available {
        Some(1) => "it was the only agent to choose from".to_owned(),
        Some(count) => format!("it was drawn at random among {count} agents, with the seed {seed}"),
        None => format!("it was drawn at random among all agents, with the seed {seed}"),
    };
    let said = match ranked(choice) {
        Some(rank) if *strategy != Strategy::Random => by_strategy(choice, &rank),
        _ => among,
    };
    match choice.why.fallback.as_ref().map(fallback) {
        Some(fallback) => format!("{said}: {asked} could not be used ({fallback})"),
        None => said,
    }
}

/// Describes how a strategy other than `random` chose.
fn by_strategy(choice: &ExplainedChoice, rank: &str) -> String {
    let ExplainedChoice { strategy, seed, .. } = choice;
    match (*strategy, choice.candidates.len()) {
        (Strategy::GNP_TOP1, 1) => format!("it is the nearest{}", of_it(choice)),
        (Strategy::GnpConfirmed, _) => format!("of those that measured the site it is {rank}"),
        (Strategy::GnpTop(_), count) if count > 1 => {
            format!("it was drawn among the {count} nearest, with the seed {seed}: it is {rank}")
        }
        (Strategy::Hash, _) => format!("the site's name hashes to it: it is {rank}"),
        (Strategy::Kademlia, _) => format!("its identifier is nearest to the site's key by XOR: it is {rank}"),
        (Strategy::Domain, _) => format!("the suffix of the site's name leads to it: it is {rank}"),
        (Strategy::Geographic, _) => format!("it is among the nearest on the globe: it is {rank}"),
        (Strategy::Prefix, _) => format!("its address shares the longest prefix with the site's: it is {rank}"),
        (Strategy::GnpBalanced, count) if count > 1 => {
            format!(
                "it was drawn by free slots and nearness among the {count} nearest, with the seed {seed}: it is {rank}"
            )
        }
        (Strategy::EarliestFinish, _) => format!("it was planned together with all sites that waited: it is {rank}"),
        (strategy, _) => format!("{strategy} chose among its candidates, with the seed {seed}: it is {rank}"),
    }
}

/// The chosen agent's rank, such as "2nd of 3, 12.0 ms predicted"; `None` if the agent is not among
/// the candidates.
fn ranked(choice: &ExplainedChoice) -> Option<String> {
    let place = choice.candidates.iter().position(|one| one.agent == choice.agent)? + 1;
    let count = choice.candidates.len();
    let place = if count == 1 { "the only candidate".to_owned() } else { format!("{} of {count}", ordinal(place)) };
    Some(format!("{place}{}", of_it(choice)))
}

/// The chosen agent's distance, such as ", 12.0 ms predicted"; empty if the distance is unknown.
fn of_it(choice: &ExplainedChoice) -> String {
    let it = choice.candidates.iter().find(|one| one.agent == choice.agent);
    it.and_then(ExplainedCandidate::distance).map_or_else(String::new, |distance| format!(", {distance}"))
}

fn ordinal(number: usize) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedWait {
    pub cause: WaitCause,
    pub about: WaitDetail,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum WaitDetail {
    #[default]
    Cause,
    Address(String),
    Constraints(Constraints, NoEligibleAgent),
}

impl WaitDetail {
    pub fn text(&self) -> String {
        match self {
            Self::Cause => String::new(),
            Self::Address(address) => address.clone(),
            Self::Constraints(asked, why) => nobody(asked, why),
        }
    }
}

impl From<WaitCause> for ExplainedWait {
    fn from(cause: WaitCause) -> Self {
        Self { cause, about: WaitDetail::Cause }
    }
}

/// Returns the cause as text that follows "no agent yet: " or "12 sites: ".
pub fn waits(ExplainedWait { cause, about }: &ExplainedWait) -> String {
    let why = match cause {
        WaitCause::Queued => "it is queued to be measured",
        WaitCause::Measurements => "it is being measured",
        WaitCause::Choice => "an agent is about to be chosen",
        WaitCause::Planned => "planned: waits for its slot to become free",
        WaitCause::NoAgent => "no agent is connected",
        WaitCause::NoneAcceptsWork => {
            "every connected agent is draining, paused or losing its connection: see `landfall agents list`"
        }
        WaitCause::NoLandmarks => "no landmarks: run `landfall landmarks elect --count 9`",
        WaitCause::LandmarksAway => "no landmark is connected",
        WaitCause::AllQuarantined => "every agent that could measure is quarantined: see `landfall landmarks list`",
        WaitCause::NoMap => "waiting for the embedding",
        WaitCause::Confirming => "the agents that may be nearest are measuring it",
        WaitCause::Address => match about {
            WaitDetail::Address(address) => return format!("other crawls occupy its address {address}"),
            _ => "other crawls occupy its address",
        },
        WaitCause::Pause => "its site asked for a pause",
        WaitCause::Breaker => "its circuit is open because requests kept failing: `landfall sites reopen` closes it",
        WaitCause::Unmet => match about {
            WaitDetail::Constraints(asked, why) => return nobody(asked, why),
            _ => "no agent meets the constraints",
        },
    };
    why.to_owned()
}

/// Explains why an agent is excluded, as text that follows the agent's name.
pub fn exclusion(asked: &Constraints, exclusion: &Exclusion) -> String {
    excluded(asked, exclusion, true)
}

fn excluded(asked: &Constraints, exclusion: &Exclusion, one: bool) -> String {
    let (is, has) = if one { ("is", "has") } else { ("are", "have") };
    match exclusion {
        Exclusion::Country => format!("{is} not in {}", either(&asked.countries)),
        Exclusion::Carrier => format!("{is} not with {}", either(&asked.carriers)),
        Exclusion::Tag(tag) => format!("{} the tag '{tag}'", if one { "lacks" } else { "lack" }),
        Exclusion::Quota => {
            let quota = asked.bytes_per_day.unwrap_or_default();
            format!("{has} used up {} a day, counting crawls under way", bytes(quota))
        }
    }
}

/// Explains why no agent gets a batch's tasks although some agent accepts work.
pub fn nobody(asked: &Constraints, NoEligibleAgent { cause, excluded: out }: &NoEligibleAgent) -> String {
    let ExcludedAgents { fleet, by } = out;
    match cause {
        UnmetCause::TakeNoWork => {
            let meet = out.meet();
            let (agents, take) = if meet == 1 { ("agent that meets", "takes") } else { ("agents that meet", "take") };
            format!("the {meet} {agents} the constraints {take} no work now: see `landfall agents list`")
        }
        UnmetCause::Excluded => {
            let mut parts = Vec::new();
            for (exclusion, count) in by {
                let of = if parts.is_empty() { format!("{count} of {fleet}") } else { count.to_string() };
                parts.push(format!("{of} {}", excluded(asked, exclusion, *count == 1)));
            }
            format!("no agent meets the constraints: {}", parts.join(", "))
        }
    }
}

/// Joins values with "or": "CN", "CN or JP", "CN, JP or KR".
fn either(values: &[String]) -> String {
    match values {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

/// Formats a number of bytes, such as "1.5 MB" or "999 B".
fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let scaled = UNITS.into_iter().find(|(unit, _)| bytes >= *unit);
    scaled.map_or_else(
        || format!("{bytes} B"),
        |(unit, name)| format!("{}.{} {name}", bytes / unit, bytes % unit / (unit / 10)),
    )
}

/// Describes a group of waiting sites, such as "12 sites: no agent is connected".
pub fn sites_wait(wait: &ExplainedWait, sites: u64) -> String {
    format!("{sites} site{}: {}", if sites == 1 { "" } else { "s" }, waits(wait))
}

/// One line for a list of tasks: why the task ended, why the task waits, why a fallback replaced
/// the batch's strategy, or the task's message. Empty if none of these applies.
pub fn reason(
    ended: Option<String>,
    waits_for: Option<&ExplainedWait>,
    why: Option<&ChoiceReasons>,
    message: Option<String>,
) -> String {
    let waits = || waits_for.filter(|wait| wait.cause.needs_saying()).map(waits);
    let fallback = || why.filter(|_| waits_for.is_none()).and_then(|why| why.fallback.as_ref()).map(fallback);
    ended.or_else(waits).or_else(fallback).or(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn considered(agent: &str, predicted: Option<f64>, measured: Option<f64>) -> ExplainedCandidate {
        let rtt = |millis: f64| Rtt::try_from_millis_f64(millis).unwrap();
        ExplainedCandidate {
            agent: agent.into(),
            predicted: predicted.map(rtt),
            measured: measured.map(rtt),
            level: Some(-1),
        }
    }

    fn choice(strategy: Strategy) -> ExplainedChoice {
        ExplainedChoice {
            agent: "b".into(),
            strategy,
            asked: strategy,
            seed: 7,
            candidates: vec![
                considered("a", Some(9.0), Some(10.0)),
                considered("b", Some(12.0), None),
                considered("c", None, Some(30.0)),
            ],
            available: Some(30),
            excluded: 0,
            why: ChoiceReasons::default(),
        }
    }

    fn why(cause: ChoiceCause) -> ChoiceReasons {
        ChoiceReasons { cause, ..ChoiceReasons::default() }
    }

    fn lost() -> Option<FormerAgent> {
        Some(FormerAgent { agent: "a".into(), how: Parting::Lost })
    }

    fn fell_back(cause: FallbackCause) -> ChoiceReasons {
        ChoiceReasons { fallback: Some(cause.into()), ..ChoiceReasons::default() }
    }

    #[test]
    fn every_strategy_says_what_it_did() {
        for &strategy in Strategy::ALL {
            let said = because(&choice(strategy));
            assert!(said.starts_with("chosen because "), "{said}");
        }
        assert_eq!(
            because(&choice(Strategy::GNP_TOP3)),
            "chosen because it was drawn among the 3 nearest, with the seed 7: it is 2nd of 3, 12.0 ms predicted"
        );
        assert_eq!(
            because(&choice(Strategy::GnpConfirmed)),
            "chosen because of those that measured the site it is 2nd of 3, 12.0 ms predicted"
        );
        let alone = ExplainedChoice {
            agent: "a".into(),
            candidates: vec![considered("a", None, Some(10.0))],
            ..choice(Strategy::GNP_TOP1)
        };
        assert_eq!(because(&alone), "chosen because it is the nearest, 10.0 ms measured");
        let taken = ChoiceCause::TakenBack { from: "a".into(), remaining_ms: 83_600, takes_ms: Some(4_260) };
        assert_eq!(
            because(&ExplainedChoice { why: why(taken), ..choice(Strategy::EarliestFinish) }),
            "chosen because the site was taken back from a, where it would have taken about 84 s more; here it takes about 4.3 s; it is 2nd of 3, 12.0 ms predicted"
        );
        assert_eq!(
            because(&choice(Strategy::Random)),
            "chosen because it was drawn at random among 30 agents, with the seed 7"
        );
        let only = ExplainedChoice { available: Some(1), ..choice(Strategy::Random) };
        assert_eq!(because(&only), "chosen because it was the only agent to choose from");
    }

    #[test]
    fn what_was_not_as_usual_is_said() {
        let no_map = || ExplainedChoice {
            strategy: Strategy::Random,
            asked: Strategy::GNP_TOP3,
            why: fell_back(FallbackCause::NoDistance),
            available: None,
            ..choice(Strategy::Random)
        };
        let nearest = ExplainedChoice {
            strategy: Strategy::GNP_TOP1,
            asked: Strategy::GnpConfirmed,
            why: ChoiceReasons { fallback: Some(FallbackCause::Unmeasured.into()), ..ChoiceReasons::default() },
            candidates: vec![considered("b", None, Some(12.0))],
            ..no_map()
        };
        let full = why(ChoiceCause::Strategy { full: 1, of: 3 });
        let waited = why(ChoiceCause::Rebalanced { from: "a".into(), gain: Gain::BeginsAtOnce });
        let next = ChoiceReasons { cause: ChoiceCause::NextCandidate, parted: lost(), fallback: None };
        let explores = ChoiceReasons { cause: ChoiceCause::Explores, parted: lost(), fallback: None };
        let top3 = |why: ChoiceReasons| ExplainedChoice { why, ..choice(Strategy::GNP_TOP3) };
        for (recorded, said) in [
            (
                nearest,
                "it is the nearest, 12.0 ms measured: gnp-confirmed could not be used \
                 (no landmark could measure it: nothing was reported)",
            ),
            (
                no_map(),
                "it was drawn at random among all agents, with the seed 7: gnp-top3 could not be used \
                 (no agent's distance to the site is known)",
            ),
            (
                ExplainedChoice { excluded: 18, ..top3(full) },
                "it was drawn among the 3 nearest, with the seed 7: it is 2nd of 3, 12.0 ms predicted; \
                 1 of 3 candidates had no free slot; 18 agents were excluded by the batch's constraints",
            ),
            (
                top3(waited),
                "the site waited at a, which was full; begins at once here; it is 2nd of 3, 12.0 ms predicted",
            ),
            (
                top3(next),
                "it is the next candidate: a, chosen before, was lost with its crawl; it is 2nd of 3, 12.0 ms predicted",
            ),
            (
                top3(explores),
                "it was drawn among the 3 nearest, with the seed 7: it is 2nd of 3, 12.0 ms predicted; explores: it \
                 may be nearer than the best known agent; a, chosen before, was lost with its crawl",
            ),
            (
                ExplainedChoice { agent: "x".into(), excluded: 1, ..choice(Strategy::GNP_TOP3) },
                "it was drawn at random among 30 agents, with the seed 7; 1 agent was excluded by the batch's constraints",
            ),
        ] {
            assert_eq!(because(&recorded), format!("chosen because {said}"));
        }
    }

    #[test]
    fn every_cause_has_a_sentence_of_its_own() {
        let name = |agent: &str| agent.to_owned();
        let waits = WaitCause::ALL.iter().map(|cause| waits(&(*cause).into()));
        let fallbacks = FallbackCause::ALL.iter().map(|cause| fallback(&Fallback { cause: *cause, said: name("so") }));
        let partings = Parting::ALL.iter().map(|how| parted(&FormerAgent { agent: name("a"), how: *how }));
        let gains = Gain::ALL.iter().map(|gain| ChoiceCause::Rebalanced { from: name("a"), gain: *gain });
        let others = [
            ChoiceCause::Strategy { full: 2, of: 3 },
            ChoiceCause::Explores,
            ChoiceCause::Spread { confidence: 0.966, near: 5 },
            ChoiceCause::NextCandidate,
            ChoiceCause::TakenBack { from: name("a"), remaining_ms: 400, takes_ms: None },
        ];
        let notes = gains.chain(others).map(|cause| note(&why(cause)).expect("a note"));
        let said: Vec<String> = waits.chain(fallbacks).chain(partings).chain(notes).collect();
        let different: std::collections::BTreeSet<&String> = said.iter().collect();
        assert_eq!(different.len(), said.len(), "{said:#?}");
        assert!(said.iter().all(|one| !one.is_empty() && !one.ends_with('.')), "{said:#?}");
        assert_eq!(note(&ChoiceReasons::default()), None, "the strategy was followed");
    }

    #[test]
    fn a_wait_names_what_it_is_about() {
        let about = |cause, about| waits(&ExplainedWait { cause, about });
        let asked = Constraints { countries: vec!["JP".into()], ..Constraints::default() };
        let unmet = WaitDetail::Constraints(asked, NoEligibleAgent::of(1, &[Exclusion::Country]));
        assert_eq!(
            about(WaitCause::Address, WaitDetail::Address("10.0.0.1".into())),
            "other crawls occupy its address 10.0.0.1"
        );
        assert_eq!(about(WaitCause::Unmet, unmet), "no agent meets the constraints: 1 of 1 is not in JP");
        assert_eq!(about(WaitCause::NoAgent, WaitDetail::Cause), "no agent is connected");
    }

    #[test]
    fn nobody_is_explained_by_what_excluded_how_many() {
        let asked = Constraints {
            countries: vec!["CN".into(), "JP".into()],
            bytes_per_day: Some(1_500_000),
            ..Constraints::default()
        };
        let fast = Exclusion::Tag("fast".into());
        let said = |fleet, by: &[(&Exclusion, usize)]| {
            let each = by.iter().flat_map(|(exclusion, count)| std::iter::repeat_n(*exclusion, *count));
            nobody(&asked, &NoEligibleAgent::of(fleet, each))
        };
        assert_eq!(
            said(30, &[(&Exclusion::Country, 12), (&fast, 17), (&Exclusion::Quota, 1)]),
            "no agent meets the constraints: 12 of 30 are not in CN or JP, 17 lack the tag 'fast', \
             1 has used up 1.5 MB a day, counting crawls under way"
        );
        assert_eq!(said(1, &[(&fast, 1)]), "no agent meets the constraints: 1 of 1 lacks the tag 'fast'");
        assert_eq!(
            said(2, &[(&fast, 1)]),
            "the 1 agent that meets the constraints takes no work now: see `landfall agents list`"
        );
        assert_eq!(exclusion(&asked, &Exclusion::Country), "is not in CN or JP");
    }

    #[test]
    fn bytes_read_well() {
        assert_eq!([0, 999, 1_000, 1_950_000, 64 << 30].map(bytes), ["0 B", "999 B", "1.0 kB", "1.9 MB", "68.7 GB"]);
    }

    #[test]
    fn places_are_counted_as_people_do() {
        let said: Vec<String> = [1, 2, 3, 4, 11, 12, 13, 21, 112, 101].into_iter().map(ordinal).collect();
        assert_eq!(said.join(" "), "1st 2nd 3rd 4th 11th 12th 13th 21st 112th 101st");
    }
}
