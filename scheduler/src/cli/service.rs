//! Whether an agent takes work, as the scheduler decided: a word for programs, and plain words for people.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use landfall_proto::v1::ServiceState;
use serde::{Serialize, Serializer};

/// How an agent's service stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Service(ServiceState);

impl From<ServiceState> for Service {
    fn from(state: ServiceState) -> Self {
        Self(state)
    }
}

impl From<Service> for ServiceState {
    fn from(service: Service) -> Self {
        service.0
    }
}

impl Serialize for Service {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl Service {
    /// Takes the words of all that a scheduler says.
    pub(super) fn parser() -> impl TypedValueParser<Value = Self> {
        let states = || (1..).map_while(|number| ServiceState::try_from(number).ok()).map(Self);
        PossibleValuesParser::new(states().map(Self::word))
            .map(move |word| states().find(|state| state.word() == word).expect("a possible value"))
    }

    /// The word that programs get: it stays.
    const fn word(self) -> &'static str {
        match self.0 {
            // A scheduler that is older than this program.
            ServiceState::Unspecified => "unknown",
            ServiceState::Ready => "ready",
            ServiceState::Draining => "draining",
            ServiceState::Drained => "drained",
            ServiceState::Paused => "paused",
            ServiceState::Away => "away",
            ServiceState::Removed => "removed",
            ServiceState::Quarantined => "quarantined",
            ServiceState::NeverConnected => "never-connected",
        }
    }

    /// For people; a pause with its reason.
    pub(super) fn words(self, paused: &str) -> String {
        match self.0 {
            ServiceState::Paused => format!("paused: {paused}"),
            ServiceState::NeverConnected => "never connected".to_owned(),
            _ => self.word().to_owned(),
        }
    }
}
