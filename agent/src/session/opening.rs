//! Opens a session: connects with the agent's credential to one of the fleet's schedulers,
//! registers, and waits for the welcome. Defines a session's settings, why sessions end, and why a
//! scheduler cannot be reached.

use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use landfall_proto::error_causes::innermost;
use landfall_proto::foreign_server::{self, ForeignServer};
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::{HeldLease, Register, SessionRequest, SessionResponse, Welcome};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Status, Streaming};

use super::known_schedulers::Schedulers;
use crate::config::SchedulerUrl;
use crate::metrics::SessionFailure;

/// Maximum number of messages in the transport's queue. The number is small because checkpoints
/// take up to a megabyte. Further messages wait in the session.
const OUTBOUND_MESSAGES: usize = 16;
const WELCOME_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of HTTP/2 pings, which detect a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The settings for connecting to the scheduler, and what the agent reports about itself.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    pub schedulers: Schedulers,
    /// The authority that signed the scheduler's certificate (PEM).
    pub ca: Option<String>,
    pub credential: MetadataValue<Ascii>,
    pub bind: Option<IpAddr>,
    /// The agent's registration. The registration's field `held` is set before each session.
    pub register: Register,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
    #[error("stopped")]
    Stopped,
    #[error("connect to the scheduler at {scheduler}: {reason}")]
    Connect { scheduler: String, reason: String },
    #[error("the scheduler refused this agent: {0}")]
    Refused(String),
    /// Another machine was enrolled under this agent's name, so this agent's credential will never
    /// be valid again.
    #[error(transparent)]
    Replaced(AgentReplaced),
    /// Another process opened a session with this agent's credential.
    #[error("{0}; waiting until that process ends")]
    Superseded(String),
    #[error("the session broke: {0}")]
    Broken(String),
    /// No heartbeat was acknowledged within the lifetime of the leases.
    #[error("no heartbeat was acknowledged in time")]
    Silent,
}

impl SessionEnd {
    /// The reason as a label for metrics; `None` if the agent stops.
    pub(super) const fn failure(&self) -> Option<SessionFailure> {
        Some(match self {
            Self::Stopped => return None,
            Self::Connect { .. } => SessionFailure::NotConnected,
            Self::Refused(_) => SessionFailure::Refused,
            Self::Replaced(_) => SessionFailure::Replaced,
            Self::Superseded(_) => SessionFailure::Superseded,
            Self::Broken(_) => SessionFailure::Broken,
            Self::Silent => SessionFailure::Silent,
        })
    }
}

/// Another machine was enrolled under this agent's name.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct AgentReplaced(String);

type OpenedSession = (Streaming<SessionResponse>, mpsc::Sender<SessionRequest>, Welcome);

pub(super) async fn connect(
    config: &SessionConfig,
    scheduler: &SchedulerUrl,
    held: Vec<HeldLease>,
    yields: bool,
) -> Result<OpenedSession, SessionEnd> {
    let broken = |error: tonic::transport::Error| SessionEnd::Connect {
        scheduler: scheduler.url.to_string(),
        reason: why_unreached(&error),
    };
    let endpoint = endpoint(scheduler, config.ca.as_deref()).map_err(broken)?;
    let endpoint =
        endpoint.local_address(config.bind).http2_keep_alive_interval(KEEP_ALIVE).keep_alive_while_idle(true);
    let channel = endpoint.connect().await.map_err(broken)?;
    let (outbound, requests) = mpsc::channel(OUTBOUND_MESSAGES);
    let register = Register { held, yields, ..config.register.clone() };
    let first = SessionRequest { message: Some(Up::Register(register)) };
    outbound.try_send(first).expect("the channel is new and empty");
    let mut request = tonic::Request::new(ReceiverStream::new(requests));
    request.metadata_mut().insert("authorization", config.credential.clone());
    let opening = async {
        let mut inbound = AgentServiceClient::new(channel).session(request).await?.into_inner();
        let first = inbound.message().await?;
        Ok::<_, Status>((inbound, first))
    };
    let (inbound, first) = match tokio::time::timeout(WELCOME_TIMEOUT, opening).await {
        Err(_) => {
            let reason = format!("no welcome within {WELCOME_TIMEOUT:?}");
            return Err(SessionEnd::Connect { scheduler: scheduler.url.to_string(), reason });
        }
        Ok(Err(status)) => {
            return Err(match refused_or_broken(&status) {
                SessionEnd::Broken(_) if std::error::Error::source(&status).is_some() => {
                    SessionEnd::Broken(why_broken(scheduler, &status).await)
                }
                ended => ended,
            });
        }
        Ok(Ok(opened)) => opened,
    };
    match first.and_then(|response| response.message) {
        Some(Down::Welcome(welcome)) => Ok((inbound, outbound, welcome)),
        _ => Err(SessionEnd::Broken("the scheduler's first message was not a welcome".to_owned())),
    }
}

pub(super) fn refused_or_broken(status: &Status) -> SessionEnd {
    match status.code() {
        Code::PermissionDenied => SessionEnd::Replaced(AgentReplaced(status.message().to_owned())),
        Code::Unauthenticated | Code::InvalidArgument | Code::ResourceExhausted | Code::Unimplemented => {
            SessionEnd::Refused(status.message().to_owned())
        }
        Code::Aborted => SessionEnd::Superseded(status.message().to_owned()),
        _ if std::error::Error::source(status).is_some() => SessionEnd::Broken(innermost(status)),
        _ => SessionEnd::Broken(status.message().to_owned()),
    }
}

/// The name in the scheduler's certificate. The name does not depend on the scheduler's address.
pub const DOMAIN: &str = "landfall-scheduler";
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The endpoint of a scheduler. The connection uses TLS with the given authority (PEM), or
/// plaintext on loopback.
pub fn endpoint(scheduler: &SchedulerUrl, ca: Option<&str>) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(scheduler.url.to_string())?.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
    match ca {
        Some(ca) if scheduler.tls => {
            let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name(DOMAIN);
            endpoint.tls_config(tls)
        }
        _ => Ok(endpoint),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0} contains no credential: enrol the agent again")]
pub struct BadCredential(pub PathBuf);

pub fn bearer(credential: &str, file: &std::path::Path) -> Result<MetadataValue<Ascii>, BadCredential> {
    let text = credential.trim();
    let mut value = MetadataValue::try_from(format!("Bearer {text}")).map_err(|_| BadCredential(file.to_owned()))?;
    if text.is_empty() {
        return Err(BadCredential(file.to_owned()));
    }
    value.set_sensitive(true);
    Ok(value)
}

/// Why the connection failed.
pub(crate) fn why_unreached(error: &(dyn Error + 'static)) -> String {
    foreign_server::of_error(error).map_or_else(|| innermost(error), sentence)
}

/// Why the first call over a new connection failed.
pub(super) async fn why_broken(scheduler: &SchedulerUrl, status: &Status) -> String {
    let foreign = match scheduler.url.as_str().parse() {
        Ok(uri) => foreign_server::greeted(&uri).await,
        Err(_) => None,
    };
    foreign.map_or_else(|| innermost(status), sentence)
}

fn sentence(foreign: ForeignServer) -> String {
    foreign.sentence("the server there")
}
