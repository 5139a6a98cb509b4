//! Fields that several messages of agents have: how they are validated, and the answer's envelope.

use std::time::Duration;

use landfall_proto::v1;

use crate::grpc::operator::convert::plain;
use crate::model::{LeaseToken, Rtt, TaskId, naming};

/// Maximum number of slots of one agent; the schema has the same bound.
pub(super) const MAX_CAPACITY: u32 = 10_000;
/// Maximum number of characters that are stored from an agent's free text.
const MAX_TEXT: usize = 500;
/// Maximum length of one pause that a site can request.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) fn lease_key(task: i64, token: i64) -> (TaskId, LeaseToken) {
    (TaskId::new(task), LeaseToken::new(token))
}

pub(super) fn rtt(value: Option<prost_types::Duration>) -> Option<Rtt> {
    plain(value).and_then(|duration| Rtt::try_new(duration).ok())
}

/// Makes an agent's text printable, and truncates it to the stored length.
pub(super) fn clip(mut text: String) -> String {
    text.retain(naming::is_shown);
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT) {
        text.truncate(end);
    }
    text
}

/// Wraps the message that answers an agent.
pub(super) fn respond(message: v1::session_response::Message) -> v1::SessionResponse {
    v1::SessionResponse { message: Some(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_agents_is_bounded_and_printable() {
        assert_eq!(clip("a\u{1b}[31mb\n".into()), "a[31mb");
        assert_eq!(clip("é".repeat(2 * MAX_TEXT)).chars().count(), MAX_TEXT);
    }
}
