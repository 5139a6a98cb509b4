//! The functions here describe an agent's service state in words, and choose its colour.

use landfall_proto::json::Word as _;
use landfall_proto::v1::{Agent, ServiceState};

use crate::cli::output::Tone;

/// Describes an agent's service state in words, with the reason for a pause.
pub(in crate::cli) fn service_words(state: ServiceState, paused: &str) -> String {
    match state {
        ServiceState::Paused => format!("paused: {paused}"),
        ServiceState::NeverConnected => "never connected".to_owned(),
        _ => state.word_or_unknown().to_owned(),
    }
}

/// Describes an agent's service state, with a warning if a second process uses its credential.
pub(crate) fn service(agent: &Agent) -> String {
    let words = service_words(agent.service(), &agent.paused);
    match agent.twin_at {
        Some(_) => format!("{words}; a second process uses its credential"),
        None => words,
    }
}

pub(in crate::cli) const fn service_tone(service: ServiceState) -> Tone {
    match service {
        ServiceState::Ready => Tone::Good,
        ServiceState::Draining | ServiceState::Drained | ServiceState::Paused | ServiceState::Away => Tone::Pausing,
        ServiceState::Quarantined => Tone::Bad,
        ServiceState::Unspecified | ServiceState::Removed | ServiceState::NeverConnected => Tone::Plain,
    }
}
