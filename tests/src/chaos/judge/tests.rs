//! Tests of the judge. A test changes a valid history so that it violates a rule, and the judge
//! must find the violation.

use super::record_format::{Event, FaultRecord, History, Notice, Outcome, Request, Task};
use super::recovery;
use crate::chaos::judge::{Rule, judge};

const SITE: &str = "http://a.test:8080";
const SECOND: i64 = 1_000_000;

type Change = &'static dyn Fn(&mut History);

fn event(id: i64, at: i64, noun: &str, what: &str) -> Event {
    Event { id, xact: id, at_us: at * SECOND, noun: noun.to_owned(), what: what.to_owned(), ..Event::default() }
}

fn session(id: i64, at: i64, what: &str, agent: i64, incarnation: i64) -> Event {
    let session = Some(agent * 100 + incarnation);
    Event { agent: Some(agent), session, incarnation: Some(incarnation), ..event(id, at, "session", what) }
}

fn lease(id: i64, at: i64, what: &str, token: i64, agent: i64) -> Event {
    Event { task: Some(1), token: Some(token), ..session(id, at, what, agent, 1) }.of("lease")
}

fn task(id: i64, at: i64, what: &str) -> Event {
    Event { task: Some(1), ..event(id, at, "task", what) }
}

impl Event {
    fn of(self, noun: &str) -> Self {
        Self { noun: noun.to_owned(), ..self }
    }
}

fn term(id: i64, name: &str) -> Event {
    Event { term: Some(name.to_owned()), ..event(id, 0, "term", "taken") }
}

fn request(at_ms: i64, agent: i64) -> Request {
    Request { at_us: at_ms * 1000, site: SITE.to_owned(), agent }
}

/// A history without violations. Agent 1 is killed during its crawl, and agent 2 crawls the site
/// again.
pub(in crate::chaos) fn history() -> History {
    History {
        lifetime_us: 3 * SECOND,
        healed_us: 5 * SECOND,
        ended_us: 20 * SECOND,
        acknowledged: vec![SITE.to_owned()],
        tasks: vec![Task { id: 1, site: SITE.to_owned(), state: "done".to_owned(), reason: String::new(), token: 2 }],
        outcomes: vec![Outcome { task: 1, token: 2 }],
        events: vec![
            session(1, 0, "opened", 1, 1),
            session(2, 0, "opened", 2, 1),
            task(3, 0, "submitted"),
            lease(4, 1, "granted", 1, 1),
            Event { term: Some("reap 2".to_owned()), ..session(5, 4, "expired", 1, 1) },
            lease(6, 4, "expired", 1, 1),
            lease(7, 5, "granted", 2, 2),
            // The events of one transaction may be in any order.
            Event { xact: 9, ..task(8, 7, "done") },
            lease(9, 7, "completed", 2, 2),
            term(0, "reap 2"),
        ],
        notices: vec![
            Notice { at_us: SECOND, agent: 1, task: 1, token: 1, accepted: false },
            Notice { at_us: 5 * SECOND, agent: 2, task: 1, token: 2, accepted: false },
            Notice { at_us: 7 * SECOND, agent: 2, task: 1, token: 2, accepted: true },
        ],
        requests: vec![request(1100, 1), request(1400, 1), request(5100, 2), request(5150, 1), request(5400, 2)],
        faults: vec![FaultRecord {
            kind: recovery::AGENT_KILL.to_owned(),
            agent: Some(1),
            from_us: 2 * SECOND,
            to_us: 5 * SECOND,
        }],
        ..History::default()
    }
}

fn broken(change: impl FnOnce(&mut History)) -> Vec<Rule> {
    let mut history = history();
    change(&mut history);
    let mut rules: Vec<Rule> = judge(&history).into_iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

#[test]
fn a_run_with_a_killed_agent_has_no_violation_and_a_recovery_time() {
    assert_eq!(broken(|_| ()), []);
    let recovered = recovery::recovery(&history());
    assert_eq!((recovered.agent_p99, recovered.agent_tasks), (Some(3.0), 1));
}

#[test]
fn a_schedulers_recovery_counts_only_while_tasks_wait() {
    let kill = |at: i64| FaultRecord {
        kind: recovery::SCHEDULER_KILL.to_owned(),
        agent: None,
        from_us: at * SECOND,
        to_us: at * SECOND,
    };
    let run = History {
        events: vec![
            task(1, 0, "assigned"),
            lease(2, 1, "granted", 1, 1),
            task(3, 4, "assigned"),
            lease(4, 7, "granted", 2, 2),
        ],
        faults: vec![kill(0), kill(2), kill(5), kill(8)],
        ..history()
    };
    let recovered = recovery::recovery(&run);
    assert_eq!((recovered.scheduler_kills, recovered.scheduler_p99), (2, Some(2.0)));
    // Time during which both schedulers are down does not count, because no scheduler can grant a
    // lease.
    let lasting = |from: i64, to: i64| FaultRecord { from_us: from * SECOND, to_us: to * SECOND, ..kill(0) };
    let run = History { schedulers: 2, faults: vec![lasting(3, 9), lasting(5, 6)], ..run };
    let recovered = recovery::recovery(&run);
    assert_eq!((recovered.scheduler_kills, recovered.scheduler_p99), (1, Some(1.0)));
}

#[test]
fn every_rule_can_be_broken() {
    let cases: [(Rule, Change); 19] = [
        (Rule::Lost, &|run| run.acknowledged.push("http://b.test:8080".to_owned())),
        (Rule::DoubleCompleted, &|run| run.events.push(lease(10, 8, "completed", 2, 2))),
        (Rule::DoubleCompleted, &|run| run.events.push(task(10, 8, "failed"))),
        (Rule::StaleAccepted, &|run| run.events[8].token = Some(1)),
        (Rule::StaleAccepted, &|run| run.events[7].xact = 8),
        (Rule::StaleAccepted, &|run| run.events.push(task(10, 8, "located"))),
        (Rule::Overlap, &|run| run.requests.extend([request(5200, 1), request(5250, 1)])),
        (Rule::Tokens, &|run| run.events[6].token = Some(3)),
        (Rule::Tokens, &|run| run.tasks[0].token = 3),
        (Rule::Tokens, &|run| run.notices[0].agent = 2),
        (Rule::OneLease, &|run| _ = run.events.remove(5)),
        (Rule::Incarnations, &|run| run.events.insert(2, session(2, 0, "opened", 2, 2))),
        (Rule::SessionFirst, &|run| run.events[4].id = 10),
        (Rule::SessionFirst, &|run| _ = run.events.remove(4)),
        (Rule::Terms, &|run| run.events[4].term = Some("reap 1".to_owned())),
        (Rule::Terms, &|run| run.events.push(term(10, "reap 2"))),
        (Rule::Acknowledged, &|run| run.outcomes.clear()),
        (Rule::Orphans, &|run| run.events[6..].iter_mut().for_each(|event| event.at_us += 10 * SECOND)),
        (Rule::Unfinished, &|run| run.tasks[0].state = "assigned".to_owned()),
    ];
    for (number, (rule, change)) in cases.iter().enumerate() {
        let rules = broken(|run| change(run));
        assert!(rules.contains(rule), "case {number}: {rule:?} holds, {rules:?} do not");
    }
}

#[test]
fn one_request_in_flight_and_a_later_crawl_are_allowed() {
    assert_eq!(broken(|run| run.requests.push(request(9000, 2))), []);
    assert_eq!(broken(|run| run.requests.push(request(4900, 1))), [], "before the next had begun");
}
