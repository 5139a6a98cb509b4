//! Why a task has its agent, or has none: a sentence for people, from what was recorded.
//!
//! Pure. Nothing is computed anew: a choice is explained by what it was made from, as it was then.

use std::time::Duration;

use crate::model::{Rtt, Strategy};

/// How the note of a choice begins that was made because a waiting task went on to another agent.
pub const WAITED: &str = "waited at ";
/// How the note of a choice begins whose former agent was gone.
pub const NEXT: &str = "the next candidate: ";
/// How the note of a choice begins whose crawl was under way elsewhere.
pub const TAKEN_BACK: &str = "was taken back from ";

/// What became of a task at the agent that was chosen for it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parting {
    /// The agent's session ended without a word while it crawled.
    Lost,
    /// The agent's process began anew and did not have the crawl any more.
    Restarted,
    /// The agent connected anew and did not have the crawl any more.
    Reconnected,
    /// The agent was enrolled anew on another machine.
    Replaced,
    /// The agent said goodbye and handed nothing back.
    Left,
    /// The operator removed the agent while it crawled.
    Removed,
    /// The database went back to a moment in the crawl.
    Restored,
    /// The crawl crashed, and the agent did not.
    Crashed,
    /// The agent handed it back.
    HandedBack {
        /// Because it drains.
        drains: bool,
    },
    /// The agent never had a lease of it.
    NotBegun(Absence),
}

/// Why an agent did not begin what was assigned to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// It is not connected.
    Away,
    /// The operator removed it.
    Removed,
    /// It drains.
    Drains,
    /// It takes no lease for a while.
    Paused,
    /// Its stream broke.
    HungUp,
    /// It takes work, but not this: the batch's constraints exclude it by now, or it was free to.
    Excluded,
}

/// "a, chosen before, was lost with its crawl".
pub fn parted(agent: &str, parting: Parting) -> String {
    let how = match parting {
        Parting::Lost => "was lost with its crawl",
        Parting::Restarted => "began anew without its crawl",
        Parting::Reconnected => "connected anew without its crawl",
        Parting::Replaced => "was moved to another machine",
        Parting::Left => "left with its crawl",
        Parting::Removed => "was removed with its crawl",
        Parting::Restored => "crawled it when the backup was made that was restored",
        Parting::Crashed => "has a crawl of it that crashed",
        Parting::HandedBack { drains: true } => "is drained and handed it back",
        Parting::HandedBack { drains: false } => "handed it back",
        Parting::NotBegun(Absence::Away) => "was away before it began it",
        Parting::NotBegun(Absence::Removed) => "was removed before it began it",
        Parting::NotBegun(Absence::Drains) => "is drained and had not begun it",
        Parting::NotBegun(Absence::Paused) => "paused before it began it",
        Parting::NotBegun(Absence::HungUp) => "hung up before it began it",
        Parting::NotBegun(Absence::Excluded) => "had not begun it and may not have it any more",
    };
    format!("{agent}, chosen before, {how}")
}

/// How it begins what is said of a task whose lease was asked for, and came back.
pub const CAME_BACK: &str = "taken back from ";

/// What is said of a task whose lease was asked for, and came back.
pub fn taken_back(from: &str, here: Duration) -> String {
    format!("{CAME_BACK}{from}, where it would have gone on for about {}", about(here))
}

/// The note of the choice that follows; `takes` where that was predicted.
pub fn taken_over(from: &str, here: Duration, takes: Option<Duration>) -> String {
    let taken_back = taken_back(from, here);
    match takes {
        Some(takes) => format!("was {taken_back}; it takes about {} here", about(takes)),
        None => format!("was {taken_back}"),
    }
}

/// Why a lease is asked for, as its agent is told.
pub fn ends_sooner(to: &str, there: Duration, here: Duration) -> String {
    format!("{to} would end it in about {}; here it goes on for about {}", about(there), about(here))
}

/// "12 s", "0.4 s".
fn about(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

/// A candidate of a recorded choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Considered {
    /// The agent's name.
    pub agent: String,
    /// The predicted round trip.
    pub predicted: Option<Rtt>,
    /// The measured round trip.
    pub measured: Option<Rtt>,
    /// How full it was; `None` when it was away, or that was not recorded.
    pub level: Option<i64>,
}

impl Considered {
    /// Its distance, and how it is known.
    fn distance(&self) -> Option<String> {
        let said = |rtt: Option<Rtt>, how: &str| rtt.map(|rtt| format!("{rtt} {how}"));
        said(self.measured, "measured").or_else(|| said(self.predicted, "predicted"))
    }
}

/// A recorded choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The name of the agent that was chosen.
    pub agent: String,
    /// The strategy that chose.
    pub strategy: Strategy,
    /// The batch's strategy.
    pub asked: Strategy,
    /// The seed of the draw.
    pub seed: u64,
    /// The candidates, best first.
    pub candidates: Vec<Considered>,
    /// Agents that might have had it: they took work, and nothing excluded them. `None` when that was not recorded.
    pub available: Option<u32>,
    /// Agents that constraints excluded.
    pub excluded: usize,
    /// Why the batch's strategy could not be followed.
    pub fallback: Option<String>,
    /// How it was followed.
    pub note: Option<String>,
}

/// "chosen because ...".
pub fn because(choice: &Recorded) -> String {
    let note = choice.note.as_deref().filter(|note| !note.is_empty());
    let moved = note.filter(|note| [WAITED, NEXT, TAKEN_BACK].iter().any(|how| note.starts_with(how)));
    let mut text = match moved {
        Some(note) if note.starts_with(NEXT) => format!("chosen because it is {note}"),
        Some(note) => format!("chosen because the site {note}"),
        None => format!("chosen because {}", drawn(choice)),
    };
    if let Some(rank) = moved.and_then(|_| ranked(choice)) {
        text.push_str(&format!("; it is {rank}"));
    }
    if let Some(note) = note.filter(|_| moved.is_none()) {
        text.push_str(&format!("; {note}"));
    }
    match choice.excluded {
        0 => {}
        1 => text.push_str("; 1 agent was excluded by the batch's constraints"),
        count => text.push_str(&format!("; {count} agents were excluded by the batch's constraints")),
    }
    text
}

/// What the strategy did.
fn drawn(choice: &Recorded) -> String {
    let Recorded { strategy, asked, seed, .. } = choice;
    let among = match choice.available {
        Some(1) => "it was the only agent to choose from".to_owned(),
        Some(count) => format!("it was drawn at random among {count} agents, with the seed {seed}"),
        None => format!("it was drawn at random among all agents, with the seed {seed}"),
    };
    let said = match ranked(choice) {
        Some(rank) if *strategy != Strategy::Random => by_strategy(choice, &rank),
        _ => among,
    };
    match &choice.fallback {
        Some(fallback) => format!("{said}: {asked} could not be followed ({fallback})"),
        None => said,
    }
}

/// What a strategy did that goes by something.
fn by_strategy(choice: &Recorded, rank: &str) -> String {
    let Recorded { strategy, seed, .. } = choice;
    match (strategy, choice.candidates.len()) {
        (Strategy::GnpTop1, 1) => format!("it is the nearest{}", of_it(choice)),
        (Strategy::GnpConfirmed, _) => format!("of those that measured the site it is {rank}"),
        (Strategy::GnpTop3, count) if count > 1 => {
            format!("it was drawn among the {count} nearest, with the seed {seed}: it is {rank}")
        }
        (Strategy::Hash, _) => format!("the site's name hashes to it: it is {rank}"),
        (Strategy::Kademlia, _) => format!("its identifier is nearest to the site's key by XOR: it is {rank}"),
        (Strategy::Domain, _) => format!("the suffix of the site's name leads to it: it is {rank}"),
        (Strategy::Geographic, _) => format!("it is among the nearest on the globe: it is {rank}"),
        (Strategy::Prefix, _) => format!("its address has most in common with the site's: it is {rank}"),
        (Strategy::GnpBalanced, count) if count > 1 => {
            format!("it was drawn by room and nearness among the {count} nearest, with the seed {seed}: it is {rank}")
        }
        (Strategy::EarliestFinish, _) => format!("it was planned together with all sites that waited: it is {rank}"),
        (strategy, _) => format!("{strategy} chose among its candidates, with the seed {seed}: it is {rank}"),
    }
}

/// "2nd of 3, 12.0 ms predicted"; `None` when it is not among the candidates.
fn ranked(choice: &Recorded) -> Option<String> {
    let place = choice.candidates.iter().position(|one| one.agent == choice.agent)? + 1;
    let count = choice.candidates.len();
    let place = if count == 1 { "the only candidate".to_owned() } else { format!("{} of {count}", ordinal(place)) };
    Some(format!("{place}{}", of_it(choice)))
}

/// ", 12.0 ms predicted", or nothing.
fn of_it(choice: &Recorded) -> String {
    let it = choice.candidates.iter().find(|one| one.agent == choice.agent);
    it.and_then(Considered::distance).map_or_else(String::new, |distance| format!(", {distance}"))
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

/// Why a task has no agent, by its state and what is noted with it; `None` when it has one, or has ended.
pub fn waits(state: &str, reason: Option<&str>) -> Option<String> {
    let usually = match state {
        "submitted" => "its turn to be measured has not come",
        "measuring" => "it is being measured",
        "located" => "an agent is about to be chosen",
        _ => return None,
    };
    Some(format!("no agent yet: {}", reason.filter(|reason| !reason.is_empty()).unwrap_or(usually)))
}

/// What a located task waits for of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// Its turn at this address.
    Address(String),
    /// The end of the pause that its site asked for.
    Pause,
    /// A person, as its site's circuit is open.
    Breaker,
    /// An agent that may crawl it; why there is none.
    Unmet(String),
    /// Agents that may be nearest, which measure its site.
    Confirming,
}

impl Hold {
    /// The word for it in answers.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Address(_) => "address",
            Self::Pause => "pause",
            Self::Breaker => "breaker",
            Self::Unmet(_) => "unmet",
            Self::Confirming => "confirming",
        }
    }
}

/// Why a held task waits.
pub fn held(hold: &Hold) -> String {
    match hold {
        Hold::Address(address) => format!("its turn at {address} has not come"),
        Hold::Pause => "its site asked to be left alone".to_owned(),
        Hold::Breaker => {
            "requests to its site failed without end: `landfall sites reopen` lets it be crawled again".to_owned()
        }
        Hold::Unmet(why) => why.clone(),
        Hold::Confirming => "the agents that may be nearest measure it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn considered(agent: &str, predicted: Option<f64>, measured: Option<f64>) -> Considered {
        let rtt = |millis: f64| Rtt::try_from_millis_f64(millis).unwrap();
        Considered { agent: agent.into(), predicted: predicted.map(rtt), measured: measured.map(rtt), level: Some(-1) }
    }

    fn choice(strategy: Strategy) -> Recorded {
        Recorded {
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
            fallback: None,
            note: None,
        }
    }

    #[test]
    fn every_strategy_says_what_it_did() {
        for strategy in Strategy::ALL {
            let said = because(&choice(strategy));
            assert!(said.starts_with("chosen because "), "{said}");
        }
        assert_eq!(
            because(&choice(Strategy::GnpTop3)),
            "chosen because it was drawn among the 3 nearest, with the seed 7: it is 2nd of 3, 12.0 ms predicted"
        );
        assert_eq!(
            because(&choice(Strategy::GnpConfirmed)),
            "chosen because of those that measured the site it is 2nd of 3, 12.0 ms predicted"
        );
        let alone = Recorded {
            agent: "a".into(),
            candidates: vec![considered("a", None, Some(10.0))],
            ..choice(Strategy::GnpTop1)
        };
        assert_eq!(because(&alone), "chosen because it is the nearest, 10.0 ms measured");
        let seconds = Duration::from_secs_f64;
        let note = Some(taken_over("a", seconds(83.6), Some(seconds(4.26))));
        assert_eq!(
            because(&Recorded { note, ..choice(Strategy::EarliestFinish) }),
            "chosen because the site was taken back from a, where it would have gone on for about 84 s; it takes about \
             4.3 s here; it is 2nd of 3, 12.0 ms predicted"
        );
        assert_eq!(
            because(&choice(Strategy::Random)),
            "chosen because it was drawn at random among 30 agents, with the seed 7"
        );
        let only = Recorded { available: Some(1), ..choice(Strategy::Random) };
        assert_eq!(because(&only), "chosen because it was the only agent to choose from");
    }

    #[test]
    fn what_was_not_as_usual_is_said() {
        let fallback = Recorded {
            strategy: Strategy::Random,
            asked: Strategy::GnpTop3,
            fallback: Some("no map".into()),
            available: None,
            ..choice(Strategy::Random)
        };
        let nearest = Recorded { strategy: Strategy::GnpTop1, asked: Strategy::GnpConfirmed, ..fallback.clone() };
        assert_eq!(
            because(&Recorded { candidates: vec![considered("b", None, Some(12.0))], ..nearest }),
            "chosen because it is the nearest, 12.0 ms measured: gnp-confirmed could not be followed (no map)"
        );
        assert_eq!(
            because(&fallback),
            "chosen because it was drawn at random among all agents, with the seed 7: gnp-top3 could not be followed (no map)"
        );
        let full =
            Recorded { note: Some("1 of 3 candidates had no room".into()), excluded: 18, ..choice(Strategy::GnpTop3) };
        assert_eq!(
            because(&full),
            "chosen because it was drawn among the 3 nearest, with the seed 7: it is 2nd of 3, 12.0 ms predicted; \
             1 of 3 candidates had no room; 18 agents were excluded by the batch's constraints"
        );
        let moved = Recorded {
            note: Some(format!("{WAITED}a, which was full; begins at once here")),
            ..choice(Strategy::GnpTop3)
        };
        assert_eq!(
            because(&moved),
            "chosen because the site waited at a, which was full; begins at once here; it is 2nd of 3, 12.0 ms predicted"
        );
        let next =
            Recorded { note: Some(format!("{NEXT}{}", parted("a", Parting::Lost))), ..choice(Strategy::GnpTop3) };
        assert_eq!(
            because(&next),
            "chosen because it is the next candidate: a, chosen before, was lost with its crawl; \
             it is 2nd of 3, 12.0 ms predicted"
        );
        let gone = Recorded { agent: "x".into(), excluded: 1, ..choice(Strategy::GnpTop3) };
        assert_eq!(
            because(&gone),
            "chosen because it was drawn at random among 30 agents, with the seed 7; 1 agent was excluded by the batch's constraints"
        );
    }

    #[test]
    fn a_task_without_an_agent_says_what_it_waits_for() {
        assert_eq!(waits("located", Some("no landmark")), Some("no agent yet: no landmark".into()));
        assert_eq!(waits("submitted", None), Some("no agent yet: its turn to be measured has not come".into()));
        for state in ["assigned", "leased", "done", "failed", "cancelled"] {
            assert_eq!(waits(state, Some("x")), None);
        }
    }

    #[test]
    fn places_are_counted_as_people_do() {
        let said: Vec<String> = [1, 2, 3, 4, 11, 12, 13, 21, 112, 101].into_iter().map(ordinal).collect();
        assert_eq!(said.join(" "), "1st 2nd 3rd 4th 11th 12th 13th 21st 112th 101st");
    }
}
