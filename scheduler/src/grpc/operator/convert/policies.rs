//! Converts crawl policies and constraints to messages and back, for operators and agents.

use std::time::Duration;

use landfall_proto::v1;

use crate::model::PolicyRequest;
use crate::model::constraints::{ConstraintsRequest, UnmetAction};

use super::request_fields::InvalidField;
use super::times_and_counts::duration;

impl TryFrom<v1::CrawlPolicy> for PolicyRequest {
    type Error = InvalidField;

    /// Fails if a value is out of bounds.
    fn try_from(asked: v1::CrawlPolicy) -> Result<Self, InvalidField> {
        let request = Self {
            max_pages: asked.max_pages,
            max_bytes: asked.max_bytes,
            max_depth: asked.max_depth,
            max_hosts: asked.max_hosts,
            max_duration: time("policy.max_duration", asked.max_duration)?,
            request_interval: time("policy.request_interval", asked.request_interval)?,
            shortest_interval: time("policy.shortest_interval", asked.shortest_interval)?,
            sitemaps: asked.sitemaps,
            store: asked.store,
            include: asked.include.map(|include| include.patterns),
            exclude: asked.exclude.map(|exclude| exclude.patterns),
            contact_url: asked.contact_url.filter(|url| !url.is_empty()),
            user_agent: asked.user_agent.filter(|name| !name.is_empty()),
            recrawl_interval: time("policy.recrawl_interval", asked.recrawl_interval)?,
        };
        request.checked().map_err(InvalidField::within("policy"))
    }
}

fn time(field: &str, value: Option<prost_types::Duration>) -> Result<Option<Duration>, InvalidField> {
    let value = value.map(Duration::try_from).transpose();
    value.map_err(|_| InvalidField::new(field, "a duration must not be negative"))
}

/// Converts a policy request. A complete policy is first converted to a request with all fields.
impl From<PolicyRequest> for v1::CrawlPolicy {
    fn from(policy: PolicyRequest) -> Self {
        Self {
            max_pages: policy.max_pages,
            max_bytes: policy.max_bytes,
            max_depth: policy.max_depth,
            max_hosts: policy.max_hosts,
            max_duration: policy.max_duration.map(duration),
            request_interval: policy.request_interval.map(duration),
            shortest_interval: policy.shortest_interval.map(duration),
            sitemaps: policy.sitemaps,
            store: policy.store,
            include: policy.include.map(|patterns| v1::PathPatterns { patterns }),
            exclude: policy.exclude.map(|patterns| v1::PathPatterns { patterns }),
            contact_url: policy.contact_url,
            user_agent: policy.user_agent,
            recrawl_interval: policy.recrawl_interval.map(duration),
        }
    }
}

impl TryFrom<v1::Constraints> for ConstraintsRequest {
    type Error = InvalidField;

    /// Fails if a value is out of bounds.
    fn try_from(asked: v1::Constraints) -> Result<Self, InvalidField> {
        let unmet = match v1::Unmet::try_from(asked.unmet) {
            Ok(unmet) => UnmetAction::try_from(unmet).ok(),
            Err(_) => return Err(InvalidField::new("constraints.unmet", "must be wait or fail")),
        };
        let v1::Constraints { countries, carriers, tags, bytes_per_day, .. } = asked;
        let request = Self { countries, carriers, tags, bytes_per_day, unmet };
        request.checked().map_err(InvalidField::within("constraints"))
    }
}

/// Converts a constraints request. Complete constraints are first converted to a request with all
/// fields.
impl From<ConstraintsRequest> for v1::Constraints {
    fn from(asked: ConstraintsRequest) -> Self {
        let unmet = asked.unmet.map_or(v1::Unmet::Unspecified, Into::into);
        let ConstraintsRequest { countries, carriers, tags, bytes_per_day, .. } = asked;
        Self { countries, carriers, tags, bytes_per_day, unmet: unmet.into() }
    }
}
