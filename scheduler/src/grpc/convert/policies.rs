//! Crawl policies, to operators and to agents.

use std::time::Duration;

use landfall_proto::v1;

use crate::config::CrawlConfig;
use crate::model::{CrawlPolicy, PolicyRequest};

use super::{InvalidField, duration};

/// The policy of batches that say nothing.
pub(in crate::grpc) fn usual(config: &CrawlConfig) -> CrawlPolicy {
    let asked = PolicyRequest {
        max_pages: Some(config.max_pages),
        max_bytes: Some(config.max_bytes),
        max_depth: Some(config.max_depth),
        max_duration: Some(config.max_duration),
        request_interval: Some(config.request_interval),
        shortest_interval: config.shortest_interval,
        sitemaps: Some(config.sitemaps),
        ..PolicyRequest::default()
    };
    asked.or(&CrawlPolicy::default())
}

/// What is asked of a policy, each value within its bounds.
pub(in crate::grpc) fn request(asked: v1::CrawlPolicy) -> Result<PolicyRequest, InvalidField> {
    let request = PolicyRequest {
        max_pages: asked.max_pages,
        max_bytes: asked.max_bytes,
        max_depth: asked.max_depth,
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
    request.checked().map_err(|error| InvalidField::new(format!("policy.{}", error.field), error.problem))
}

fn time(field: &str, value: Option<prost_types::Duration>) -> Result<Option<Duration>, InvalidField> {
    let value = value.map(Duration::try_from).transpose();
    value.map_err(|_| InvalidField::new(field, "a length of time is not negative"))
}

/// A whole policy, for the wire.
pub(in crate::grpc) fn message(policy: CrawlPolicy) -> v1::CrawlPolicy {
    v1::CrawlPolicy {
        max_pages: Some(policy.max_pages),
        max_bytes: Some(policy.max_bytes),
        max_depth: Some(policy.max_depth),
        max_duration: Some(duration(policy.max_duration)),
        request_interval: Some(duration(policy.request_interval)),
        shortest_interval: Some(duration(policy.shortest_interval)),
        sitemaps: Some(policy.sitemaps),
        store: Some(policy.store),
        include: Some(v1::PathPatterns { patterns: policy.include }),
        exclude: Some(v1::PathPatterns { patterns: policy.exclude }),
        contact_url: policy.contact_url,
        user_agent: policy.user_agent,
        recrawl_interval: policy.recrawl_interval.map(duration),
    }
}
