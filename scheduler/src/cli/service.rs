//! Whether an agent takes work, as the scheduler decided: as a flag's value, and in plain words.

use clap::builder::TypedValueParser;
use landfall_proto::json::Word;
use landfall_proto::v1::ServiceState;

/// Takes the words of all that a scheduler says.
pub(super) fn parser() -> impl TypedValueParser<Value = ServiceState> {
    super::one_of((1..).map_while(|number| ServiceState::try_from(number).ok()), Word::word)
}

/// For people; a pause with its reason.
pub(super) fn words(state: ServiceState, paused: &str) -> String {
    match state {
        ServiceState::Paused => format!("paused: {paused}"),
        ServiceState::NeverConnected => "never connected".to_owned(),
        _ => state.word_or_unknown().to_owned(),
    }
}
