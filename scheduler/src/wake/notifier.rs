//! The notifier sends local signals to other schedulers and receives theirs, with Postgres'
//! LISTEN and NOTIFY. A message sent by NOTIFY is called a notice.
//!
//! A lost notice does little harm, because every background task and session also polls. Notices
//! are sent outside the transactions that cause them, because a NOTIFY in each of these
//! transactions would make all commits wait for one lock. Signals that arrive while a notice is
//! being sent go into the next notice. While no other scheduler exists, no notices are sent. After
//! each reconnection, the notifier wakes every background task and session once, because it may
//! have missed notices.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use sqlx::PgConnection;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::task_roles::Task;
use crate::model::AgentId;
use crate::store::schedulers::{self, Listener, Role};
use crate::store::servers::Servers;

/// Maximum number of agents named in one notice. A notice about more agents wakes all agents.
/// Postgres limits a payload to 8000 bytes, and an identifier takes up to 20 bytes.
const MOST_NAMED: usize = 256;
/// The pause before reconnecting. This pause is longer than connecting takes, and much shorter than
/// the intervals at which background tasks poll.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);
/// Time without notices after which the listener checks its connection. Without this check, the
/// listener would never detect that the connection was cut off.
const SILENCE: Duration = Duration::from_secs(15);
/// Maximum duration of any request to the database.
const PATIENCE: Duration = Duration::from_secs(10);

/// The signals waiting to be sent.
#[derive(Debug, Default)]
pub struct Notifier {
    /// Locked only briefly, and never across an await.
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Whether any other scheduler exists that could receive notices.
    heard: bool,
    /// The roles that this scheduler leads. Signals for background tasks of these roles are not
    /// sent to other schedulers.
    here: Vec<Role>,
    news: Signals,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signals {
    tasks: BTreeSet<Task>,
    agents: BTreeSet<AgentId>,
    everybody: bool,
}

impl Signals {
    /// Signals every background task and every agent.
    fn all() -> Self {
        Self { tasks: Task::ALL.iter().copied().collect(), agents: BTreeSet::new(), everybody: true }
    }

    pub(super) fn tasks(&self) -> impl Iterator<Item = Task> {
        self.tasks.iter().copied()
    }

    /// The signalled agents; `None` means all agents.
    pub(super) const fn agents(&self) -> Option<&BTreeSet<AgentId>> {
        if self.everybody { None } else { Some(&self.agents) }
    }

    fn add(&mut self, agent: AgentId) {
        if !self.everybody {
            self.agents.insert(agent);
            if self.agents.len() > MOST_NAMED {
                self.everybody = true;
                self.agents.clear();
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.agents.is_empty() && !self.everybody
    }
}

/// The format of a notice: names of the scheduler's background tasks, a semicolon, and identifiers
/// of agents or a star.
impl fmt::Display for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks: Vec<&str> = self.tasks.iter().map(|task| task.name()).collect();
        let agents: Vec<String> = self.agents.iter().map(ToString::to_string).collect();
        write!(f, "{};{}", tasks.join(","), if self.everybody { "*".to_owned() } else { agents.join(",") })
    }
}

/// Parsing cannot fail. A notice in an unknown format comes from another version of the program,
/// and wakes every background task and agent.
impl FromStr for Signals {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = || {
            let (tasks, agents) = text.split_once(';')?;
            let tasks = tasks.split(',').filter(|name| !name.is_empty());
            let tasks = tasks.map(|name| Task::ALL.iter().copied().find(|task| task.name() == name));
            let everybody = agents == "*";
            let agents = agents.split(',').filter(|id| !id.is_empty() && !everybody);
            let agents = agents.map(|id| id.parse().ok().map(AgentId::new));
            Some(Self { tasks: tasks.collect::<Option<_>>()?, agents: agents.collect::<Option<_>>()?, everybody })
        };
        Ok(known().unwrap_or_else(Self::all))
    }
}

impl Notifier {
    pub(super) fn tell(&self, task: Task) {
        self.change(|waiting| {
            if task.is_awaited_everywhere() || !waiting.here.contains(&task.role()) {
                waiting.news.tasks.insert(task);
            }
        });
    }

    pub(super) fn tell_agent(&self, agent: AgentId) {
        self.change(|waiting| waiting.news.add(agent));
    }

    pub(super) fn set(&self, heard: bool, here: impl IntoIterator<Item = Role>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.heard = heard;
        waiting.here = here.into_iter().collect();
    }

    fn change(&self, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.heard {
            change(&mut waiting);
            if !waiting.news.is_empty() {
                self.news.notify_one();
            }
        }
    }

    fn take(&self) -> Signals {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner).news)
    }

    /// Sends the waiting signals to the other schedulers, until `shutdown`.
    pub(super) async fn tell_others(&self, servers: Servers, shutdown: CancellationToken) {
        let telling = async {
            let mut connection = None;
            loop {
                self.news.notified().await;
                let news = self.take();
                if news.is_empty() {
                    continue;
                }
                match tokio::time::timeout(PATIENCE, tell(&servers, connection.take(), &news)).await {
                    Ok(Ok(told)) => connection = Some(told),
                    // A lost notice does little harm, because the other schedulers poll.
                    Ok(Err(error)) => {
                        tracing::debug!(error = format!("{error:#}"), "other schedulers were not told");
                        tokio::time::sleep(RECONNECT_PAUSE).await;
                    }
                    Err(_) => tracing::debug!("other schedulers were not told: no answer in {PATIENCE:?}"),
                }
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = telling => {}
        }
    }
}

/// Calls `hear` with the signals of other schedulers, until `shutdown`.
pub(super) async fn hear_others(hear: impl Fn(&Signals), servers: Servers, shutdown: CancellationToken) {
    let hearing = async {
        loop {
            if let Err(error) = listen(&hear, &servers).await {
                tracing::debug!(error = format!("{error:#}"), "the connection to hear other schedulers broke");
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = hearing => {}
    }
}

/// Receives notices on one connection until it breaks.
async fn listen(hear: &impl Fn(&Signals), servers: &Servers) -> anyhow::Result<()> {
    let connecting = tokio::time::timeout(PATIENCE, Listener::connect(servers)).await;
    let mut listener = connecting.context("connect in time")?.context("connect")?;
    // Wake everything once, because notices sent before this connection are lost.
    hear(&Signals::all());
    loop {
        match tokio::time::timeout(SILENCE, listener.next()).await {
            Ok(Ok(Some(payload))) => {
                let Ok(news) = payload.parse::<Signals>();
                hear(&news);
            }
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error).context("wait for a notice"),
            Err(_) => tokio::time::timeout(PATIENCE, listener.ping())
                .await
                .context("answer in time")?
                .context("ask whether the connection lives")?,
        }
    }
}

async fn tell(servers: &Servers, connection: Option<PgConnection>, news: &Signals) -> anyhow::Result<PgConnection> {
    let mut conn = match connection {
        Some(conn) => conn,
        None => servers.connect().await?.conn,
    };
    schedulers::notify(&mut conn, &news.to_string()).await.context("notify")?;
    Ok(conn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::Wakes;

    fn news(tasks: &[Task], agents: &[i64]) -> Signals {
        let agents = agents.iter().copied().map(AgentId::new).collect();
        Signals { tasks: tasks.iter().copied().collect(), agents, everybody: false }
    }

    #[test]
    fn what_is_told_is_heard() {
        for told in
            [news(&[Task::Assign, Task::Reap], &[3, 17]), news(&[], &[1]), news(&[Task::Fit], &[]), Signals::all()]
        {
            assert_eq!(told.to_string().parse::<Signals>().unwrap(), told, "{told}");
        }
        assert_eq!(news(&[Task::Assign], &[3, 17]).to_string(), "assign;3,17");
        for strange in ["", "dance;", "assign;x", "assign"] {
            assert_eq!(strange.parse::<Signals>().unwrap(), Signals::all(), "{strange}");
        }
    }

    #[test]
    fn the_longest_notice_fits_into_a_payload() {
        let mut longest = Signals { tasks: Task::ALL.iter().copied().collect(), ..Signals::default() };
        (0..256).for_each(|id| longest.add(AgentId::new(i64::MAX - id)));
        assert!(longest.agents().is_some() && longest.to_string().len() < 8000, "{}", longest.to_string().len());
        longest.add(AgentId::new(1));
        assert_eq!(longest, Signals::all());
    }

    #[test]
    fn nothing_is_told_to_nobody_nor_what_concerns_nobody_else() {
        let wakes = Wakes::default();
        let signal = || {
            wakes.assign.notify_one();
            wakes.reap.notify_one();
            wakes.wake_agents([AgentId::new(7)]);
        };
        signal();
        assert!(wakes.notifier.take().is_empty(), "nobody else is there");
        wakes.set_peers(vec!["http://127.0.0.1:1".to_owned()], [Role::Plan, Role::Fit]);
        signal();
        wakes.fit.notify_one();
        wakes.fitted.notify_one();
        signal();
        let told = news(&[Task::Reap, Task::Fitted], &[7]);
        assert_eq!(wakes.notifier.take(), told, "planning and fitting are done here");
    }
}
