//! Decides what needs an operator's attention, and which command helps with it.

use std::time::Duration;

use super::facts::{AgentStatus, BatchStatus, DiskSpace, SchedulerStatus, Status};
use crate::gnp::{FEWEST_LANDMARKS, SMALL_FLEET};
use crate::model::durations_and_sizes::readable_size;
use crate::model::{ServiceState, words};

/// Maximum number of agents or schedulers that a message names.
const NAMED: usize = 3;
/// Difference between clocks, in seconds, above which an agent is reported. Clocks must be right
/// because certificates have a validity period and stored pages have timestamps. `landfall-agent
/// doctor` has the same limit.
const CLOCKS_DIFFER_S: u32 = 60;
/// A disk is reported if its free share is below this value and its free bytes are below
/// [`DISK_ROOMY`].
const DISK_LOW: f64 = 0.1;
/// A disk with this many free bytes is never reported. At a gigabyte a day, this space lasts a
/// week or more.
const DISK_ROOMY: u64 = 10_000_000_000;
/// Time after which a disconnected landmark is reported if it was set by hand. Only an operator can
/// replace a landmark set by hand.
const LANDMARK_PATIENCE: Duration = Duration::from_secs(600);
/// A batch is reported if none of its crawls has ended for this time or, if that is longer, for
/// twice the time limit of a crawl. A batch that is making progress is never reported: its
/// measurements take only minutes, and no crawl runs longer than its time limit.
const IDLE_PATIENCE: Duration = Duration::from_secs(1800);

words! {
    /// The subject of a finding.
    AttentionKind {
        SchedulerLost = "scheduler-lost",
        SchedulerVersions = "scheduler-versions",
        SchedulerDisk = "scheduler-disk",
        DatabaseReadOnly = "database-read-only",
        NoContactUrl = "no-contact-url",
        NoAgent = "no-agent",
        AgentsAway = "agents-away",
        AgentsPaused = "agents-paused",
        AgentsQuarantined = "agents-quarantined",
        AgentClocks = "agent-clocks",
        AgentVersions = "agent-versions",
        AgentDisks = "agent-disks",
        AgentTwins = "agent-twins",
        BeaconsUnreached = "beacons-unreached",
        NoLandmarks = "no-landmarks",
        FewLandmarks = "few-landmarks",
        LandmarksAway = "landmarks-away",
        MapAlarm = "map-alarm",
        OpenCircuits = "open-circuits",
        NoEligibleAgent = "no-eligible-agent",
        BatchIdle = "batch-idle",
    }
}

/// A finding that needs an operator's attention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attention {
    pub kind: AttentionKind,
    /// Whether work has stopped or will soon stop.
    pub urgent: bool,
    /// Number of agents, sites etc. that the finding is about.
    pub count: u64,
    /// The finding as one sentence.
    pub message: String,
    /// The command that helps, or that shows details.
    pub command: String,
}

impl Attention {
    fn new(kind: AttentionKind, count: usize, message: impl Into<String>, command: impl Into<String>) -> Self {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        Self { kind, urgent: false, count, message: message.into(), command: command.into() }
    }

    fn urgent(self) -> Self {
        Self { urgent: true, ..self }
    }
}

/// Returns the findings that need attention, urgent ones first.
pub fn attention(status: &Status) -> Vec<Attention> {
    let mut found = database(status);
    found.extend(schedulers(status));
    found.extend(contact(status));
    found.extend(connected(status));
    found.extend(service(status));
    found.extend(machines(status));
    found.extend(map(status));
    found.extend(sites(status));
    found.extend(idle(status));
    found.sort_by_key(|one| !one.urgent);
    found
}

fn database(status: &Status) -> Vec<Attention> {
    let message = "the database is read-only, so nothing can be changed, and agents stop their crawls";
    let found = Attention::new(AttentionKind::DatabaseReadOnly, 1, message, "landfall doctor").urgent();
    if status.database.read_only { vec![found] } else { Vec::new() }
}

fn schedulers(status: &Status) -> Vec<Attention> {
    let mut found = Vec::new();
    let lost: Vec<&SchedulerStatus> = status.schedulers.iter().filter(|scheduler| !scheduler.running).collect();
    // While the database is read-only, no scheduler can renew its row, whether it runs or not.
    if !lost.is_empty() && !status.database.read_only {
        let message = format!("{} stopped without notice", names(lost.iter().map(|scheduler| &*scheduler.url)));
        found.push(Attention::new(AttentionKind::SchedulerLost, lost.len(), message, "landfall doctor"));
    }
    let running = || status.schedulers.iter().filter(|scheduler| scheduler.running);
    if let Some(first) = running().next()
        && running().any(|scheduler| scheduler.version != first.version)
    {
        let versions = names(running().map(|scheduler| &*scheduler.version));
        let message = format!("the schedulers run different versions: {versions}");
        found.push(Attention::new(AttentionKind::SchedulerVersions, running().count(), message, "landfall version"));
    }
    for scheduler in running() {
        let Some(disk) = scheduler.disk.filter(|disk| is_low(*disk)) else { continue };
        let message = format!("the disk of the scheduler at {} fills: {}", scheduler.url, room(disk));
        found.push(Attention::new(AttentionKind::SchedulerDisk, 1, message, "landfall batches remove NAME").urgent());
    }
    found
}

fn contact(status: &Status) -> Option<Attention> {
    let message = "no contact URL is set, so agents send no request";
    let found = Attention::new(AttentionKind::NoContactUrl, 1, message, "landfall contact set URL");
    (!status.has_contact).then(|| found.urgent())
}

/// Reports that no agent is connected or, if some agents are connected, which agents are not.
fn connected(status: &Status) -> Option<Attention> {
    if status.agents.iter().any(|agent| agent.connected) {
        let away = Group::of(status, |agent| agent.service == ServiceState::Away)?;
        return Some(away.found(AttentionKind::AgentsAway, away.verb("is not connected", "are not connected"), show));
    }
    let enrolled = status.agents.len();
    let (message, command) = match (enrolled, status.open_enrolments) {
        (0, 0) => ("no agent is enrolled".to_owned(), "landfall agents enrol --city CITY --carrier CARRIER"),
        (0, 1) => ("no agent is enrolled; 1 token waits to be used".to_owned(), "landfall agents tokens"),
        (0, open) => (format!("no agent is enrolled; {open} tokens wait to be used"), "landfall agents tokens"),
        (1, _) => ("the only agent is not connected".to_owned(), "landfall agents list"),
        (agents, _) => (format!("none of the {agents} agents is connected"), "landfall agents list"),
    };
    let found = Attention::new(AttentionKind::NoAgent, enrolled, message, command);
    Some(Attention { urgent: !status.batches.is_empty(), ..found })
}

/// Reports connected agents that accept no work, and agents that are not trusted.
fn service(status: &Status) -> Vec<Attention> {
    let paused = Group::of(status, |agent| agent.service == ServiceState::Paused).map(|paused| {
        let reason = paused.reason(|agent| agent.paused.as_deref());
        paused.found(
            AttentionKind::AgentsPaused,
            format!("{} no work: {reason}", paused.verb("accepts", "accept")),
            show,
        )
    });
    let quarantined = Group::of(status, |agent| agent.quarantined.is_some()).map(|quarantined| {
        let reason = quarantined.reason(|agent| agent.quarantined.as_deref());
        let text = format!("{} quarantined: {reason}", quarantined.verb("is", "are"));
        quarantined
            .found(AttentionKind::AgentsQuarantined, text, |agent| format!("landfall landmarks trust {}", agent.name))
    });
    let twins = Group::of(status, |agent| agent.has_twin).map(|twins| {
        let text = format!("{} twice: a second process has the same credential", twins.verb("runs", "run"));
        twins.found(AttentionKind::AgentTwins, text, show)
    });
    [paused, quarantined, twins].into_iter().flatten().collect()
}

/// Reports connected agents whose machine or program needs attention.
fn machines(status: &Status) -> Vec<Attention> {
    let own = status.schedulers.iter().find(|scheduler| scheduler.running).map(|scheduler| release(&scheduler.version));
    let clock_differs = |ahead: i32| ahead.unsigned_abs() > CLOCKS_DIFFER_S;
    let clocks = Group::of(status, |agent| agent.connected && agent.clock_ahead_s.is_some_and(clock_differs));
    let clocks = clocks
        .map(|clocks| clocks.found(AttentionKind::AgentClocks, clocks.clock(), |_| "landfall-agent doctor".to_owned()));
    let other = |version: &str| own.is_some_and(|own| release(version) != own);
    let versions = Group::of(status, |agent| agent.connected && other(&agent.version)).map(|versions| {
        let theirs = versions.first().version.as_str();
        let text =
            format!("{} version {theirs}, the scheduler {}", versions.verb("runs", "run"), own.unwrap_or_default());
        versions.found(AttentionKind::AgentVersions, text, |_| "landfall agents list --wide".to_owned())
    });
    let disks = Group::of(status, |agent| agent.connected && agent.disk.is_some_and(is_low)).map(|disks| {
        let free = disks.first().disk.map(room).unwrap_or_default();
        disks.found(AttentionKind::AgentDisks, format!("{} a disk that fills: {free}", disks.verb("has", "have")), show)
    });
    let unreached = Group::of(status, |agent| agent.unreached).map(|unreached| {
        let text = format!("{} a beacon that no other agent reaches", unreached.verb("has", "have"));
        unreached.found(AttentionKind::BeaconsUnreached, text, |agent| format!("landfall agents reach {}", agent.name))
    });
    [clocks, versions, disks, unreached].into_iter().flatten().collect()
}

fn map(status: &Status) -> Vec<Attention> {
    let mut found = Vec::new();
    let connected = status.agents.iter().filter(|agent| agent.connected).count();
    if status.landmarks.is_empty() && connected > SMALL_FLEET {
        let message = format!("{connected} agents are connected, but no landmark is chosen, so no site is measured");
        found.push(Attention::new(AttentionKind::NoLandmarks, connected, message, "landfall landmarks elect").urgent());
    }
    let serving = status.landmarks.iter().filter(|landmark| landmark.away_for.is_none()).count();
    if !status.landmarks.is_empty() && serving < FEWEST_LANDMARKS && connected > serving {
        let all = status.landmarks.len();
        let message = format!(
            "{serving} of {all} landmarks connected: with fewer than {FEWEST_LANDMARKS} no distance can be predicted"
        );
        found.push(
            Attention::new(AttentionKind::FewLandmarks, all - serving, message, "landfall landmarks list").urgent(),
        );
    }
    let is_away = |away: Duration| away >= LANDMARK_PATIENCE;
    let away = status.landmarks.iter().filter(|landmark| landmark.by_hand && landmark.away_for.is_some_and(is_away));
    let away: Vec<&str> = away.map(|landmark| landmark.name.as_str()).collect();
    if !away.is_empty() {
        let (names, are) = (names(away.iter().copied()), if away.len() == 1 { "is" } else { "are" });
        let message = format!("{names}, set as landmark by hand, {are} not connected and will not be replaced");
        found.push(Attention::new(AttentionKind::LandmarksAway, away.len(), message, "landfall landmarks list"));
    }
    if let Some(reason) = &status.map_alarm {
        let message = format!("the map is not trusted, so agents are chosen at random: {reason}");
        found.push(Attention::new(AttentionKind::MapAlarm, 1, message, "landfall embedding show").urgent());
    }
    found
}

fn sites(status: &Status) -> Vec<Attention> {
    let mut found = Vec::new();
    let count = |sites: u64| usize::try_from(sites).unwrap_or(usize::MAX);
    if status.open_circuits > 0 {
        let open = status.open_circuits;
        let sites = if open == 1 { "site is" } else { "sites are" };
        let message = format!("{open} {sites} not crawled until you reopen them: too many requests failed");
        found.push(Attention::new(AttentionKind::OpenCircuits, count(open), message, "landfall sites circuits"));
    }
    for batch in status.batches.iter().filter(|batch| batch.unmet > 0) {
        let sites = if batch.unmet == 1 { "site" } else { "sites" };
        let message = format!("no agent that accepts work may crawl {} {sites} of batch {}", batch.unmet, batch.name);
        let command = format!("landfall batches show {}", batch.name);
        found.push(Attention::new(AttentionKind::NoEligibleAgent, count(batch.unmet), message, command));
    }
    found
}

/// Reports batches that make no progress although agents are connected.
fn idle(status: &Status) -> Vec<Attention> {
    if status.agents.iter().all(|agent| !agent.connected) {
        return Vec::new();
    }
    let is_idle = |batch: &&BatchStatus| batch.idle >= IDLE_PATIENCE.max(batch.max_duration * 2);
    let idle = status.batches.iter().filter(is_idle).map(|batch| {
        let message = format!("no crawl of batch {} has ended for {} min", batch.name, batch.idle.as_secs() / 60);
        Attention::new(AttentionKind::BatchIdle, 1, message, format!("landfall batches show {}", batch.name))
    });
    idle.collect()
}

/// The agents with the same finding: the first agent, and the list of all of them.
struct Group<'a>(&'a AgentStatus, Vec<&'a AgentStatus>);

impl<'a> Group<'a> {
    /// Groups the agents to which the finding applies; `None` if it applies to no agent.
    fn of(status: &'a Status, applies: impl Fn(&AgentStatus) -> bool) -> Option<Self> {
        let agents: Vec<&AgentStatus> = status.agents.iter().filter(|agent| applies(agent)).collect();
        agents.first().copied().map(|first| Self(first, agents))
    }

    const fn first(&self) -> &'a AgentStatus {
        self.0
    }

    fn verb(&self, one: &'static str, several: &'static str) -> &'static str {
        if self.1.len() == 1 { one } else { several }
    }

    /// The first known reason among the agents.
    fn reason(&self, reason: impl Fn(&'a AgentStatus) -> Option<&'a str>) -> &'a str {
        self.1.iter().find_map(|agent| reason(agent)).unwrap_or("the reason is unknown")
    }

    fn found(&self, kind: AttentionKind, verb: impl AsRef<str>, command: impl Fn(&AgentStatus) -> String) -> Attention {
        let names = names(self.1.iter().map(|agent| agent.name.as_str()));
        Attention::new(kind, self.1.len(), format!("{names} {}", verb.as_ref()), command(self.0))
    }

    fn clock(&self) -> String {
        let worst = self.1.iter().filter_map(|agent| agent.clock_ahead_s).max_by_key(|ahead| ahead.unsigned_abs());
        let ahead = worst.unwrap_or_default();
        let (has, way) = (self.verb("has", "have"), if ahead < 0 { "behind" } else { "ahead" });
        format!("{has} a clock that is {}{} s {way}", self.verb("", "up to "), ahead.unsigned_abs())
    }
}

fn show(agent: &AgentStatus) -> String {
    format!("landfall agents show {}", agent.name)
}

/// Lists names, such as "a, b, c and 4 more". Duplicate names appear once.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for name in all {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    let (shown, more) = distinct.split_at(distinct.len().min(NAMED));
    match (shown, more.len()) {
        ([first @ .., last], 0) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        (shown, 0) => shown.concat(),
        (shown, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The version without the commit from which the program was built.
fn release(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

fn is_low(disk: DiskSpace) -> bool {
    disk.free < DISK_ROOMY && disk.free_share() < DISK_LOW
}

fn room(disk: DiskSpace) -> String {
    format!("{} of {} are free", readable_size(disk.free), readable_size(disk.size))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use chrono::DateTime;

    use super::super::{DatabaseStatus, LandmarkStatus};
    use super::*;
    use crate::model::{BatchId, Strategy};

    fn scheduler(url: &str) -> SchedulerStatus {
        SchedulerStatus {
            url: url.to_owned(),
            version: "1.2.0+abc".to_owned(),
            started_at: DateTime::UNIX_EPOCH,
            running: true,
            roles: Vec::new(),
            disk: Some(DiskSpace { free: 60, size: 100 }),
        }
    }

    fn agent(name: &str) -> AgentStatus {
        AgentStatus {
            name: name.to_owned(),
            service: ServiceState::Ready,
            connected: true,
            slots: 8,
            leases: 0,
            version: "1.2.0".to_owned(),
            paused: None,
            quarantined: None,
            clock_ahead_s: Some(0),
            disk: None,
            has_twin: false,
            unreached: false,
        }
    }

    fn healthy() -> Status {
        Status {
            now: DateTime::UNIX_EPOCH,
            schedulers: vec![scheduler("http://127.0.0.1:7171")],
            database: DatabaseStatus { version: "15.1".to_owned(), size: 0, read_only: false },
            agents: vec![agent("a"), agent("b")],
            open_enrolments: 0,
            landmarks: Vec::new(),
            map: None,
            map_alarm: None,
            batches: Vec::new(),
            more_batches: 0,
            open_circuits: 0,
            has_contact: true,
        }
    }

    fn batch(name: &str, unmet: u64) -> BatchStatus {
        BatchStatus {
            id: BatchId::new(1),
            name: name.to_owned(),
            strategy: Strategy::GNP_TOP3,
            sites: 5,
            ended: 1,
            failed: 0,
            crawling: 0,
            unmet,
            sites_per_minute: None,
            megabytes_per_minute: None,
            idle: Duration::ZERO,
            max_duration: Duration::from_secs(3600),
            estimate: None,
        }
    }

    fn landmark(name: &str) -> LandmarkStatus {
        LandmarkStatus { name: name.to_owned(), by_hand: true, away_for: None }
    }

    fn leave(agent: &mut AgentStatus) {
        (agent.connected, agent.service) = (false, ServiceState::Away);
    }

    fn other(version: &str, running: bool) -> SchedulerStatus {
        SchedulerStatus { version: version.to_owned(), running, ..scheduler("https://s2:7171") }
    }

    #[test]
    fn a_healthy_system_needs_no_attention() {
        assert_eq!(attention(&healthy()), []);
    }

    type Case = (&'static str, fn(&mut Status), &'static str, &'static str);

    const CASES: [Case; 22] = [
        (
            "database-read-only",
            |status| {
                status.database.read_only = true;
                status.schedulers.push(other("1.2.0", false));
            },
            "the database is read-only, so nothing can be changed, and agents stop their crawls",
            "landfall doctor",
        ),
        (
            "scheduler-lost",
            |status| status.schedulers.push(other("1.2.0", false)),
            "https://s2:7171 stopped without notice",
            "landfall doctor",
        ),
        (
            "scheduler-versions",
            |status| status.schedulers.push(other("1.3.0", true)),
            "the schedulers run different versions: 1.2.0+abc and 1.3.0",
            "landfall version",
        ),
        (
            "scheduler-disk",
            |status| status.schedulers[0].disk = Some(DiskSpace { free: 4_000_000, size: 50_000_000 }),
            "fills: 4.0 MB of 50.0 MB are free",
            "landfall batches remove NAME",
        ),
        ("no-contact-url", |status| status.has_contact = false, "no contact URL is set", "landfall contact set URL"),
        (
            "no-agent",
            |status| status.agents.clear(),
            "no agent is enrolled",
            "landfall agents enrol --city CITY --carrier CARRIER",
        ),
        (
            "no-agent",
            |status| status.agents.iter_mut().for_each(leave),
            "none of the 2 agents is connected",
            "landfall agents list",
        ),
        ("agents-away", |status| leave(&mut status.agents[1]), "b is not connected", "landfall agents show b"),
        (
            "agents-paused",
            |status| {
                status.agents[0].service = ServiceState::Paused;
                status.agents[0].paused = Some("disk full".to_owned());
            },
            "a accepts no work: disk full",
            "landfall agents show a",
        ),
        (
            "agents-quarantined",
            |status| status.agents[0].quarantined = Some("it lies".to_owned()),
            "a is quarantined: it lies",
            "landfall landmarks trust a",
        ),
        (
            "agent-clocks",
            |status| status.agents[0].clock_ahead_s = Some(-3600),
            "a has a clock that is 3600 s behind",
            "landfall-agent doctor",
        ),
        (
            "agent-versions",
            |status| status.agents[0].version = "1.1.0".to_owned(),
            "a runs version 1.1.0, the scheduler 1.2.0",
            "landfall agents list --wide",
        ),
        (
            "agent-disks",
            |status| status.agents[0].disk = Some(DiskSpace { free: 0, size: 1_000_000 }),
            "a has a disk that fills: 0 B of 1.0 MB are free",
            "landfall agents show a",
        ),
        ("agent-twins", |status| status.agents[0].has_twin = true, "a runs twice", "landfall agents show a"),
        (
            "beacons-unreached",
            |status| status.agents.iter_mut().for_each(|agent| agent.unreached = true),
            "a and b have a beacon that no other agent reaches",
            "landfall agents reach a",
        ),
        (
            "no-landmarks",
            |status| status.agents = "abcdefghij".chars().map(|name| agent(&name.to_string())).collect(),
            "10 agents are connected, but no landmark is chosen",
            "landfall landmarks elect",
        ),
        (
            "landmarks-away",
            |status| {
                status.landmarks = ["c", "d", "e", "f"].map(landmark).to_vec();
                status.landmarks[0].away_for = Some(LANDMARK_PATIENCE);
            },
            "c, set as landmark by hand, is not connected",
            "landfall landmarks list",
        ),
        (
            "few-landmarks",
            |status| {
                status.landmarks = ["a", "d", "e"].map(landmark).to_vec();
                status.landmarks[1].away_for = Some(Duration::ZERO);
                status.agents.extend(["f", "g"].map(agent));
            },
            "2 of 3 landmarks connected: with fewer than 3",
            "landfall landmarks list",
        ),
        (
            "map-alarm",
            |status| status.map_alarm = Some("3 of 5 agents disagree".to_owned()),
            "chosen at random: 3 of 5 agents disagree",
            "landfall embedding show",
        ),
        (
            "open-circuits",
            |status| status.open_circuits = 2,
            "2 sites are not crawled until you reopen them",
            "landfall sites circuits",
        ),
        (
            "no-eligible-agent",
            |status| status.batches = vec![batch("autumn", 10_000)],
            "no agent that accepts work may crawl 10000 sites of batch autumn",
            "landfall batches show autumn",
        ),
        (
            "batch-idle",
            |status| status.batches = vec![BatchStatus { idle: Duration::from_secs(7200), ..batch("autumn", 0) }],
            "no crawl of batch autumn has ended for 120 min",
            "landfall batches show autumn",
        ),
    ];

    #[test]
    fn each_fact_leads_to_one_finding_with_a_command() {
        for (kind, change, message, command) in CASES {
            let mut status = healthy();
            change(&mut status);
            let found = attention(&status);
            assert_eq!(found.len(), 1, "{kind}: {found:?}");
            assert_eq!((found[0].kind.name(), found[0].command.as_str()), (kind, command));
            assert!(found[0].message.contains(message), "{kind}: {}", found[0].message);
        }
        let covered: HashSet<&str> = CASES.iter().map(|case| case.0).collect();
        assert_eq!(covered.len(), AttentionKind::ALL.len());
    }

    #[test]
    fn urgent_findings_come_first() {
        let mut status = healthy();
        (status.open_circuits, status.has_contact) = (1, false);
        let kinds: Vec<&str> = attention(&status).iter().map(|one| one.kind.name()).collect();
        assert_eq!(kinds, ["no-contact-url", "open-circuits"]);
    }

    #[test]
    fn a_fleet_without_agents_is_urgent_only_if_sites_wait() {
        let mut status = healthy();
        status.agents.clear();
        assert!(!attention(&status)[0].urgent);
        status.batches = vec![batch("autumn", 0)];
        assert!(attention(&status)[0].urgent);
    }

    #[test]
    fn a_message_names_a_few_agents_and_counts_the_others() {
        assert_eq!(names(["a"].into_iter()), "a");
        assert_eq!(names(["a", "b", "a"].into_iter()), "a and b");
        assert_eq!(names(["a", "b", "c"].into_iter()), "a, b and c");
        assert_eq!(names(["a", "b", "c", "d", "e"].into_iter()), "a, b, c and 2 more");
    }

    #[test]
    fn a_large_disk_with_much_room_is_no_finding() {
        assert!(!is_low(DiskSpace { free: DISK_ROOMY, size: 1_000_000_000_000 }));
        assert!(is_low(DiskSpace { free: DISK_ROOMY - 1, size: 1_000_000_000_000 }));
        assert!(!is_low(DiskSpace { free: 50, size: 100 }));
    }
}
