//! Opens a session: connects, registers, and waits for the welcome. Also defines a session's
//! settings, and the reasons why sessions end.

use std::net::IpAddr;
use std::time::Duration;

use landfall_proto::error_causes::innermost;
use landfall_proto::v1::agent_service_client::AgentServiceClient;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::session_response::Message as Down;
use landfall_proto::v1::{HeldLease, Register, SessionRequest, SessionResponse, Welcome};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status, Streaming};

use crate::config::SchedulerUrl;
use crate::metrics::SessionFailure;
use crate::session::endpoint::endpoint;
use crate::session::schedulers::Schedulers;
use crate::session::unreached;

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

pub(super) type OpenedSession = (Streaming<SessionResponse>, mpsc::Sender<SessionRequest>, Welcome);

pub(super) async fn connect(
    config: &SessionConfig,
    scheduler: &SchedulerUrl,
    held: Vec<HeldLease>,
    yields: bool,
) -> Result<OpenedSession, SessionEnd> {
    let broken = |error: tonic::transport::Error| SessionEnd::Connect {
        scheduler: scheduler.url.to_string(),
        reason: unreached::why(&error),
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
                    SessionEnd::Broken(unreached::why_broken(scheduler, &status).await)
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
