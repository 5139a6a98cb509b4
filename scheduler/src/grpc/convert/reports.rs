//! Messages of the reports' service.

use landfall_proto::v1;

use crate::store::reports::{AgentRow, AssignmentRow};
use crate::strategy::LoadLevel;

use super::{duration, rtt, timestamp};

impl From<AssignmentRow> for v1::AssignmentRow {
    fn from(row: AssignmentRow) -> Self {
        let mut message = Self {
            site: row.site,
            origin: row.origin.unwrap_or_default(),
            state: row.state,
            reason: row.reason.unwrap_or_default(),
            assignments: row.assignments,
            anycast_confidence: row.anycast,
            probes: row.probes,
            confirming_probes: row.confirming_probes,
            requests: row.requests,
            round: row.round,
            ..Self::default()
        };
        if let Some(choice) = row.choice {
            message.agent = choice.agent;
            message.city = choice.city;
            message.carrier = choice.carrier;
            message.strategy = choice.strategy;
            message.note = choice.note.unwrap_or_default();
            message.rank = choice.rank.unwrap_or_default();
            message.predicted = rtt(choice.predicted);
            message.measured = rtt(choice.measured);
        }
        if let Some(outcome) = row.outcome {
            message.outcome = outcome.kind;
            message.pages = outcome.pages;
            message.bytes = outcome.bytes;
            message.errors = outcome.errors;
            message.started_at = Some(timestamp(outcome.started_at));
            message.duration = Some(duration(outcome.duration));
            message.crawled = rtt(outcome.rtt);
        }
        message
    }
}

impl From<AgentRow> for v1::AgentRow {
    fn from(row: AgentRow) -> Self {
        Self {
            agent: row.agent,
            city: row.city,
            carrier: row.carrier,
            landmark: row.landmark,
            connected: row.connected,
            assigned: row.assigned,
            complete: row.complete,
            truncated: row.truncated,
            failed: row.failed,
            pages: row.pages,
            bytes: row.bytes,
            mean_rtt: rtt(row.mean_rtt),
            load_level: row.level.map(LoadLevel::get),
            service: v1::ServiceState::from(row.service).into(),
        }
    }
}
