//! Finds sites that two agents crawled at the same time, from the sites' logs.

use std::collections::BTreeMap;

use super::history::{Event, History, Request};
use super::rule::{Rule, Violation};

/// Number of requests of the previous crawl that may arrive after the next crawl has begun. A crawl
/// sends one request at a time, so only its last request may be in flight.
const IN_FLIGHT: usize = 1;

#[derive(Default)]
struct SiteActivity<'a> {
    grants: Vec<&'a Event>,
    requests: Vec<&'a Request>,
}

/// A violation for every agent that sent more than [`IN_FLIGHT`] requests to a site after the agent
/// with the next lease had begun its crawl.
pub(super) fn violations(history: &History) -> Vec<Violation> {
    let sites: BTreeMap<i64, &str> = history.tasks.iter().map(|task| (task.id, task.site.as_str())).collect();
    let mut activity: BTreeMap<&str, SiteActivity<'_>> = BTreeMap::new();
    for event in history.events.iter().filter(|event| event.is("lease", "granted")) {
        if let Some(site) = event.task.and_then(|task| sites.get(&task)) {
            activity.entry(site).or_default().grants.push(event);
        }
    }
    for request in &history.requests {
        activity.entry(&request.site).or_default().requests.push(request);
    }
    activity.into_iter().flat_map(|(site, activity)| of_site(site, activity)).collect()
}

fn of_site(site: &str, mut activity: SiteActivity<'_>) -> Vec<Violation> {
    activity.grants.sort_by_key(|grant| grant.id);
    activity.requests.sort_by_key(|request| request.at_us);
    let mut violations = Vec::new();
    for (index, next) in activity.grants.iter().enumerate().skip(1) {
        let later = activity.grants.get(index + 1).map_or(i64::MAX, |grant| grant.at_us);
        let within = |request: &&&Request| request.at_us >= next.at_us && request.at_us < later;
        let Some(begun) = activity.requests.iter().filter(within).find(|request| Some(request.agent) == next.agent)
        else {
            continue;
        };
        // Number of requests by each agent with an earlier lease. An agent sends requests until it
        // learns that its lease has ended.
        let mut strangers: BTreeMap<i64, usize> = BTreeMap::new();
        for request in activity.requests.iter().filter(within) {
            if request.at_us > begun.at_us && Some(request.agent) != next.agent {
                *strangers.entry(request.agent).or_default() += 1;
            }
        }
        violations.extend(strangers.into_iter().filter(|(_, requests)| *requests > IN_FLIGHT).map(
            |(agent, requests)| {
                let message = format!(
                    "{site}: {requests} requests of agent {agent} after agent {} had begun with token {}",
                    next.agent.unwrap_or_default(),
                    next.token.unwrap_or_default()
                );
                Violation { rule: Rule::Overlap, task: next.task, message }
            },
        ));
    }
    violations
}
