//! Explains, for messages, why a scheduler cannot be reached.

use std::error::Error;

use landfall_proto::error_causes::innermost;
use landfall_proto::foreign_server::{self, ForeignServer};
use tonic::Status;

use crate::config::SchedulerUrl;

/// Why the connection failed.
pub(crate) fn why(error: &(dyn Error + 'static)) -> String {
    foreign_server::of_error(error).map_or_else(|| innermost(error), sentence)
}

/// Why the first call over a new connection failed.
pub(crate) async fn why_broken(scheduler: &SchedulerUrl, status: &Status) -> String {
    let foreign = match scheduler.url.as_str().parse() {
        Ok(uri) => foreign_server::greeted(&uri).await,
        Err(_) => None,
    };
    foreign.map_or_else(|| innermost(status), sentence)
}

fn sentence(foreign: ForeignServer) -> String {
    foreign.sentence("the server there")
}
