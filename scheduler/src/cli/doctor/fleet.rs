//! What a scheduler says about its fleet: its agents and landmarks, the contact URL, and beacons
//! that agents do not reach.

use futures::future::join_all;
use landfall_proto::v1::{
    Agent, Landmark, ListAgentsRequest, ListLandmarksRequest, ShowContactUrlRequest, ShowReachRequest,
    ShowSchedulerRequest, Way, WayState,
};

use crate::app::doctor::CheckResult;
use crate::app::exit::sentence;
use crate::cli::ConnectionArgs;
use crate::cli::client::Client;
use crate::cli::output::counted;
use crate::gnp::FEWEST_LANDMARKS;
use crate::jobs::measure::fleet::SMALL_FLEET;

/// Maximum number of agents that one line names.
const NAMED: usize = 3;
/// Maximum number of beacons about which the scheduler is asked in detail: all landmarks of a usual
/// fleet, and the agents that the fewest others reach. Each answer has a row for every agent.
const MOST_BEACONS: usize = 24;

/// What a scheduler answered.
#[derive(Debug)]
pub(super) struct Asked {
    url: String,
    version: String,
    contact_url: String,
    agents: Vec<Agent>,
    landmarks: Vec<Landmark>,
    /// The directions to the beacons that were asked about.
    ways: Vec<Way>,
}

impl Asked {
    pub(super) async fn of(connection: &ConnectionArgs) -> anyhow::Result<Self> {
        let client = Client::connect(connection).await?;
        let version = client.answer(client.fleet().show_scheduler(ShowSchedulerRequest {}).await)?.version;
        let contact_url = client.answer(client.fleet().show_contact_url(ShowContactUrlRequest {}).await)?.contact_url;
        let agents = client.answer(client.fleet().list_agents(ListAgentsRequest::default()).await)?.agents;
        let landmarks = client.answer(client.fleet().list_landmarks(ListLandmarksRequest {}).await)?.landmarks;
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
        Ok(Self { url: client.url().to_owned(), version, contact_url, agents, landmarks, ways })
    }

    pub(super) fn answers(&self) -> CheckResult {
        CheckResult::ok("scheduler", format!("{} answers: landfall {}", self.url, self.version))
    }

    pub(super) fn judge(&self) -> Vec<CheckResult> {
        vec![
            version(&self.version),
            contact(Some(&self.contact_url)),
            agents(&self.agents),
            landmarks(&self.agents, &self.landmarks),
            reach(&self.agents, &self.ways),
        ]
    }
}

/// The connected agents whose beacons are checked: landmarks first, which every agent must reach,
/// then those that the fewest others have reached.
fn beacons(agents: &[Agent]) -> impl Iterator<Item = &Agent> {
    let mut beacons: Vec<&Agent> = connected(agents).filter(|agent| !agent.beacon_url.is_empty()).collect();
    beacons.sort_by_key(|agent| (!agent.landmark, agent.reached_by));
    beacons.into_iter().take(MOST_BEACONS)
}

fn connected(agents: &[Agent]) -> impl Iterator<Item = &Agent> {
    agents.iter().filter(|agent| agent.connected)
}

/// The fault of a scheduler that could not be asked.
pub(super) fn unasked(error: &anyhow::Error) -> CheckResult {
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

/// `url` is empty if none is set, `None` if that is unknown.
pub(super) fn contact(url: Option<&str>) -> CheckResult {
    const CHECK: &str = "contact";
    match url {
        None => CheckResult::skip(CHECK, "whether a contact URL is stored is known when the database runs"),
        Some("") => CheckResult::wrong(
            CHECK,
            "no contact URL is set, so agents send no request to any site",
            "run `landfall contact set URL`, or set contact_url in the configuration before a start",
        ),
        Some(url) => CheckResult::ok(CHECK, url),
    }
}

fn agents(agents: &[Agent]) -> CheckResult {
    const CHECK: &str = "agents";
    let enrol = "landfall agents enrol --city CITY --carrier CARRIER";
    let away: Vec<&str> = agents.iter().filter(|agent| !agent.connected).map(|agent| agent.name.as_str()).collect();
    let here = agents.len() - away.len();
    let text = format!("{here} of {} connected", counted(agents.len() as u64, "agent"));
    match (agents.len(), here) {
        (0, _) => CheckResult::note(CHECK, "none is enrolled yet", enrol),
        (_, 0) => CheckResult::wrong(
            CHECK,
            text,
            "run `landfall-agent doctor` on an agent's machine; check the firewall of the scheduler's port",
        ),
        (all, here) if all == here => CheckResult::ok(CHECK, text),
        _ => CheckResult::note(
            CHECK,
            format!("{text}; away: {}", named(&away)),
            "landfall agents list; run `landfall-agent doctor` on their machines, or remove them",
        ),
    }
}

/// The first names of a list, and the number of the others.
fn named(names: &[&str]) -> String {
    let (shown, more) = names.split_at(names.len().min(NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    shown.join(", ") + &more
}

fn landmarks(agents: &[Agent], landmarks: &[Landmark]) -> CheckResult {
    const CHECK: &str = "landmarks";
    let elect = "landfall landmarks elect --count 9";
    let fleet = connected(agents).count();
    let away: Vec<&str> =
        landmarks.iter().filter(|landmark| !landmark.connected).map(|landmark| landmark.name.as_str()).collect();
    let here = landmarks.len() - away.len();
    let text = format!("{here} of {} connected", counted(landmarks.len() as u64, "landmark"));
    match (landmarks.len(), here) {
        (0, _) if fleet <= SMALL_FLEET => CheckResult::ok(
            CHECK,
            format!("none, and none are needed for up to {SMALL_FLEET} agents: each measures every site"),
        ),
        (0, _) => CheckResult::wrong(CHECK, format!("none, but {fleet} agents need them: no site is measured"), elect),
        (_, here) if here < FEWEST_LANDMARKS && fleet > here => CheckResult::wrong(
            CHECK,
            format!("{text}: with fewer than {FEWEST_LANDMARKS}, distances to other agents cannot be predicted"),
            format!("landfall landmarks list; bring them back, or {elect}"),
        ),
        (all, here) if all == here => CheckResult::ok(CHECK, text),
        _ => CheckResult::note(
            CHECK,
            format!("{text}; away: {}", named(&away)),
            "landfall landmarks list; elected landmarks are replaced, those set by hand are not",
        ),
    }
}

/// A beacon with the results of the newest attempts of other agents.
struct Beacon<'a> {
    agent: &'a Agent,
    reached: usize,
    failed: Vec<&'a Way>,
}

impl Beacon<'_> {
    /// Every agent must reach a landmark. Other agents may be behind address translation.
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
    use crate::app::doctor::State;

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
    fn agents_that_are_away_are_named() {
        check(&agents(&[]), State::Note, "none is enrolled");
        check(&agents(&[agent("a", false)]), State::Wrong, "0 of 1 agent connected");
        check(&agents(&fleet(2)), State::Ok, "2 of 2 agents connected");
        let mut mixed = fleet(1);
        mixed.extend(["b", "c", "d", "e"].map(|name| agent(name, false)));
        check(&agents(&mixed), State::Note, "1 of 5 agents connected; away: b, c, d and 1 more");
    }

    #[test]
    fn a_fleet_of_ten_needs_landmarks_and_three_of_them() {
        let set = |connected: &[bool]| {
            let landmark = |connected: &bool| Landmark { connected: *connected, ..Landmark::default() };
            connected.iter().map(landmark).collect::<Vec<_>>()
        };
        check(&landmarks(&fleet(9), &[]), State::Ok, "none are needed");
        check(&landmarks(&fleet(10), &[]), State::Wrong, "10 agents need them");
        check(&landmarks(&fleet(10), &set(&[true, true, false])), State::Wrong, "fewer than 3");
        check(&landmarks(&fleet(10), &set(&[true, true, true, false])), State::Note, "3 of 4 landmarks");
        check(&landmarks(&fleet(10), &set(&[true, true, true])), State::Ok, "3 of 3 landmarks");
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
