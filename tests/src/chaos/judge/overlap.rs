//! Whether two agents ever crawled one site at once, as the site itself saw it.

use std::collections::BTreeMap;

use super::history::{Event, History, Request};
use super::{Offence, Rule};

/// Requests of one crawl that may reach a site after the next agent has begun: a crawl sends one at a time, so that one may be
/// under way when it is stopped.
const IN_FLIGHT: usize = 1;

/// What one site saw.
#[derive(Default)]
struct Seen<'a> {
    grants: Vec<&'a Event>,
    requests: Vec<&'a Request>,
}

/// For every lease whose agent went on after the next agent had begun: one offence.
pub(super) fn offences(history: &History) -> Vec<Offence> {
    let sites: BTreeMap<i64, &str> = history.tasks.iter().map(|task| (task.id, task.site.as_str())).collect();
    let mut seen: BTreeMap<&str, Seen<'_>> = BTreeMap::new();
    for event in history.events.iter().filter(|event| event.is("lease", "granted")) {
        if let Some(site) = event.task.and_then(|task| sites.get(&task)) {
            seen.entry(site).or_default().grants.push(event);
        }
    }
    for request in &history.requests {
        seen.entry(&request.site).or_default().requests.push(request);
    }
    seen.into_iter().flat_map(|(site, seen)| of_site(site, seen)).collect()
}

fn of_site(site: &str, mut seen: Seen<'_>) -> Vec<Offence> {
    seen.grants.sort_by_key(|grant| grant.id);
    seen.requests.sort_by_key(|request| request.at_us);
    let mut offences = Vec::new();
    for (index, next) in seen.grants.iter().enumerate().skip(1) {
        let later = seen.grants.get(index + 1).map_or(i64::MAX, |grant| grant.at_us);
        let within = |request: &&&Request| request.at_us >= next.at_us && request.at_us < later;
        let Some(begun) = seen.requests.iter().filter(within).find(|request| Some(request.agent) == next.agent) else {
            continue;
        };
        // The former holder, which may not know that the lease was taken.
        let mut strangers: BTreeMap<i64, usize> = BTreeMap::new();
        for request in seen.requests.iter().filter(within) {
            if request.at_us > begun.at_us && Some(request.agent) != next.agent {
                *strangers.entry(request.agent).or_default() += 1;
            }
        }
        offences.extend(strangers.into_iter().filter(|(_, requests)| *requests > IN_FLIGHT).map(
            |(agent, requests)| {
                let said = format!(
                    "{site}: {requests} requests of agent {agent} after agent {} had begun with token {}",
                    next.agent.unwrap_or_default(),
                    next.token.unwrap_or_default()
                );
                Offence { rule: Rule::Overlap, task: next.task, said }
            },
        ));
    }
    offences
}
