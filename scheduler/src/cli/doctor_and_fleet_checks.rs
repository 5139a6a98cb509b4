//! `landfall doctor`: checks a scheduler, its machine and its fleet, or a scheduler on another
//! machine, and prints what to do about each fault.

use std::path::Path;

use clap::Args;
use futures_util::future::join_all;
use landfall_proto::v1::{
    Agent, Attention, AttentionKind, ListAgentsRequest, SchedulerStatus, ShowReachRequest, ShowStatusRequest,
    ShowStatusResponse, Way, WayState,
};
use serde::Serialize;
use url::Url;

use crate::app::data_dir::LOCK_FILE;
use crate::app::doctor::{self, CheckResult, Examination, State, in_time};
use crate::app::exit::{Code, ended, sentence};
use crate::app::start_options::Options;
use crate::cli::agents::list_and_show;
use crate::cli::connection::{self, Client, ConnectionArgs};
use crate::cli::output::{ShowFormatArgs, View, counted};
use crate::cli::status;
use crate::cli::up::SchedulerArgs;
use crate::machine::clock::now;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall doctor                                          before the first start, or while a scheduler runs
  landfall doctor --config landfall.toml --data-dir data   with the same options as `up` or `serve`
  landfall doctor --scheduler https://203.0.113.5:7171 --ca ca.pem --token-file token -o json

It changes nothing, and ends within 15 s. Without --config it reads /etc/landfall/landfall.toml if the data directory is
/var/lib/landfall. On a machine without that directory, --scheduler checks the scheduler from outside. Each line is ok, note
(it works, but could be better), skip (not checked), or WRONG.")]
pub(in crate::cli) struct DoctorArgs {
    #[command(flatten)]
    scheduler: SchedulerArgs,
    #[command(flatten)]
    format: ShowFormatArgs,
}

impl DoctorArgs {
    /// Checks the scheduler that `up` or `serve` would run with these options.
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { scheduler, format } = self;
        let options = doctor::with_default_paths(scheduler.options(connection))?;
        let data_dir = options.data_dir.clone().unwrap_or_default();
        let elsewhere = connection.scheduler.first().filter(|_| !data_dir.join(LOCK_FILE).exists());
        let checks = match elsewhere {
            Some(url) => from_elsewhere(url, &data_dir, connection).await,
            None => here(&options, connection).await,
        };
        let report = Report { version: crate::VERSION, checks };
        format.print(&report, |report, view| Ok(text(&report.checks, view)))?;
        let wrong = report.checks.iter().filter(|result| result.state == State::Wrong).count();
        match wrong {
            0 => Ok(()),
            wrong => Err(ended(Code::NotDone, format!("{wrong} of {} checks failed", report.checks.len()))),
        }
    }
}

/// Checks this machine, and also the fleet if the scheduler answers.
async fn here(options: &Options, connection: &ConnectionArgs) -> Vec<CheckResult> {
    let (examined, asked) = tokio::join!(doctor::examine(options), in_time("fleet", Asked::of(connection)));
    let Examination { mut results, answers, contact_url } = examined;
    match asked {
        Ok(Ok(asked)) => {
            results.extend(asked.judge());
            return results;
        }
        Ok(Err(error)) if answers => results.push(unasked(&error)),
        Err(hangs) if answers => results.push(hangs),
        _ => results.push(CheckResult::skip("fleet", "no scheduler is running, so its agents cannot be checked")),
    }
    results.push(contact(contact_url.as_deref()));
    results
}

/// Checks a scheduler on another machine, from an operator's machine.
async fn from_elsewhere(url: &str, data_dir: &Path, connection: &ConnectionArgs) -> Vec<CheckResult> {
    let text = format!(
        "{} is not a scheduler's data directory, so only the scheduler at {url} is checked; run this command on the \
         scheduler's machine to check its configuration, disk, database and certificates",
        data_dir.display()
    );
    let mut results = vec![CheckResult::skip("machine", text)];
    let ca = connection::settings(connection).ok().and_then(|settings| settings.ca);
    let certificate = async {
        let parsed = Url::parse(url).ok().filter(|url| url.scheme() == "https")?;
        let (host, port) = (parsed.host_str()?, parsed.port_or_known_default()?);
        doctor::of_scheduler(host.trim_matches(['[', ']']), port, &ca?, now()).await
    };
    let (asked, certificate) = tokio::join!(in_time("scheduler", Asked::of(connection)), certificate);
    match asked {
        Ok(Ok(asked)) => {
            results.push(asked.answers());
            results.extend(certificate);
            results.extend(asked.judge());
        }
        Ok(Err(error)) => {
            results.push(unasked(&error));
            results.extend(certificate);
        }
        Err(hangs) => results.push(hangs),
    }
    results
}

/// The results, as printed in JSON.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) checks: Vec<CheckResult>,
}

/// The results as lines, with each remedy below its fault.
pub(super) fn text(results: &[CheckResult], view: &View) -> String {
    let mut text = String::new();
    for CheckResult { check, state, text: found, remedy } in results {
        text += &view.labelled(&format!("{:<5}  {check:<11}  ", state.word()), found);
        if let Some(remedy) = remedy {
            text += &view.labelled(&format!("{:<5}  {:<11}  ", "", ""), &format!("do: {remedy}"));
        }
    }
    text
}

/// Maximum number of beacons named in one line.
const NAMED: usize = 3;
/// Maximum number of beacons about which the scheduler is asked in detail, because each answer has
/// a row for every agent. The limit suffices for all landmarks of a typical fleet, and for some
/// agents that few other agents reach.
const MOST_BEACONS: usize = 24;

const SCHEDULER: &str = "scheduler";
const CONTACT: &str = "contact";
const AGENTS: &str = "agents";
const LANDMARKS: &str = "landmarks";

/// The answers of a scheduler.
#[derive(Debug)]
pub(super) struct Asked {
    url: String,
    status: ShowStatusResponse,
    agents: Vec<Agent>,
    /// The results of attempts to reach the checked beacons, one for each agent and beacon.
    ways: Vec<Way>,
}

impl Asked {
    pub(super) async fn of(connection: &ConnectionArgs) -> anyhow::Result<Self> {
        let client = Client::connect(connection).await?;
        let status = client.answer(client.status().show_status(ShowStatusRequest::default()).await)?;
        let agents = list_and_show::agents(&client, &ListAgentsRequest::default(), 0).await?.agents;
        let client = &client;
        let asked = join_all(beacons(&agents).map(|agent| async move {
            let request = ShowReachRequest { agent: agent.name.clone(), other: String::new() };
            let ways = client.answer(client.fleet().show_reach(request).await)?.ways;
            anyhow::Ok(ways.into_iter().filter(|way| way.target == agent.name).collect::<Vec<_>>())
        }));
        let mut ways = Vec::new();
        for answer in asked.await {
            ways.extend(answer?);
        }
        Ok(Self { url: client.url().to_owned(), status, agents, ways })
    }

    /// The entry in the status that describes the scheduler that answered.
    fn scheduler(&self) -> Option<&SchedulerStatus> {
        self.status.schedulers.iter().find(|scheduler| scheduler.url == self.status.answering_url)
    }

    pub(super) fn answers(&self) -> CheckResult {
        let version = self.scheduler().map(|scheduler| format!(": landfall {}", scheduler.version)).unwrap_or_default();
        CheckResult::ok("scheduler", format!("{} answers{version}", self.url))
    }

    pub(super) fn judge(&self) -> Vec<CheckResult> {
        let mut results: Vec<CheckResult> =
            self.scheduler().map(|scheduler| version(&scheduler.version)).into_iter().collect();
        results.extend(findings(&self.status));
        results.push(reach(&self.agents, &self.ways));
        results
    }
}

/// Converts the findings of the scheduler's status to check results, and adds a good result for
/// each subject without a finding.
fn findings(status: &ShowStatusResponse) -> Vec<CheckResult> {
    let mut results: Vec<CheckResult> = status.attention.iter().filter_map(finding).collect();
    let good = [
        (CONTACT, "a contact URL is set".to_owned()),
        (AGENTS, status::fleet_line(status.fleet.as_ref())),
        (LANDMARKS, status::landmarks_line(status.landmarks.as_ref())),
    ];
    for (check, text) in good {
        if !results.iter().any(|result| result.check == check) {
            results.push(CheckResult::ok(check, text));
        }
    }
    let order = |check: &str| [SCHEDULER, CONTACT, AGENTS, LANDMARKS].iter().position(|one| *one == check).unwrap_or(4);
    results.sort_by_key(|result| order(result.check));
    results
}

/// Converts a finding to a check result; `None` for unreached beacons, about which [`reach`]
/// reports more.
fn finding(found: &Attention) -> Option<CheckResult> {
    let check = match found.kind() {
        AttentionKind::BeaconsUnreached => return None,
        AttentionKind::SchedulerLost
        | AttentionKind::SchedulerVersions
        | AttentionKind::SchedulerDisk
        | AttentionKind::DatabaseReadOnly => SCHEDULER,
        AttentionKind::NoContactUrl => CONTACT,
        AttentionKind::NoLandmarks | AttentionKind::FewLandmarks | AttentionKind::LandmarksAway => LANDMARKS,
        AttentionKind::MapAlarm => "map",
        AttentionKind::OpenCircuits | AttentionKind::NoEligibleAgent | AttentionKind::BatchIdle => "sites",
        _ => AGENTS,
    };
    // If agents are enrolled but none is connected, something is wrong even if no site is waiting
    // yet.
    let none_connects = found.kind() == AttentionKind::NoAgent && found.count > 0;
    Some(match found.urgent || none_connects {
        true => CheckResult::wrong(check, &*found.message, &*found.command),
        false => CheckResult::note(check, &*found.message, &*found.command),
    })
}

/// The connected agents whose beacons are checked. Landmarks come first, because every agent must
/// reach them. Then come the agents that the fewest other agents have reached.
fn beacons(agents: &[Agent]) -> impl Iterator<Item = &Agent> {
    let mut beacons: Vec<&Agent> = connected(agents).filter(|agent| !agent.beacon_url.is_empty()).collect();
    beacons.sort_by_key(|agent| (!agent.landmark, agent.reached_by));
    beacons.into_iter().take(MOST_BEACONS)
}

fn connected(agents: &[Agent]) -> impl Iterator<Item = &Agent> {
    agents.iter().filter(|agent| agent.connected)
}

/// The result if the requests to the scheduler failed.
fn unasked(error: &anyhow::Error) -> CheckResult {
    CheckResult::wrong(
        "scheduler",
        sentence(error),
        "check that it runs, that you may read client.toml or the files of --token-file and --ca, and that no firewall \
         blocks the connection",
    )
}

fn version(theirs: &str) -> CheckResult {
    const CHECK: &str = "version";
    match theirs == crate::VERSION {
        true => CheckResult::ok(CHECK, format!("landfall {theirs}, the scheduler and this program")),
        false => CheckResult::note(
            CHECK,
            format!("the scheduler is landfall {theirs}, this program {}", crate::VERSION),
            "after an upgrade of the program, restart the scheduler: systemctl restart landfall",
        ),
    }
}

/// Checks the contact URL if no scheduler answers. `url` is empty if no URL is set, and `None` if
/// that is unknown.
pub(super) fn contact(url: Option<&str>) -> CheckResult {
    match url {
        None => CheckResult::skip(CONTACT, "whether a contact URL is stored is known when the database runs"),
        Some("") => CheckResult::wrong(
            CONTACT,
            "no contact URL is set, so agents send no request to any site",
            "set contact_url in the configuration before a start, or run `landfall contact set URL` after it",
        ),
        Some(url) => CheckResult::ok(CONTACT, url),
    }
}

/// A beacon with the results of other agents' newest attempts to reach it.
struct Beacon<'a> {
    agent: &'a Agent,
    reached: usize,
    failed: Vec<&'a Way>,
}

impl Beacon<'_> {
    /// Every agent must be able to reach every landmark. Other agents may be behind address
    /// translation, so their unreached beacons are only notes.
    fn is_wrong(&self) -> bool {
        !self.failed.is_empty() && self.agent.landmark
    }
}

fn reach(agents: &[Agent], ways: &[Way]) -> CheckResult {
    const CHECK: &str = "beacons";
    let beacons: Vec<Beacon<'_>> = beacons(agents)
        .map(|agent| {
            let to = |state| ways.iter().filter(move |way| way.target == agent.name && way.state() == state);
            Beacon { agent, reached: to(WayState::Reached).count(), failed: to(WayState::Failed).collect() }
        })
        .collect();
    let mut bad: Vec<&Beacon<'_>> = beacons.iter().filter(|beacon| !beacon.failed.is_empty()).collect();
    bad.sort_by_key(|beacon| (!beacon.is_wrong(), beacon.reached, std::cmp::Reverse(beacon.failed.len())));
    let Some(way) = bad.first().and_then(|beacon| beacon.failed.first()) else {
        let tried = beacons.iter().filter(|beacon| beacon.reached > 0).count();
        return match (connected(agents).count(), tried) {
            (0 | 1, _) => CheckResult::skip(CHECK, "fewer than two agents are connected"),
            (_, 0) => CheckResult::skip(CHECK, "no agent has measured another's beacon yet"),
            _ => CheckResult::ok(
                CHECK,
                format!("no attempt failed at the {} checked", counted(beacons.len() as u64, "beacon")),
            ),
        };
    };
    let worst: Vec<String> = bad.iter().take(NAMED).map(|beacon| said(beacon)).collect();
    let more = bad.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    let why = way.failure.as_ref().map(|failure| format!("; {} to {}: {}", way.prober, way.target, failure.message));
    let text = worst.join("; ") + &more + &why.unwrap_or_default();
    let remedy = format!("landfall agents reach {} {}", way.prober, way.target);
    match bad.iter().any(|beacon| beacon.is_wrong()) {
        true => CheckResult::wrong(CHECK, text, remedy),
        false => CheckResult::note(CHECK, text, remedy),
    }
}

fn said(beacon: &Beacon<'_>) -> String {
    let Beacon { agent, reached, failed } = beacon;
    let what = if agent.landmark { "landmark " } else { "" };
    let tried = reached + failed.len();
    format!("{what}{}: {} of {tried} agents do not reach it", agent.name, failed.len())
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::MeasurementFailure;

    use super::*;

    #[test]
    fn a_fault_is_printed_with_its_remedy_below_and_no_line_is_too_long() {
        let view = View::plain();
        let long = "every user of this machine may read ".to_owned() + &"/a/long/path ".repeat(12);
        let results = [
            CheckResult::ok("config", "good"),
            CheckResult::wrong("certificate", long, "run chmod"),
            CheckResult::skip("fleet", "no scheduler\nruns"),
        ];
        let printed = text(&results, &view);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines[0], "ok     config       good");
        assert!(lines[1].starts_with("WRONG  certificate  every user"), "{printed}");
        assert!(lines[2].starts_with("                    /a/long"), "{printed}");
        assert_eq!(lines[lines.len() - 2], "                    do: run chmod");
        assert_eq!(lines[lines.len() - 1], "skip   fleet        no scheduler runs");
        assert!(lines.iter().all(|line| line.len() <= view.columns), "{printed}");
    }

    fn agent(name: &str, connected: bool) -> Agent {
        let beacon_url = format!("http://{name}:7180/");
        Agent { name: name.to_owned(), connected, beacon_url, ..Agent::default() }
    }

    fn fleet(count: usize) -> Vec<Agent> {
        (0..count).map(|number| agent(&format!("a{number}"), true)).collect()
    }

    fn way(prober: &str, target: &str, state: WayState) -> Way {
        let failure = MeasurementFailure { message: "connection refused".to_owned(), ..MeasurementFailure::default() };
        Way {
            prober: prober.to_owned(),
            target: target.to_owned(),
            state: state.into(),
            failure: (state == WayState::Failed).then_some(failure),
            ..Way::default()
        }
    }

    fn check(result: &CheckResult, state: State, said: &str) {
        assert!(result.state == state && result.text.contains(said), "{result:?}");
    }

    #[test]
    fn findings_of_the_status_are_faults_if_work_stands_still() {
        let found = |kind: AttentionKind, urgent, count| Attention {
            kind: kind.into(),
            urgent,
            count,
            message: "said".to_owned(),
            command: "landfall do".to_owned(),
        };
        let judged = |attention: Vec<Attention>| -> Vec<(&'static str, State)> {
            let status = ShowStatusResponse { attention, ..ShowStatusResponse::default() };
            findings(&status).iter().map(|result| (result.check, result.state)).collect()
        };
        let good = [(CONTACT, State::Ok), (AGENTS, State::Ok), (LANDMARKS, State::Ok)];
        assert_eq!(judged(Vec::new()), good);
        assert_eq!(judged(vec![found(AttentionKind::BeaconsUnreached, false, 1)]), good);
        assert_eq!(
            judged(vec![
                found(AttentionKind::NoLandmarks, true, 10),
                found(AttentionKind::AgentsAway, false, 1),
                found(AttentionKind::OpenCircuits, false, 1),
            ]),
            [(CONTACT, State::Ok), (AGENTS, State::Note), (LANDMARKS, State::Wrong), ("sites", State::Note)]
        );
        assert_eq!(judged(vec![found(AttentionKind::NoAgent, false, 0)])[1], (AGENTS, State::Note));
        assert_eq!(judged(vec![found(AttentionKind::NoAgent, false, 3)])[1], (AGENTS, State::Wrong));
        let result = finding(&found(AttentionKind::NoContactUrl, true, 1)).unwrap();
        assert_eq!((result.text.as_str(), result.remedy.as_deref()), ("said", Some("landfall do")));
    }

    #[test]
    fn a_beacon_that_agents_do_not_reach_is_wrong_only_if_it_is_a_landmarks() {
        use WayState::{Failed, Reached, Untried};
        let mut all = fleet(4);
        check(&reach(&all[..1], &[]), State::Skip, "fewer than two");
        check(&reach(&all, &[way("a1", "a0", Untried)]), State::Skip, "no agent has measured");
        check(&reach(&all, &[way("a1", "a0", Reached)]), State::Ok, "at the 4 beacons");
        let some = [way("a1", "a0", Reached), way("a2", "a0", Failed)];
        let noted = reach(&all, &some);
        check(&noted, State::Note, "a0: 1 of 2 agents do not reach it; a2 to a0: connection refused");
        assert_eq!(noted.remedy.as_deref(), Some("landfall agents reach a2 a0"));
        all[0].landmark = true;
        check(&reach(&all, &some), State::Wrong, "landmark a0: 1 of 2");
        let more = [&some[..], &[way("a0", "a3", Failed), way("a1", "a3", Failed)]].concat();
        let judged = reach(&all, &more);
        check(
            &judged,
            State::Wrong,
            "landmark a0: 1 of 2 agents do not reach it; a3: 2 of 2 agents do not reach it; a2",
        );
        assert_eq!(judged.remedy.as_deref(), Some("landfall agents reach a2 a0"), "the worst one first");
        all[0].landmark = false;
        check(&reach(&all, &more), State::Note, "a3: 2 of 2 agents do not reach it; a0: 1 of 2");
    }

    #[test]
    fn landmarks_and_those_whom_the_fewest_reach_are_asked_about() {
        let mut all = fleet(40);
        for (agent, reached_by) in all.iter_mut().zip(1..) {
            agent.reached_by = reached_by;
        }
        all[39].landmark = true;
        all[2].connected = false;
        all[3].beacon_url.clear();
        let asked: Vec<&str> = beacons(&all).map(|agent| agent.name.as_str()).collect();
        assert_eq!((asked.len(), asked[0]), (MOST_BEACONS, "a39"));
        assert!(!asked.contains(&"a2") && !asked.contains(&"a3") && asked.contains(&"a4"), "{asked:?}");
    }

    #[test]
    fn without_a_contact_url_no_request_is_sent() {
        assert_eq!(contact(None).state, State::Skip);
        assert_eq!(contact(Some("")).state, State::Wrong);
        assert_eq!(contact(Some("https://example.org/crawler")).state, State::Ok);
    }
}
