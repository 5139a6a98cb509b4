//! Explains, for messages, why a scheduler cannot be reached.

use std::error::Error;

use landfall_proto::peer;
use tonic::Status;

use crate::config::SchedulerUrl;
use crate::net::error_causes::innermost;

/// Why the connection failed.
pub(crate) fn why(error: &(dyn Error + 'static)) -> String {
    peer::stranger(error).map_or_else(|| innermost(error), foreign_server)
}

/// Why the first call over a new connection failed.
pub(crate) async fn why_broken(scheduler: &SchedulerUrl, status: &Status) -> String {
    let stranger = match scheduler.url.as_str().parse() {
        Ok(uri) => peer::greeted(&uri).await,
        Err(_) => None,
    };
    stranger.map_or_else(|| innermost(status), foreign_server)
}

fn foreign_server(stranger: peer::Stranger) -> String {
    format!("the server there is not a scheduler of this fleet: {stranger}")
}
