//! Connects to a scheduler: finds its URL and the operator's token, and converts refused requests
//! to messages for people.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use landfall_proto::error_causes::innermost;
use landfall_proto::foreign_server::{self, ForeignServer};
use landfall_proto::v1::embedding_service_client::EmbeddingServiceClient;
use landfall_proto::v1::event_service_client::EventServiceClient;
use landfall_proto::v1::fleet_service_client::FleetServiceClient;
use landfall_proto::v1::report_service_client::ReportServiceClient;
use landfall_proto::v1::site_service_client::SiteServiceClient;
use landfall_proto::v1::status_service_client::StatusServiceClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use url::Url;

use crate::app::data_dir::DataDir;
use crate::app::exit::usage;
use crate::app::server_certificate::DOMAIN;
use crate::app::token_and_client_file::{CLIENT_FILE, ClientFile, Defaults};

/// Maximum size of an answer in bytes. An embedding of 100,000 agents or a list of 5,000 enrolments
/// is smaller.
const MOST_BYTES: usize = 32 << 20;
/// Time limit for a scheduler's health check if several schedulers are known.
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// The interval of HTTP/2 keep-alive pings on a connection without traffic.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The help heading of the flags that all commands have.
pub(super) const CONNECTION: &str = "Connection";

/// How a command finds its scheduler.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct ConnectionArgs {
    /// The scheduler's data directory [default: /var/lib/landfall for root and for the directory's
    /// owner, else ~/.local/share/landfall]
    #[arg(long, global = true, env = "LANDFALL_DATA_DIR", value_name = "DIR", help_heading = CONNECTION)]
    pub(super) data_dir: Option<PathBuf>,
    /// The scheduler to use, or several separated by commas: the first that answers is used
    /// [default: those in the data directory's client.toml]
    #[arg(
        long,
        global = true,
        env = "LANDFALL_SCHEDULER",
        value_name = "URL",
        value_delimiter = ',',
        help_heading = CONNECTION
    )]
    pub(super) scheduler: Vec<String>,
    /// The certificate of the scheduler's certificate authority (PEM)
    #[arg(long, global = true, env = "LANDFALL_CA", value_name = "FILE", help_heading = CONNECTION)]
    pub(super) ca: Option<PathBuf>,
    /// A file that holds the operator's token
    #[arg(long, global = true, env = "LANDFALL_TOKEN_FILE", value_name = "FILE", help_heading = CONNECTION)]
    pub(super) token_file: Option<PathBuf>,
}

impl ConnectionArgs {
    /// Fails if the user gave a flag that is only for commands that contact a scheduler.
    pub(super) fn refuse(&self, instead: &str) -> anyhow::Result<()> {
        let Self { scheduler, ca, token_file, .. } = self;
        let path = |path: &Option<PathBuf>| path.clone().map(PathBuf::into_os_string);
        let flags = [
            ("--scheduler", "LANDFALL_SCHEDULER", (!scheduler.is_empty()).then(|| scheduler.join(",").into())),
            ("--ca", "LANDFALL_CA", path(ca)),
            ("--token-file", "LANDFALL_TOKEN_FILE", path(token_file)),
        ];
        // Only flags are refused. Environment variables are accepted, because they may be set for
        // all commands. A value that differs from the variable's comes from the flag.
        let given = flags
            .into_iter()
            .find(|(_, variable, given)| is_from_flag(given.as_ref(), std::env::var_os(variable).as_ref()));
        match given {
            Some((flag, ..)) => {
                Err(usage(format!("{flag} applies only to commands that contact a scheduler; {instead}")))
            }
            None => Ok(()),
        }
    }
}

/// Whether a value comes from the flag, and not from the flag's environment variable. A flag that
/// repeats the variable's value is not told from the variable.
fn is_from_flag(given: Option<&OsString>, variable: Option<&OsString>) -> bool {
    given.is_some() && given != variable
}

/// A channel that adds the operator's token to every call.
pub(super) type AuthorizedChannel = InterceptedService<Channel, Bearer>;

#[derive(Clone)]
pub(super) struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

/// The scheduler cannot answer now. It may be restarting, so a later attempt may succeed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Away(pub(super) String);

#[derive(Clone)]
pub(super) struct Client {
    url: String,
    authorized: AuthorizedChannel,
    token: Bearer,
    /// All known schedulers, by URL.
    known: Arc<[(String, Endpoint)]>,
}

impl Client {
    /// Connects to the scheduler. If several schedulers are known, connects to the first one that
    /// answers and can use its database.
    pub(super) async fn connect(args: &ConnectionArgs) -> anyhow::Result<Self> {
        let settings = settings(args)?;
        let mut token: MetadataValue<Ascii> = format!("Bearer {}", settings.token).parse().map_err(|_| {
            anyhow::anyhow!(
                "the operator's token contains invalid characters: use the client.toml or operator-token of the \
                 scheduler's data directory"
            )
        })?;
        token.set_sensitive(true);
        let mut endpoints = Vec::new();
        for scheduler in &settings.scheduler {
            endpoints.push((scheduler.clone(), endpoint(scheduler, settings.ca.as_deref())?));
        }
        Self::reach_any(endpoints.into(), Bearer(token)).await
    }

    async fn reach_any(known: Arc<[(String, Endpoint)]>, token: Bearer) -> anyhow::Result<Self> {
        let mut refusals = Vec::new();
        for (url, endpoint) in known.iter() {
            match reach(url, endpoint, known.len() == 1).await {
                Ok(channel) => {
                    let authorized = InterceptedService::new(channel, token.clone());
                    return Ok(Self { url: url.clone(), authorized, token, known: Arc::clone(&known) });
                }
                Err(refusal) => refusals.push(refusal.to_string()),
            }
        }
        Err(anyhow::anyhow!("{}", refusals.join("; ")))
    }

    /// Connects to any scheduler that answers now. Callers repeat their request, so the request
    /// must be safe to repeat. Keeps the present connection if no scheduler answers or only one is
    /// known.
    pub(super) async fn move_on(&mut self) {
        if self.known.len() > 1
            && let Ok(moved) = Self::reach_any(Arc::clone(&self.known), self.token.clone()).await
        {
            *self = moved;
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn fleet(&self) -> FleetServiceClient<AuthorizedChannel> {
        // The size limit is raised, because one message may contain thousands of agents or tokens.
        FleetServiceClient::new(self.authorized.clone()).max_decoding_message_size(MOST_BYTES)
    }

    pub(super) fn embeddings(&self) -> EmbeddingServiceClient<AuthorizedChannel> {
        // The size limit is raised, because one message may contain the coordinates of thousands of
        // agents.
        EmbeddingServiceClient::new(self.authorized.clone()).max_decoding_message_size(MOST_BYTES)
    }

    pub(super) fn events(&self) -> EventServiceClient<AuthorizedChannel> {
        EventServiceClient::new(self.authorized.clone())
    }

    pub(super) fn status(&self) -> StatusServiceClient<AuthorizedChannel> {
        StatusServiceClient::new(self.authorized.clone())
    }

    pub(super) fn sites(&self) -> SiteServiceClient<AuthorizedChannel> {
        SiteServiceClient::new(self.authorized.clone())
    }

    pub(super) fn reports(&self) -> ReportServiceClient<AuthorizedChannel> {
        ReportServiceClient::new(self.authorized.clone())
    }

    /// Returns the message of a response. A refused request becomes an error.
    pub(super) fn answer<T>(&self, asked: Result<Response<T>, Status>) -> anyhow::Result<T> {
        asked.map(Response::into_inner).map_err(|status| self.refusal(&status))
    }

    /// Converts a refused request to an error message for people. The error is [`Away`] if the
    /// scheduler may answer later.
    pub(super) fn refusal(&self, status: &Status) -> anyhow::Error {
        let error = self.explained(status);
        if broke(status) { Away(error.to_string()).into() } else { error }
    }

    fn explained(&self, status: &Status) -> anyhow::Error {
        let said = status.message().trim();
        match status.code() {
            Code::Unavailable if is_transport(status) => nobody_answers(&self.url, &innermost(status)),
            // Only `is_transport` recognises every broken connection, because tonic's code depends
            // on which side noticed the break first.
            _ if is_transport(status) => {
                let aside = aside(&innermost(status));
                anyhow::anyhow!(
                    "the connection to the scheduler at {} broke{aside}: it is unknown whether the command took effect",
                    self.url
                )
            }
            Code::Unauthenticated | Code::PermissionDenied => anyhow::anyhow!(
                "the scheduler at {} does not accept this operator's token{}: use the client.toml of its data directory",
                self.url,
                aside(said)
            ),
            Code::Unimplemented => {
                anyhow::anyhow!(
                    "the scheduler at {} does not know this command: is it older than this program?",
                    self.url
                )
            }
            // The scheduler checked the request and found it invalid, so the user's input is wrong.
            Code::InvalidArgument if !said.is_empty() => usage(said),
            code if said.is_empty() => {
                anyhow::anyhow!("the scheduler at {} refused the request: {}", self.url, code.description())
            }
            _ => anyhow::anyhow!("{said}"),
        }
    }
}

fn endpoint(scheduler: &str, ca: Option<&Path>) -> anyhow::Result<Endpoint> {
    let url = checked_url(scheduler)?;
    let endpoint = Endpoint::from_shared(scheduler.to_owned())
        .map_err(|_| usage(format!("'{scheduler}' is not a scheduler's URL")))?
        .connect_timeout(CONNECT_PATIENCE)
        .http2_keep_alive_interval(KEEPALIVE);
    if url.scheme() == "https" { Ok(endpoint.tls_config(tls(ca, scheduler)?)?) } else { Ok(endpoint) }
}

/// Connects to a scheduler. If other schedulers are known, also checks that this scheduler can
/// serve requests. If this check fails, the caller should try another scheduler.
async fn reach(url: &str, endpoint: &Endpoint, alone: bool) -> anyhow::Result<Channel> {
    if let Some(foreign) = foreign_server::greeted(endpoint.uri()).await {
        return Err(no_scheduler(url, foreign));
    }
    let channel = endpoint.connect().await.map_err(|error| unconnected(url, &error))?;
    if !alone {
        let mut health = HealthClient::new(channel.clone());
        let asked = health.check(HealthCheckRequest::default());
        match tokio::time::timeout(HEALTH_PATIENCE, asked).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => anyhow::bail!("the scheduler at {url} refused the request: {}", status.message()),
            Err(_) => anyhow::bail!("the scheduler at {url} did not answer within {HEALTH_PATIENCE:?}"),
        }
    }
    Ok(channel)
}

fn aside(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(" ({said})") }
}

/// Whether tonic in this program produced the status, because the connection broke.
pub(super) fn is_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// Whether a stream that ended with this status may be opened again, because the scheduler or the
/// connection may return.
pub(super) fn broke(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal)
}

fn unconnected(url: &str, error: &(dyn std::error::Error + 'static)) -> anyhow::Error {
    match foreign_server::of_error(error) {
        Some(foreign) => no_scheduler(url, foreign),
        None => nobody_answers(url, &innermost(error)),
    }
}

fn nobody_answers(url: &str, why: &str) -> anyhow::Error {
    anyhow::anyhow!("no scheduler answers at {url}{}: is `landfall up` running?", aside(why))
}

fn no_scheduler(url: &str, foreign: ForeignServer) -> anyhow::Error {
    anyhow::Error::msg(foreign.sentence(&format!("the server at {url}")))
}

/// The data directory in which a command finds client.toml.
pub(super) fn data_dir(args: &ConnectionArgs) -> anyhow::Result<PathBuf> {
    args.data_dir.clone().map_or_else(|| Ok(DataDir::default_path()?), Ok)
}

/// The connection settings from flags. Missing values are read from client.toml.
pub(super) fn settings(args: &ConnectionArgs) -> anyhow::Result<ClientFile> {
    let data_dir = data_dir(args)?;
    // Read the file only if it is needed, so that an unneeded file cannot cause an error.
    let needed = args.scheduler.is_empty() || args.token_file.is_none();
    let stored = if needed { ClientFile::read(&data_dir) } else { Ok(None) };
    let missing = || {
        let file = data_dir.join(CLIENT_FILE);
        format!("there is no {}: start `landfall up` first, or give --scheduler and --token-file", file.display())
    };
    let stored = match (stored, needed) {
        (Ok(Some(stored)), _) => Some(stored),
        (Ok(None), true) => return Err(usage(missing())),
        (Err(error), true) => return Err(error),
        (_, false) => None,
    };
    let token = match &args.token_file {
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
            text.trim().to_owned()
        }
        None => stored.as_ref().map(|stored| stored.token.clone()).unwrap_or_default(),
    };
    let scheduler = match (&args.scheduler[..], &stored) {
        ([], Some(stored)) => stored.scheduler.clone(),
        (given, _) => given.to_vec(),
    };
    if scheduler.is_empty() {
        return Err(usage(format!("{} names no scheduler", data_dir.join(CLIENT_FILE).display())));
    }
    let ca = args.ca.clone().or_else(|| stored.and_then(|stored| stored.ca));
    Ok(ClientFile { scheduler, ca, token, defaults: Defaults::default() })
}

/// Parses the URL of a scheduler. Plain http is refused except on loopback, because other machines
/// on the network could read the token.
fn checked_url(text: &str) -> anyhow::Result<Url> {
    let refused =
        || usage(format!("'{text}' is not a scheduler's URL: give http://127.0.0.1:PORT or https://HOST:PORT"));
    let url = Url::parse(text).map_err(|_| refused())?;
    let loopback = match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => return Err(refused()),
    };
    match url.scheme() {
        "https" => Ok(url),
        "http" if loopback => Ok(url),
        "http" => {
            Err(usage(format!("{text} would send the operator's token in plaintext over the network: use https://")))
        }
        _ => Err(refused()),
    }
}

fn tls(ca: Option<&Path>, scheduler: &str) -> anyhow::Result<ClientTlsConfig> {
    let ca = ca.ok_or_else(|| {
        usage(format!("{scheduler} needs --ca FILE: the ca.pem in the tls folder of the scheduler's data directory"))
    })?;
    let pem = std::fs::read(ca).with_context(|| format!("read {}", ca.display()))?;
    Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)).domain_name(DOMAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_told_from_its_variable_by_its_value() {
        let [a, b] = ["a,b", "b"].map(OsString::from);
        assert!(!is_from_flag(None, None) && !is_from_flag(None, Some(&a)));
        assert!(is_from_flag(Some(&a), None), "no variable is set");
        assert!(is_from_flag(Some(&a), Some(&b)));
        assert!(!is_from_flag(Some(&a), Some(&a)));
    }

    #[test]
    fn plaintext_is_for_loopback_alone() {
        for good in
            ["http://127.0.0.1:7171", "http://127.2.3.4:1", "http://[::1]:1", "http://localhost:1", "https://a.b:1"]
        {
            assert!(checked_url(good).is_ok(), "{good}");
        }
        for (bad, said) in [
            ("http://192.0.2.7:7171", "plaintext"),
            ("http://localhost.example.org:7171", "plaintext"),
            ("ftp://127.0.0.1", "not a scheduler's URL"),
            ("127.0.0.1:7171", "not a scheduler's URL"),
        ] {
            let error = checked_url(bad).unwrap_err().to_string();
            assert!(error.contains(said), "{bad}: {error}");
        }
    }
}
