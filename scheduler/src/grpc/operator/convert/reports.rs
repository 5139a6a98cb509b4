//! Converts the messages of the gRPC service for reports. Also applies the filters and limits of
//! lists.

use landfall_proto::v1;

use crate::model::ReportGroup;
use crate::model::{ReasonKind, TaskState};
use crate::store::agents::Agent;
use crate::store::reports::accuracy::AccuracyRow;
use crate::store::reports::failures::FailureRow;
use crate::store::reports::hosts::HostRow;
use crate::store::reports::{AgentRow, AssignmentRow, Groups};
use crate::strategy::{LoadLevel, explain};

use super::filters::Places;
use super::{InvalidField, duration, rtt, timestamp, whole};

pub(in crate::grpc) fn states(asked: &[i32]) -> Result<Vec<TaskState>, InvalidField> {
    let known = |value: &i32| TaskState::try_from(v1::TaskState::try_from(*value).ok()?).ok();
    let unknown = |value: &i32| InvalidField::new("states", format!("{value} is not a task state"));
    asked.iter().map(|value| known(value).ok_or_else(|| unknown(value))).collect()
}

pub(in crate::grpc) fn reasons(asked: &[i32]) -> Result<Vec<ReasonKind>, InvalidField> {
    let unknown = |value: &i32| InvalidField::new("reasons", format!("{value} is not a kind of reason"));
    let known = |value: &i32| ReasonKind::try_from(v1::ReasonKind::try_from(*value).ok()?).ok();
    asked.iter().map(|value| known(value).ok_or_else(|| unknown(value))).collect()
}

/// The properties by which rows about crawls may be grouped.
pub(in crate::grpc) const OF_CRAWLS: &[ReportGroup] =
    &[ReportGroup::Agent, ReportGroup::City, ReportGroup::Carrier, ReportGroup::Day];

/// Parses the properties by which a report's rows are grouped. Each property must be one of
/// `permitted`.
pub(in crate::grpc) fn groups(asked: &[i32], permitted: &[ReportGroup]) -> Result<Groups, InvalidField> {
    let known = |value: &i32| ReportGroup::try_from(v1::ReportGroup::try_from(*value).ok()?).ok();
    let unknown = |value: &i32| InvalidField::new("by", format!("{value} is nothing that this report has rows about"));
    let groups: Result<Vec<ReportGroup>, InvalidField> = asked
        .iter()
        .map(|value| known(value).filter(|group| permitted.contains(group)).ok_or_else(|| unknown(value)))
        .collect();
    Ok(Groups::of(&groups?))
}

impl From<AccuracyRow> for v1::AccuracyRow {
    fn from(row: AccuracyRow) -> Self {
        let AccuracyRow { agent, city, carrier, day, crawled, probed } = row;
        Self {
            agent: agent.unwrap_or_default(),
            city: city.unwrap_or_default(),
            carrier: carrier.unwrap_or_default(),
            day: day.unwrap_or_default(),
            crawls: crawled.count,
            median_error: crawled.median,
            p90_error: crawled.p90,
            median_ratio: crawled.ratio,
            probed: probed.count,
            probed_median_error: probed.median,
            probed_p90_error: probed.p90,
            probed_median_ratio: probed.ratio,
        }
    }
}

impl From<HostRow> for v1::HostRow {
    fn from(row: HostRow) -> Self {
        let HostRow { host, sites, example, found_at, listed } = row;
        Self { host, sites, example, found_at: Some(timestamp(found_at)), listed, more: 0 }
    }
}

impl From<FailureRow> for v1::FailureRow {
    fn from(row: FailureRow) -> Self {
        Self {
            reason_kind: row.reason.map_or(v1::ReasonKind::Unspecified, Into::into).into(),
            agent: row.agent.unwrap_or_default(),
            city: row.city.unwrap_or_default(),
            carrier: row.carrier.unwrap_or_default(),
            day: row.day.unwrap_or_default(),
            batch: row.batch.unwrap_or_default(),
            sites: row.sites,
            share: row.share,
            last_failed_at: Some(timestamp(row.last)),
            example: row.example,
        }
    }
}

/// Whether an agent matches the filter of the request. `places` is part of this filter.
pub(in crate::grpc) fn is_asked_for(agent: &Agent, asked: &v1::ListAgentsRequest, places: &Places) -> bool {
    let service = i32::from(v1::ServiceState::from(agent.service()));
    (asked.removed || agent.removed_at.is_none())
        && places.include(&agent.city, &agent.carrier, &agent.country)
        && asked.tags.iter().all(|tag| agent.tags.contains(tag))
        && (asked.services.is_empty() || asked.services.contains(&service))
}

/// Returns the first `limit` rows (all if `limit` is 0) and the number of omitted rows.
pub(in crate::grpc) fn first<T>(mut rows: Vec<T>, limit: u64) -> (Vec<T>, u64) {
    let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let more = whole(rows.len().saturating_sub(limit));
    rows.truncate(limit);
    (rows, more)
}

impl From<AssignmentRow> for v1::AssignmentRow {
    fn from(row: AssignmentRow) -> Self {
        let mut message = Self {
            wait: row.waits.as_ref().map(Into::into),
            why: row.choice.as_ref().map(|choice| (&choice.why).into()),
            site: row.site,
            origin: row.origin.unwrap_or_default(),
            state: row.state.name().to_owned(),
            reason: explain::reason(
                row.reason,
                row.waits.as_ref(),
                row.choice.as_ref().map(|choice| &choice.why),
                row.message,
            ),
            assignments: row.assignments,
            anycast_confidence: row.anycast,
            probes: row.probes,
            confirming_probes: row.confirming_probes,
            requests: row.requests,
            round: row.round,
            reason_kind: row.reason_kind.map_or(v1::ReasonKind::Unspecified, Into::into).into(),
            state_since: Some(timestamp(row.state_since)),
            ..Self::default()
        };
        if let Some(choice) = row.choice {
            message.agent = choice.agent;
            message.city = choice.city;
            message.carrier = choice.carrier;
            message.strategy = choice.strategy.to_string();
            message.note = explain::note(&choice.why).unwrap_or_default();
            message.rank = choice.rank.unwrap_or_default();
            message.predicted = rtt(choice.predicted);
            message.measured = rtt(choice.measured);
        }
        if let Some(outcome) = row.outcome {
            message.outcome = outcome.kind.name().to_owned();
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
        let agent = row.agent;
        Self {
            landmark: agent.landmark,
            connected: agent.connected && !agent.disconnected,
            load_level: agent.level().map(LoadLevel::get),
            service: v1::ServiceState::from(agent.service()).into(),
            agent: agent.name,
            city: agent.city,
            carrier: agent.carrier,
            assigned: row.assigned,
            complete: row.complete,
            truncated: row.truncated,
            failed: row.failed,
            pages: row.pages,
            bytes: row.bytes,
            mean_rtt: rtt(row.mean_rtt),
        }
    }
}
