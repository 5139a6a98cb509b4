//! Checks a finished batch: the database must be consistent, and must agree with the sites' access
//! log, and requests must have kept within the rate limits. This module does no I/O.
//!
//! At most one crawl of a host runs at a time, and a crawl sends one request per interval. At most
//! `crawls` crawls run at an address at the same time. So a window that begins with one request and
//! ends with a later request contains at most `crawls` × (window / interval + 1) requests, where
//! `window` is the duration of the window.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use hyper::StatusCode;

use super::batch_record::{BatchRecord, TaskRecord};
use crate::world::site_pages::{DISALLOWED, SiteWeb};
use crate::world::site_servers::Access;

/// Maximum number of violations printed per check.
const TOLD: usize = 5;
/// Minimum ratio of the measured to the required gap between two probes of a site. The ratio is
/// below 1, because the gap is required between the times of sending, but the log contains arrival
/// times, and transit times vary.
const GAP_TOLERANCE: f64 = 0.95;

/// The kind of a run. The kind determines whether a site may be assigned more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// A run without faults. Each site has one assignment, one lease and one crawling agent.
    Calm,
    /// A run in which agents were lost. A site may have several assignments and leases, but only
    /// one outcome.
    Losses,
    /// Like `Losses`, but the database was also restored from a backup, or a standby was promoted.
    /// Both increase tokens by more than one.
    Restore,
}

#[derive(Debug)]
pub struct Evidence<'a> {
    pub record: &'a BatchRecord,
    /// The sites' names as submitted, by site index.
    pub sites: &'a [String],
    /// The agents' names, by index.
    pub agents: &'a [String],
    pub webs: &'a [SiteWeb],
    pub log: &'a [Access],
    pub max_depth: u32,
    /// Minimum time between two probes of a site.
    pub probe_interval: Duration,
}

#[derive(Debug, Clone)]
pub struct Check {
    pub rule: String,
    /// Sentences that describe what is wrong; empty if the check passes.
    pub violations: Vec<String>,
}

impl Check {
    fn new(rule: impl Into<String>, violations: impl IntoIterator<Item = String>) -> Self {
        Self { rule: rule.into(), violations: violations.into_iter().collect() }
    }

    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }

    pub fn lines(&self) -> String {
        let mut text = format!("  {} {}", if self.holds() { "ok    " } else { "BROKEN" }, self.rule);
        for violation in self.violations.iter().take(TOLD) {
            text.push_str("\n           ");
            text.push_str(violation);
        }
        if self.violations.len() > TOLD {
            text.push_str(&format!("\n           and {} more", self.violations.len() - TOLD));
        }
        text
    }
}

pub fn all(evidence: &Evidence<'_>, expect: RunKind) -> Vec<Check> {
    let mut checks = database(evidence, expect);
    checks.extend(witnessed(evidence, expect));
    checks
}

pub fn database(evidence: &Evidence<'_>, expect: RunKind) -> Vec<Check> {
    let record = evidence.record;
    let tasks = || record.tasks.iter();
    let known: BTreeSet<&str> = tasks().map(|task| task.site.as_str()).collect();
    let missing = evidence.sites.iter().filter(|site| !known.contains(site.as_str()));
    let wrong_count = (record.tasks.len() != evidence.sites.len())
        .then(|| format!("{} tasks for {} sites", record.tasks.len(), evidence.sites.len()));
    let violating = |wrong: &dyn Fn(&TaskRecord) -> bool, say: &dyn Fn(&TaskRecord) -> String| -> Vec<String> {
        tasks().filter(|task| wrong(task)).map(say).collect()
    };
    let assigned = violating(
        &|task| if expect == RunKind::Calm { task.assignments != 1 } else { task.assignments < 1 },
        &|task| format!("{} has {} assignments", task.site, task.assignments),
    );
    let done = violating(&|task| task.state != "done", &|task| {
        format!("{} is {} ({}{})", task.site, task.state, task.reason, task.message)
    });
    let completed = violating(&|task| task.outcomes != 1 || task.completed_leases != 1, &|task| {
        format!("{} has {} outcomes and {} completed leases", task.site, task.outcomes, task.completed_leases)
    });
    let skipped = |task: &TaskRecord| expect != RunKind::Restore && task.leases != task.token;
    let tokens = violating(&|task| task.outcome_token != Some(task.token) || skipped(task), &|task| {
        format!(
            "{}: {} leases, newest token {}, outcome's {:?}",
            task.site, task.leases, task.token, task.outcome_token
        )
    });
    // Until the task is granted again, an agent can complete a lease that it has lost. So in a run
    // with losses, the crawler may differ from the agent of the newest assignment.
    let elsewhere = |task: &TaskRecord| expect == RunKind::Calm && task.crawler != task.agent;
    let crawlers = violating(&|task| task.crawler != task.lessee || elsewhere(task), &|task| {
        let TaskRecord { site, agent, lessee, crawler, .. } = task;
        format!("{site} was assigned to {agent:?}, granted to {lessee:?} and crawled by {crawler:?}")
    });
    let active = (record.active_leases != 0).then(|| format!("{} leases are active", record.active_leases));
    let often = if expect == RunKind::Calm { "exactly once" } else { "at least once" };
    vec![
        Check::new("every site has its task", missing.map(|site| format!("{site} has none")).chain(wrong_count)),
        Check::new(format!("every site was assigned {often}"), assigned),
        Check::new("every task is done", done),
        Check::new("every site was completed exactly once", completed),
        Check::new("every outcome carries the newest token, and tokens rose by one per grant", tokens),
        Check::new("every site was crawled by the agent it was last granted to", crawlers),
        Check::new("no lease is left", active),
        Check::new("the progress of every batch is what its tasks come to", record.wrong_progress.clone()),
    ]
}

/// Checks that the database agrees with the sites' log.
fn witnessed(evidence: &Evidence<'_>, expect: RunKind) -> Vec<Check> {
    let index_of: BTreeMap<&str, usize> =
        evidence.sites.iter().enumerate().map(|(index, site)| (site.as_str(), index)).collect();
    let mut by_site: Vec<Vec<&Access>> = vec![Vec::new(); evidence.sites.len()];
    for access in evidence.log {
        by_site[access.site].push(access);
    }
    let (mut pages, mut truth, mut strangers, mut disallowed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for task in &evidence.record.tasks {
        let Some(&site) = index_of.get(task.site.as_str()) else { continue };
        let web = &evidence.webs[site];
        let crawler = task.crawler.as_ref().and_then(|name| evidence.agents.iter().position(|agent| agent == name));
        let fetched: Vec<&str> = fetched_pages(&by_site[site], crawler);
        let distinct: BTreeSet<&str> = fetched.iter().copied().collect();
        if usize::try_from(task.pages).ok() != Some(distinct.len())
            || (expect == RunKind::Calm && distinct.len() != fetched.len())
        {
            pages.push(format!(
                "{}: the outcome says {} pages, the log {} in {} fetches",
                task.site,
                task.pages,
                distinct.len(),
                fetched.len()
            ));
        }
        let whole = task.kind.as_deref() == Some("complete") || task.budget.as_deref() == Some("depth");
        let reachable = web.expected_crawl(evidence.max_depth).pages;
        if whole && !distinct.iter().copied().eq(reachable.iter().map(String::as_str)) {
            truth.push(format!("{}: {} pages fetched, {} reachable", task.site, distinct.len(), reachable.len()));
        }
        let others = by_site[site].iter().filter(|access| access.get && access.agent != crawler);
        if expect == RunKind::Calm {
            strangers.extend(others.map(|access| format!("{}: {} by {:?}", task.site, access.path, access.agent)));
        }
        if web.robots().is_some() {
            let forbidden = by_site[site].iter().filter(|access| access.path.starts_with(DISALLOWED));
            disallowed.extend(forbidden.map(|access| format!("{}: {}", task.site, access.path)));
        }
    }
    let gaps: Vec<String> = by_site
        .iter()
        .enumerate()
        .filter_map(|(site, accesses)| {
            let gap = least_probe_gap(accesses)?;
            let rule = evidence.probe_interval.mul_f64(GAP_TOLERANCE);
            (gap < rule).then(|| format!("{}: two probes {} ms apart", evidence.sites[site], gap.as_millis()))
        })
        .collect();
    vec![
        Check::new("the sites' own logs show the pages the outcomes say", pages),
        Check::new("a whole crawl fetched every reachable page, and no other", truth),
        Check::new("nobody but its crawler fetched from a site", strangers),
        Check::new("no path that robots.txt disallows was asked for", disallowed),
        Check::new(
            format!(
                "no site was probed more than once in {} ms, over all landmarks",
                evidence.probe_interval.as_millis()
            ),
            gaps,
        ),
    ]
}

/// The paths that an agent fetched successfully, in order, without robots.txt.
fn fetched_pages<'a>(accesses: &[&'a Access], agent: Option<usize>) -> Vec<&'a str> {
    let pages = accesses.iter().filter(|access| {
        access.get && access.agent == agent && access.status == StatusCode::OK && access.path != "/robots.txt"
    });
    pages.map(|access| access.path.as_str()).collect()
}

/// The shortest time between two probes of a site; `None` if there are fewer than two probes.
/// Probes are the requests before the crawl's first request.
fn least_probe_gap(accesses: &[&Access]) -> Option<Duration> {
    let probes: Vec<Instant> = accesses.iter().take_while(|access| !access.get).map(|access| access.at).collect();
    probes.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0])).min()
}

#[derive(Debug, Clone, Copy)]
pub struct RequestLimit {
    /// Minimum time between the starts of two consecutive requests of a crawl.
    pub interval: Duration,
    /// Maximum difference between the transit times of two requests. The rate limit applies to the
    /// times of sending, but logs contain arrival times.
    pub slack: Duration,
}

/// The window in which the number of requests is the largest fraction of the permitted number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FullestWindow {
    /// Number of requests, including the first and the last.
    pub requests: u32,
    pub window: Duration,
    /// Permitted number of requests.
    pub allowed: f64,
}

impl FullestWindow {
    /// The requests as a fraction of the permitted number. If the fraction is above 1, the limit is
    /// violated.
    pub fn share(&self) -> f64 {
        f64::from(self.requests) / self.allowed
    }
}

impl RequestLimit {
    /// The fullest window of an address's log; `None` if there are fewer than two requests.
    /// `arrivals` is in ascending order. At most `crawls` crawls of the address may run at the same
    /// time.
    pub fn fullest(&self, arrivals: &[Instant], crawls: u32) -> Option<FullestWindow> {
        let windows = arrivals.iter().enumerate().flat_map(|(index, first)| {
            let since = arrivals[index..].iter().map(|last| last.duration_since(*first));
            (1_u32..).zip(since).skip(1).map(|(requests, window)| {
                let intervals = (window + self.slack).as_secs_f64() / self.interval.as_secs_f64();
                FullestWindow { requests, window, allowed: f64::from(crawls) * (intervals + 1.0) }
            })
        });
        windows.max_by(|one, other| one.share().total_cmp(&other.share()))
    }
}

/// Maximum number of spans that overlap at one time. A span excludes its end.
pub fn most_at_once(spans: &[(Instant, Instant)]) -> usize {
    let beside = |at: Instant| spans.iter().filter(|(begin, end)| *begin <= at && at < *end).count();
    spans.iter().map(|(begin, _)| beside(*begin)).max().unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::world::site_pages::WebRules;

    pub(crate) fn task(site: &str) -> TaskRecord {
        TaskRecord {
            site: site.to_owned(),
            state: "done".to_owned(),
            reason: String::new(),
            token: 1,
            assignments: 1,
            completed_leases: 1,
            leases: 1,
            outcomes: 1,
            agent: Some("a".to_owned()),
            strategy: Some("gnp-top3".to_owned()),
            fallback: None,
            predicted_us: None,
            kind: Some("complete".to_owned()),
            budget: None,
            crawler: Some("a".to_owned()),
            lessee: Some("a".to_owned()),
            outcome_token: Some(1),
            pages: 0,
            bytes: 0,
            errors: 0,
            started_at: None,
            duration_ms: 0,
            crawled_us: None,
            message: String::new(),
        }
    }

    fn access(agent: usize, get: bool, path: &str, at: Instant) -> Access {
        Access { site: 0, agent: Some(agent), get, path: path.to_owned(), status: StatusCode::OK, at }
    }

    /// The rules that are violated after `change` has been applied to the record and log of one
    /// correctly crawled site.
    fn broken(change: impl Fn(&mut BatchRecord, &mut Vec<Access>)) -> Vec<String> {
        let webs = [SiteWeb::draw(&WebRules { robots_share: 1.0, ..WebRules::default() }, 1, 0)];
        let sites = ["http://a.test:8080".to_owned()];
        let agents = ["a".to_owned(), "b".to_owned()];
        let start = Instant::now();
        let mut log = vec![access(1, false, "/", start), access(1, false, "/", start + Duration::from_secs(1))];
        let reachable = webs[0].expected_crawl(8).pages;
        log.extend(reachable.iter().map(|path| access(0, true, path, start + Duration::from_secs(2))));
        let mut record = BatchRecord {
            tasks: vec![TaskRecord { pages: i32::try_from(reachable.len()).unwrap(), ..task(&sites[0]) }],
            active_leases: 0,
            wrong_progress: Vec::new(),
            landmarks: Vec::new(),
            site_measurements: Vec::new(),
            trust: crate::evidence::batch_record::TrustRecord::default(),
            mesh_measurements: Vec::new(),
            embedding: None,
        };
        change(&mut record, &mut log);
        let evidence = Evidence {
            record: &record,
            sites: &sites,
            agents: &agents,
            webs: &webs,
            log: &log,
            max_depth: 8,
            probe_interval: Duration::from_secs(1),
        };
        all(&evidence, RunKind::Calm).into_iter().filter(|check| !check.holds()).map(|check| check.rule).collect()
    }

    #[test]
    fn a_calm_run_breaks_nothing() {
        assert_eq!(broken(|_, _| ()), Vec::<String>::new());
    }

    #[test]
    fn every_rule_can_break() {
        let one = |change: &dyn Fn(&mut BatchRecord, &mut Vec<Access>)| {
            let broken = broken(change);
            broken.first().cloned().unwrap_or_default()
        };
        assert!(one(&|record, _| record.tasks.clear()).contains("has its task"));
        assert!(one(&|record, _| record.wrong_progress.push("autumn".to_owned())).contains("progress"));
        assert!(one(&|record, _| record.tasks[0].assignments = 2).contains("assigned exactly once"));
        assert!(one(&|record, _| record.tasks[0].state = "failed".to_owned()).contains("is done"));
        assert!(one(&|record, _| record.tasks[0].completed_leases = 2).contains("completed exactly once"));
        assert!(one(&|record, _| record.tasks[0].outcome_token = Some(7)).contains("newest token"));
        assert!(one(&|record, _| record.tasks[0].agent = Some("b".to_owned())).contains("crawled by the agent"));
        assert!(one(&|record, _| record.tasks[0].lessee = Some("b".to_owned())).contains("crawled by the agent"));
        assert!(one(&|record, _| record.active_leases = 1).contains("no lease"));
        assert!(one(&|record, _| record.tasks[0].pages += 1).contains("own logs"));
        assert!(one(&|_, log| log.retain(|access| access.path == "/")).contains("own logs"));
        assert!(one(&|_, log| log.push(access(1, true, "/", Instant::now()))).contains("nobody but"));
        assert!(one(&|_, log| log.push(access(0, true, "/private/x", Instant::now()))).contains("own logs"));
        assert!(one(&|_, log| log[1].at = log[0].at + Duration::from_millis(300)).contains("probed more than once"));
    }

    const LIMIT: RequestLimit = RequestLimit { interval: Duration::from_millis(100), slack: Duration::from_millis(10) };

    fn at(millis: &[u64]) -> Vec<Instant> {
        let begin = Instant::now();
        millis.iter().map(|millis| begin + Duration::from_millis(*millis)).collect()
    }

    fn holds(millis: &[u64], crawls: u32) -> bool {
        LIMIT.fullest(&at(millis), crawls).is_none_or(|fullest| fullest.share() <= 1.0)
    }

    #[test]
    fn one_request_per_interval_is_allowed_and_one_more_is_not() {
        assert!(holds(&[], 1) && holds(&[5], 1));
        assert!(holds(&[0, 100, 200, 300], 1));
        assert!(holds(&[0, 91, 200], 1), "one was longer under way");
        assert!(!holds(&[0, 80, 200], 1));
        assert!(!holds(&[0, 91, 182, 273], 1), "the slack is of a window, not of each request");
        assert!(!holds(&[0, 100, 200, 201, 300, 400], 1));
    }

    #[test]
    fn two_crawls_may_send_at_the_same_time_and_three_may_not() {
        assert!(holds(&[0, 0, 100, 100, 200, 200], 2));
        assert!(!holds(&[0, 0, 100, 100, 101, 200, 200], 2));
        assert!(!holds(&[0, 0, 100, 100], 1));
    }

    #[test]
    fn the_fullest_window_violates_the_limit() {
        let fullest = LIMIT.fullest(&at(&[0, 500, 540, 1000]), 1).unwrap();
        assert_eq!((fullest.requests, fullest.window), (2, Duration::from_millis(40)));
        assert!((fullest.allowed - 1.5).abs() < 1e-9, "{fullest:?}");
    }

    #[test]
    fn spans_are_counted_where_most_are_under_way() {
        let [a, b, c, d] = at(&[0, 10, 20, 30])[..] else { panic!("four") };
        assert_eq!(most_at_once(&[]), 0);
        assert_eq!(most_at_once(&[(a, b), (b, c), (c, d)]), 1);
        assert_eq!(most_at_once(&[(a, c), (b, d), (c, d)]), 2);
    }
}
