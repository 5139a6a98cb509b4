//! `landfall-agent doctor`: checks everything that an agent needs. For each item it reports whether
//! the item works, and if not, how to fix it.
//!
//! The command changes nothing, and can run while the agent runs.

use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::{BeaconFailure, CheckRequest, CheckResponse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Channel;
use tonic::{Code, Request};

use super::exit;
use super::run::RunArgs;

use crate::config::{Config, ExecConfig, SchedulerUrl, program};
use crate::machine::{clock as clocks, free_space};
use crate::net::dns::DnsError;
use crate::session::bearer;
use crate::session::opening::{self, endpoint};

/// Time limit for a response from the scheduler or the beacon.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum difference between this machine's clock and the scheduler's. The clock must be right
/// because certificates have a validity period and stored pages have timestamps.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);
/// The name that `doctor` asks the name server to resolve. Every name server can answer, even if
/// the answer is that the name has no address. Tests use an address instead, so that they need no
/// name server.
const SOME_NAME: &str = if cfg!(test) { "127.0.0.1" } else { "example.com" };
const ANSWER: &[u8] = b"HTTP/1.1 204 ";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    about: &'static str,
    text: String,
    /// How to fix the problem; `None` if there is no problem.
    remedy: Option<String>,
}

impl CheckResult {
    fn ok(about: &'static str, text: impl Into<String>) -> Self {
        Self { about, text: text.into(), remedy: None }
    }

    fn wrong(about: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { about, text: text.into(), remedy: Some(remedy.into()) }
    }

    pub const fn is_wrong(&self) -> bool {
        self.remedy.is_some()
    }
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { about, text, remedy } = self;
        match remedy {
            None => writeln!(f, "ok     {about:<10}  {text}"),
            Some(remedy) => writeln!(f, "WRONG  {about:<10}  {text}\n       {:<10}  do: {remedy}", ""),
        }
    }
}

/// Runs the command: prints the results. Fails if a check fails.
pub(super) async fn run(args: RunArgs) -> anyhow::Result<()> {
    let results = examine(&args.configuration()?).await;
    let text: String = results.iter().map(ToString::to_string).collect();
    std::io::stdout().write_all(text.as_bytes()).context("print the results")?;
    let wrong = results.iter().filter(|result| result.is_wrong()).count();
    match wrong {
        0 => Ok(()),
        wrong => Err(exit::exit_error(exit::Code::NotDone, format!("{wrong} of {} checks failed", results.len()))),
    }
}

/// Checks everything an agent with this configuration needs.
async fn examine(config: &Config) -> Vec<CheckResult> {
    let (mut results, check) = schedulers(config).await;
    if let Some((check, offset)) = &check {
        results.push(name(config, check));
        results.push(clock(*offset));
        results.push(contact(config, check));
    }
    results.push(beacon(config, check.as_ref().is_some_and(|(check, _)| check.connected)).await);
    if let Some((check, _)) = &check {
        results.extend(others(check));
    }
    results.push(names(config).await);
    results.push(guard(config));
    results.push(disk("outbox", &config.outbox.folder, config.outbox.min_free_bytes));
    match (&config.exec, &config.store) {
        (Some(exec), _) => results.extend([crawler(exec), disk("exec", &exec.folder, exec.min_free_bytes)]),
        (None, Some(store)) => results.push(disk("store", &store.folder, store.min_free_bytes)),
        (None, None) => results.push(CheckResult::ok("store", "pages are not stored: agent.toml has no [store]")),
    }
    results
}

/// Whether the command that crawls sites can be run.
fn crawler(exec: &ExecConfig) -> CheckResult {
    match program::find(&exec.command) {
        Ok(program) => CheckResult::ok("crawler", format!("{} crawls the sites", program.display())),
        Err(error) => CheckResult::wrong("crawler", error.to_string(), program::REMEDY),
    }
}

/// The scheduler's answer about this agent, and the difference between this machine's clock and the
/// scheduler's.
type SchedulerCheck = (CheckResponse, Duration);

async fn schedulers(config: &Config) -> (Vec<CheckResult>, Option<SchedulerCheck>) {
    let mut results = Vec::new();
    let ca = match config.ca.as_deref().map(std::fs::read_to_string).transpose() {
        Ok(ca) => ca,
        Err(error) => {
            let file = config.ca.as_deref().unwrap_or(Path::new("")).display();
            let remedy = "enrol the agent again with --force, or set ca in agent.toml";
            return (vec![CheckResult::wrong("scheduler", format!("ca: read {file}: {error}"), remedy)], None);
        }
    };
    let mut check = None;
    // Parsing never fails here, because the URLs were checked when the configuration was read.
    let configured = SchedulerUrl::parse_all(&config.scheduler);
    for scheduler in configured.iter().flatten() {
        let (url, channel) = (&scheduler.url, connect(config, scheduler, ca.as_deref()).await);
        let channel = match channel {
            Ok(channel) => channel,
            Err(why) => {
                let remedy = "check that the scheduler runs, that scheduler in agent.toml is its address and that no firewall blocks the \
                              connection; if its certificate was replaced, enrol the agent again";
                results.push(CheckResult::wrong("scheduler", format!("{url}: {why}"), remedy));
                continue;
            }
        };
        let certificate = if scheduler.tls { ", and its certificate is valid" } else { "" };
        results.push(CheckResult::ok("scheduler", format!("{url} answers{certificate}")));
        if check.is_none() {
            match check_credential(config, channel).await {
                Ok(found) => check = Some(found),
                Err(result) => results.push(result),
            }
        }
    }
    (results, check)
}

async fn connect(config: &Config, scheduler: &SchedulerUrl, ca: Option<&str>) -> Result<Channel, String> {
    let endpoint = endpoint(scheduler, ca).map_err(|error| opening::why_unreached(&error))?;
    endpoint.local_address(config.bind).connect().await.map_err(|error| opening::why_unreached(&error))
}

async fn check_credential(config: &Config, channel: Channel) -> Result<SchedulerCheck, CheckResult> {
    let anew = format!("run `landfall agents enrol` for {}, and the command it prints here with --force", config.name);
    let read = std::fs::read_to_string(&config.credential);
    let read = read.map_err(|error| format!("read {}: {error}", config.credential.display()));
    let credential = read.and_then(|text| bearer(&text, &config.credential).map_err(|error| error.to_string()));
    let credential = credential.map_err(|why| CheckResult::wrong("credential", why, &*anew))?;
    let mut request = Request::new(CheckRequest {});
    request.metadata_mut().insert("authorization", credential);
    request.set_timeout(PATIENCE);
    let asked = clocks::wall();
    let answer = AgentServiceClient::new(channel).check(request).await;
    let took = asked.elapsed().unwrap_or_default();
    match answer {
        Ok(answer) => {
            let check = answer.into_inner();
            let theirs = check.now.and_then(|now| SystemTime::try_from(now).ok()).unwrap_or(asked);
            // Assume that the scheduler read its clock halfway between the request and the
            // response.
            let ours = asked + took / 2;
            let offset = ours.duration_since(theirs).unwrap_or_else(|behind| behind.duration());
            Ok((check, offset))
        }
        Err(status) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
            Err(CheckResult::wrong("credential", status.message(), &*anew))
        }
        Err(status) if status.code() == Code::Unimplemented => {
            Err(CheckResult::ok("credential", "not checked: the scheduler is older than this program"))
        }
        Err(status) => Err(CheckResult::wrong(
            "credential",
            opening::why_unreached(&status),
            "try again; the scheduler's log may give the cause",
        )),
    }
}

fn name(config: &Config, check: &CheckResponse) -> CheckResult {
    let known = &check.name;
    if *known != config.name {
        let text = format!("it belongs to {known}, but name in agent.toml is {}", config.name);
        return CheckResult::wrong(
            "credential",
            text,
            format!("set name = \"{known}\" in agent.toml, or enrol the agent again"),
        );
    }
    let session = if check.connected { "connected" } else { "not connected" };
    CheckResult::ok("credential", format!("valid: this is {known}, {session}"))
}

fn clock(offset: Duration) -> CheckResult {
    let text = format!("{:.1} s from the scheduler's clock", offset.as_secs_f64());
    match offset > CLOCKS_DIFFER {
        true => CheckResult::wrong("clock", text, "synchronise this machine's clock and the scheduler's by NTP"),
        false => CheckResult::ok("clock", text),
    }
}

fn contact(config: &Config, check: &CheckResponse) -> CheckResult {
    match config.contact_url.as_deref().or(Some(check.contact_url.as_str())).filter(|url| !url.is_empty()) {
        Some(url) => CheckResult::ok("contact", url),
        None => CheckResult::wrong(
            "contact",
            "no contact URL is set, so no request is sent to any site",
            "run `landfall contact set URL` where the scheduler runs",
        ),
    }
}

async fn beacon(config: &Config, connected: bool) -> CheckResult {
    if !config.beacon.enabled {
        return CheckResult::ok("beacon", "disabled: this agent cannot be a landmark");
    }
    let listen = config.beacon.listen;
    match TcpListener::bind(listen).await {
        Ok(_) if connected => CheckResult::wrong(
            "beacon",
            format!("nothing listens at {listen} although the agent is connected"),
            "restart the agent if agent.toml was changed; otherwise it runs on another machine with this credential",
        ),
        Ok(_) => CheckResult::ok("beacon", format!("nothing listens at {listen}: the agent is not running")),
        Err(error) if error.kind() == ErrorKind::AddrInUse && answers(local(listen)).await => {
            CheckResult::ok("beacon", format!("answers at {listen}"))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => CheckResult::wrong(
            "beacon",
            format!("another program uses {listen}"),
            "set beacon.listen in agent.toml to a free port",
        ),
        Err(error) => CheckResult::wrong(
            "beacon",
            format!("{listen}: {error}"),
            "set beacon.listen in agent.toml to an address of this machine",
        ),
    }
}

/// The address at which this machine can connect to its own beacon.
fn local(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

async fn answers(address: SocketAddr) -> bool {
    let request = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"HEAD / HTTP/1.1\r\nhost: beacon\r\nconnection: close\r\n\r\n").await?;
        let mut answer = [0; ANSWER.len()];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(answer == ANSWER)
    };
    tokio::time::timeout(PATIENCE, request).await.is_ok_and(|answered| answered.unwrap_or(false))
}

/// Whether other agents reach this agent's beacon, and whether this agent reaches their beacons.
fn others(check: &CheckResponse) -> [CheckResult; 2] {
    let direction = |about, text: String, none: bool, failure: Option<&BeaconFailure>| match failure {
        Some(BeaconFailure { agent, message }) if none => CheckResult::wrong(
            about,
            format!("{text}; {agent}: {message}"),
            format!("run `landfall agents reach {} {agent}` where the scheduler runs", check.name),
        ),
        _ => CheckResult::ok(about, text),
    };
    let CheckResponse { reached_by, tried_by, reaches, tries, .. } = *check;
    [
        direction(
            "reached",
            format!("by {reached_by} of {tried_by} agents that tried its beacon"),
            reached_by == 0,
            check.not_reached_by.as_ref(),
        ),
        direction(
            "reaches",
            format!("{reaches} of the {tries} beacons of other agents that it tried"),
            reaches == 0,
            check.not_reached.as_ref(),
        ),
    ]
}

async fn names(config: &Config) -> CheckResult {
    let server = config.dns.map_or_else(|| "the system's".to_owned(), |server| server.to_string());
    let asked = match config.resolver() {
        Ok(resolver) => resolver
            .resolve(SOME_NAME)
            .await
            .map_err(|error| (matches!(error, DnsError::NotFound(_)), error.to_string())),
        Err(error) => Err((false, error.to_string())),
    };
    match asked {
        Ok(_) | Err((true, _)) => CheckResult::ok("dns", format!("the name server ({server}) answers")),
        Err((false, why)) => CheckResult::wrong("dns", why, "set dns in agent.toml, or correct /etc/resolv.conf"),
    }
}

fn guard(config: &Config) -> CheckResult {
    let named = |nets: &[ipnet::IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let everything = match config.allow_net.as_slice() {
        [] => "connects to public addresses only".to_owned(),
        nets => format!("connects to public addresses and {}", named(nets)),
    };
    let beacons = match config.beacon.allow_net.as_slice() {
        [] => String::new(),
        nets => format!("; also to beacons in {}", named(nets)),
    };
    CheckResult::ok("guard", everything + &beacons)
}

fn disk(about: &'static str, folder: &Path, least: u64) -> CheckResult {
    // The folder may not exist before the first start, so check the disk of its nearest existing
    // ancestor.
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(folder);
    let mib = |bytes: u64| bytes >> 20;
    match free_space::free_bytes(there) {
        Ok(free) if free < least => CheckResult::wrong(
            about,
            format!("{} MiB free at {}, less than the minimum of {} MiB", mib(free), folder.display(), mib(least)),
            "free space on that disk",
        ),
        Ok(free) => CheckResult::ok(about, format!("{} MiB free at {}", mib(free), folder.display())),
        Err(error) => CheckResult::wrong(
            about,
            format!("{}: {error}", there.display()),
            "make sure that the folder exists and can be read",
        ),
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::run::beacon_and_metrics_server::{Listener, beacon_reply};
    use crate::testing::scheduler::{CREDENTIAL, TestScheduler};

    fn config(scheduler: &str, folder: &Path) -> Config {
        std::fs::write(folder.join("credential"), CREDENTIAL).unwrap();
        let text = format!(
            "scheduler = '{scheduler}'\nname = 'harbin-cernet'\ncity = 'Harbin'\ncarrier = 'CERNET'\n[beacon]\nlisten = '127.0.0.1:0'\n"
        );
        std::fs::write(folder.join("agent.toml"), text).unwrap();
        Config::load(&folder.join("agent.toml")).unwrap()
    }

    fn about<'a>(results: &'a [CheckResult], about: &str) -> &'a CheckResult {
        results.iter().find(|result| result.about == about).unwrap_or_else(|| panic!("no {about} in {results:?}"))
    }

    #[tokio::test]
    async fn each_wrong_result_names_a_remedy() {
        let scheduler = TestScheduler::start(None).await;
        let folder = tempfile::tempdir().unwrap();
        let good = config(&format!("http://{}", scheduler.addr), folder.path());
        let results = examine(&good).await;
        for known in ["scheduler", "credential", "clock", "contact", "beacon", "reached", "guard", "outbox", "store"] {
            assert!(!about(&results, known).is_wrong(), "{}", about(&results, known));
        }
        let reaches = about(&results, "reaches");
        assert!(reaches.is_wrong() && reaches.to_string().contains("tokyo-iij: the guard refuses"), "{reaches}");

        let mut bad = good;
        bad.name = "other".to_owned();
        bad.outbox.min_free_bytes = u64::MAX;
        let results = examine(&bad).await;
        assert!(about(&results, "credential").is_wrong() && about(&results, "outbox").is_wrong(), "{results:?}");
        std::fs::write(&bad.credential, "another").unwrap();
        let results = examine(&bad).await;
        let line = about(&results, "credential").to_string();
        assert!(line.starts_with("WRONG  credential") && line.contains("do: run `landfall agents enrol`"), "{line}");
    }

    #[tokio::test]
    async fn an_absent_scheduler_is_reported_and_the_other_checks_still_run() {
        let folder = tempfile::tempdir().unwrap();
        let results = examine(&config("http://127.0.0.1:1", folder.path())).await;
        assert!(about(&results, "scheduler").is_wrong());
        assert!(results.iter().all(|result| result.about != "credential"), "nobody could be asked");
        assert!(!about(&results, "guard").is_wrong());
    }

    #[tokio::test]
    async fn a_missing_external_crawler_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config("http://127.0.0.1:1", folder.path());
        config.crawl_with(vec!["sh".to_owned()], folder.path());
        let results = examine(&config).await;
        assert!(!about(&results, "crawler").is_wrong() && !about(&results, "exec").is_wrong(), "{results:?}");
        assert!(results.iter().all(|result| result.about != "store"), "it is not used");
        config.crawl_with(vec!["wget9".to_owned()], folder.path());
        let line = about(&examine(&config).await, "crawler").to_string();
        assert!(
            line.starts_with("WRONG  crawler     the crawler 'wget9'") && line.contains("do: install it"),
            "{line}"
        );
    }

    #[tokio::test]
    async fn doctor_distinguishes_a_beacon_from_another_program_at_its_port() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config("http://127.0.0.1:1", folder.path());
        let stranger = TcpListener::bind("127.0.0.1:0").await.unwrap();
        config.beacon.listen = stranger.local_addr().unwrap();
        let hanging_up = tokio::spawn(async move { stranger.accept().await.map(drop) });
        assert!(beacon(&config, true).await.is_wrong());
        hanging_up.await.unwrap().unwrap();

        let ours = Listener::bind("127.0.0.1:0".parse().unwrap(), beacon_reply).await.unwrap();
        config.beacon.listen.set_port(ours.port);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(ours.serve(stop.clone()));
        let found = beacon(&config, true).await;
        assert!(!found.is_wrong(), "{found}");
        stop.cancel();
        serving.await.unwrap();
        assert!(!beacon(&config, false).await.is_wrong(), "free, and the agent does not run");
        assert!(beacon(&config, true).await.is_wrong(), "free, and it should be taken");
    }

    #[test]
    fn a_clock_may_be_off_by_a_minute() {
        assert!(!clock(Duration::from_secs(59)).is_wrong());
        assert!(clock(Duration::from_secs(61)).is_wrong());
    }
}
