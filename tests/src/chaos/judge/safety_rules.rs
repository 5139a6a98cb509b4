//! Lists the rules that a run must keep, with their names in JSON, and finds violations of the
//! rules of safety: lost sites, two active leases or overlapping crawls of a site, leases of old
//! sessions, events of old terms, gaps between fencing tokens, and outcomes that were accepted
//! twice, with an old token, or not recorded.

use std::collections::{BTreeMap, BTreeSet};

use super::record_format::{Event, EventLog, History, Request};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Every acknowledged site has a task.
    Lost,
    /// At most one outcome of a task was accepted.
    DoubleCompleted,
    /// No outcome was accepted with an old token, or after its task's end.
    StaleAccepted,
    /// If two agents crawl one site, their crawls overlap by at most one request.
    Overlap,
    /// Tokens rise by one per grant, and every grant that an agent received is recorded.
    Tokens,
    /// At most one lease of a site was active at a time.
    OneLease,
    /// Incarnations rise, and no session got a lease after its agent had opened a newer session.
    Incarnations,
    /// A session ends before its leases expire.
    SessionFirst,
    /// After a term has started, earlier terms of the same role write no event.
    Terms,
    /// The database contains every outcome that a scheduler acknowledged.
    Acknowledged,
    /// After the faults, every task that had lost its lease was granted again within three session
    /// lifetimes.
    Orphans,
    /// Every task ended after the faults.
    Unfinished,
}

impl Rule {
    pub const ALL: [Self; 12] = [
        Self::Lost,
        Self::DoubleCompleted,
        Self::StaleAccepted,
        Self::Overlap,
        Self::Tokens,
        Self::OneLease,
        Self::Incarnations,
        Self::SessionFirst,
        Self::Terms,
        Self::Acknowledged,
        Self::Orphans,
        Self::Unfinished,
    ];

    /// The name of the rule in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::DoubleCompleted => "double_completed",
            Self::StaleAccepted => "stale_accepted",
            Self::Overlap => "overlap_violations",
            Self::Tokens => "token_gaps",
            Self::OneLease => "sites_leased_twice",
            Self::Incarnations => "old_incarnations",
            Self::SessionFirst => "leases_before_sessions",
            Self::Terms => "old_terms",
            Self::Acknowledged => "acknowledged_unrecorded",
            Self::Orphans => "orphans_late",
            Self::Unfinished => "unfinished",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// The affected task; `None` if there is none.
    pub task: Option<i64>,
    pub message: String,
}

/// All violations of safety rules. The run need not have ended.
pub fn safety(history: &History) -> Vec<Violation> {
    let log = EventLog::of(history);
    let mut violations = lost(history);
    violations.extend(log.tasks.iter().flat_map(|(task, events)| of_task(*task, events)));
    violations.extend(newest_tokens(history, &log));
    violations.extend(overlap(history));
    violations.extend(one_lease(history, &log));
    violations.extend(incarnations(&log));
    violations.extend(session_first(history));
    violations.extend(terms(history));
    violations.extend(notices(history, &log));
    violations
}

fn lost(history: &History) -> Vec<Violation> {
    let known: BTreeSet<&str> = history.tasks.iter().map(|task| task.site.as_str()).collect();
    let missing = history.acknowledged.iter().filter(|site| !known.contains(site.as_str()));
    missing
        .map(|site| Violation {
            rule: Rule::Lost,
            task: None,
            message: format!("{site} was acknowledged and has no task"),
        })
        .collect()
}

fn one_lease(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
    let mut by_site: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for task in &history.tasks {
        let leases = log.tasks.get(&task.id).into_iter().flatten().filter(|event| event.noun == "lease");
        by_site.entry(&task.site).or_default().extend(leases);
    }
    let mut violations = Vec::new();
    for (site, mut leases) in by_site {
        leases.sort_by_key(|event| event.id);
        let mut active = BTreeSet::new();
        for event in leases {
            let key = (event.task, event.token);
            match event.what.as_str() {
                "granted" => {
                    active.insert(key);
                    if active.len() > 1 {
                        let message = format!("{site} had {} active leases at once", active.len());
                        violations.push(Violation { rule: Rule::OneLease, task: event.task, message });
                    }
                }
                "rebound" => {}
                _ => _ = active.remove(&key),
            }
        }
    }
    violations
}

fn incarnations(log: &EventLog<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (agent, events) in &log.agents {
        let mut newest = 0;
        for event in events {
            let Some(incarnation) = event.incarnation else { continue };
            let opened = event.is("session", "opened");
            let gives = event.is("lease", "granted") || event.is("lease", "rebound");
            if (opened && incarnation <= newest) || (gives && incarnation != newest && newest > 0) {
                let message = format!("agent {agent}: {} of incarnation {incarnation} after {newest}", event.what);
                violations.push(Violation { rule: Rule::Incarnations, task: event.task, message });
            }
            if opened {
                newest = newest.max(incarnation);
            }
        }
    }
    violations
}

/// Checks that each session ends before its leases expire. If leases expired before their session,
/// a late heartbeat could renew a session whose tasks were already granted to other agents.
fn session_first(history: &History) -> Vec<Violation> {
    let ends = history.events.iter().filter(|event| event.noun == "session" && event.what != "opened");
    let ended: BTreeMap<i64, i64> = ends.filter_map(|event| Some((event.session?, event.id))).collect();
    let taken = history.events.iter().filter(|event| event.is("lease", "expired"));
    taken
        .filter(|lease| {
            let end = lease.session.and_then(|session| ended.get(&session));
            end.is_none_or(|end| *end > lease.id)
        })
        .map(|lease| Violation {
            rule: Rule::SessionFirst,
            task: lease.task,
            message: format!(
                "the lease of task {:?} was taken before session {:?} had ended",
                lease.task, lease.session
            ),
        })
        .collect()
}

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
fn overlap(history: &History) -> Vec<Violation> {
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

/// Finds violations in the events of a task.
fn of_task(task: i64, events: &[&Event]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut add = |rule, message| violations.push(Violation { rule, task: Some(task), message });
    let (mut newest, mut completions, mut ended) = (0, 0, None);
    for event in events {
        let token = event.token.unwrap_or_default();
        match (event.noun.as_str(), event.what.as_str()) {
            ("lease", "granted") => {
                if token != newest + 1 {
                    add(Rule::Tokens, format!("task {task}: token {token} was granted after token {newest}"));
                }
                newest = token;
            }
            ("lease", "completed") => {
                completions += 1;
                if completions > 1 {
                    add(Rule::DoubleCompleted, format!("task {task} was completed again, with token {token}"));
                }
                if token != newest {
                    add(
                        Rule::StaleAccepted,
                        format!("task {task} was completed with token {token} when {newest} was the newest"),
                    );
                }
                // One transaction writes both the completion of a lease and the end of its task, so
                // these two events may have any order.
                if let Some((state, xact)) = ended
                    && xact != event.xact
                {
                    add(Rule::StaleAccepted, format!("task {task} was completed after it was {state}"));
                }
            }
            ("task", state @ ("done" | "failed" | "cancelled")) => {
                if let Some((before, _)) = ended.replace((state, event.xact)) {
                    add(Rule::DoubleCompleted, format!("task {task} was {before} and then {state}"));
                }
            }
            ("task", _) if ended.is_some() => {
                add(Rule::StaleAccepted, format!("task {task} was {} after its end", event.what));
                ended = None;
            }
            _ => {}
        }
    }
    violations
}

/// Checks that the tokens of tasks and outcomes in the database match the tokens in the events.
fn newest_tokens(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
    let outcomes: BTreeMap<i64, i64> = history.outcomes.iter().map(|outcome| (outcome.task, outcome.token)).collect();
    let mut violations = Vec::new();
    for task in &history.tasks {
        let Some(events) = log.tasks.get(&task.id) else { continue };
        let granted = events.iter().filter(|event| event.is("lease", "granted")).count();
        if i64::try_from(granted) != Ok(task.token) {
            let message = format!("task {}: {granted} grants, and its newest token is {}", task.id, task.token);
            violations.push(Violation { rule: Rule::Tokens, task: Some(task.id), message });
        }
        let completed = events.iter().rfind(|event| event.is("lease", "completed")).and_then(|event| event.token);
        if completed != outcomes.get(&task.id).copied() {
            let message = format!(
                "task {}: completed with token {completed:?}, its outcome has {:?}",
                task.id,
                outcomes.get(&task.id)
            );
            violations.push(Violation { rule: Rule::Acknowledged, task: Some(task.id), message });
        }
    }
    violations
}

/// Checks that the database contains the grants and acknowledgements that agents received.
fn notices(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
    let recorded: BTreeSet<(i64, i64)> = history.outcomes.iter().map(|outcome| (outcome.task, outcome.token)).collect();
    let mut violations = Vec::new();
    for notices in &history.notices {
        let (task, token) = (notices.task, notices.token);
        if notices.accepted && !recorded.contains(&(task, token)) {
            let message = format!("the outcome of task {task}, token {token}, was acknowledged and is not recorded");
            violations.push(Violation { rule: Rule::Acknowledged, task: Some(task), message });
        }
        let events = log.tasks.get(&task).map_or(&[][..], Vec::as_slice);
        let is_it = |event: &&&Event| event.is("lease", "granted") && event.token == Some(token);
        if !notices.accepted && !events.iter().any(|event| is_it(&event) && event.agent == Some(notices.agent)) {
            let message =
                format!("agent {} was told of task {task}, token {token}, which it was not granted", notices.agent);
            violations.push(Violation { rule: Rule::Tokens, task: Some(task), message });
        }
    }
    violations
}

/// Checks that events are ordered by term. A new term starts after all transactions of the previous
/// term have ended, so events of the previous term have lower numbers.
fn terms(history: &History) -> Vec<Violation> {
    let mut written: Vec<(&Event, &str, u64)> = history
        .events
        .iter()
        .filter_map(|event| {
            let (role, number) = event.term.as_deref()?.split_once(' ')?;
            Some((event, role, number.parse().ok()?))
        })
        .collect();
    written.sort_by_key(|(event, ..)| event.id);
    let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut violations = Vec::new();
    for (event, role, number) in written {
        let known = newest.entry(role).or_default();
        let taken = event.is("term", "taken");
        if number < *known || (taken && number == *known) {
            let message =
                format!("{} {} under term {number} of {role}, when {known} had been taken", event.noun, event.what);
            violations.push(Violation { rule: Rule::Terms, task: event.task, message });
        }
        if taken {
            *known = number.max(*known);
        }
    }
    violations
}
