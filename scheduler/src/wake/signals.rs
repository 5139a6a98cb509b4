//! Sends and receives the signals: one per background task, and one per connected agent. Remembers
//! when the last signal of any kind came, which shows whether the system is active.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::AgentId;
use crate::store::batches::changes::ChangeKind;
use crate::store::batches::pieces::{Piece, Step};
use crate::store::schedulers::Role;
use crate::store::servers::Servers;
use crate::wake::database_watch::Database;
use crate::wake::notifier::{self, Notifier, Signals};
use crate::wake::task_roles::{Task, for_tasks};

/// The signal that wakes one background task. Any scheduler may run the background task.
#[derive(Debug)]
pub struct Signal {
    task: Task,
    here: Notify,
    /// Number of signals so far.
    came: watch::Sender<u64>,
    notifier: Arc<Notifier>,
    activity: Arc<LastSignal>,
}

impl Signal {
    /// Wakes the background task, in this process and in the scheduler that leads the task's role.
    pub fn notify_one(&self) {
        self.activity.note();
        self.ring();
        self.notifier.tell(self.task);
    }

    fn ring(&self) {
        self.came.send_modify(|came| *came += 1);
        self.here.notify_one();
    }

    /// Number of signals so far, from this or another scheduler. While the number stays the same,
    /// no event that sends this signal has happened.
    pub fn came(&self) -> u64 {
        *self.came.borrow()
    }

    /// Receives every later signal, even if other callers wait for it too.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.came.subscribe()
    }

    /// The notification for which the background task in this process waits.
    pub const fn here(&self) -> &Notify {
        &self.here
    }
}

/// Declares the signals. Each signal wakes the background task of the same name.
macro_rules! wakes {
    ($($(#[$doc:meta])* $task:ident $signal:ident $role:ident,)+) => {
        /// The signals: one per background task, and one per connected agent. The field `database`
        /// stores whether the database answers.
        #[derive(Debug)]
        pub struct Wakes {
            $($(#[$doc])* pub $signal: Signal,)+
            pub database: Database,
            pub(super) notifier: Arc<Notifier>,
            activity: Arc<LastSignal>,
            /// Locked only to read or change the map, and never across an await.
            agents: Mutex<HashMap<AgentId, Arc<Notify>>>,
            /// The URLs of the other schedulers. Receivers of this channel are notified of changes.
            others: watch::Sender<Vec<String>>,
        }

        impl Default for Wakes {
            fn default() -> Self {
                let (notifier, activity) = (Arc::<Notifier>::default(), Arc::<LastSignal>::default());
                let signal = |task| {
                    let (notifier, activity) = (Arc::clone(&notifier), Arc::clone(&activity));
                    Signal { task, here: Notify::new(), came: watch::Sender::default(), notifier, activity }
                };
                Self {
                    $($signal: signal(Task::$task),)+
                    database: Database::default(),
                    agents: Mutex::default(),
                    others: watch::Sender::default(),
                    notifier,
                    activity,
                }
            }
        }

        impl Wakes {
            pub const fn signal(&self, task: Task) -> &Signal {
                match task { $(Task::$task => &self.$signal,)+ }
            }
        }
    };
}

for_tasks!(wakes);

impl Wakes {
    /// The signal that wakes one agent's session.
    pub fn agent(&self, agent: AgentId) -> Arc<Notify> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(agents.entry(agent).or_default())
    }

    /// Time since the last signal, from this or another scheduler.
    pub fn quiet_for(&self) -> Duration {
        self.activity.quiet_for()
    }

    /// Wakes the sessions of these agents, at any scheduler, because orders or grants may be ready.
    pub fn wake_agents(&self, woken: impl IntoIterator<Item = AgentId>) {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        for agent in woken {
            self.activity.note();
            if let Some(notify) = agents.get(&agent) {
                notify.notify_one();
            }
            self.notifier.tell_agent(agent);
        }
    }

    /// Wakes what a piece of a change of a batch concerns.
    pub fn wake_for(&self, piece: &Piece) {
        if piece.step == Step::Worked && piece.kind == ChangeKind::Retry {
            self.measure.notify_one();
            self.assign.notify_one();
        }
        if !piece.agents.is_empty() {
            self.wake_agents(piece.agents.iter().copied());
            // The cancelled crawls may have freed an address for which held tasks wait.
            self.assign.notify_one();
        }
    }

    /// Wakes every background task of a role, in this process only.
    pub fn wake_role(&self, role: Role) {
        self.activity.note();
        let of_role = Task::ALL.iter().filter(|task| task.role() == role);
        of_role.for_each(|task| self.signal(*task).ring());
    }

    /// Stores the URLs of the other schedulers and the roles that this scheduler leads.
    pub fn set_peers(&self, urls: Vec<String>, held: impl IntoIterator<Item = Role>) {
        self.notifier.set(!urls.is_empty(), held);
        self.others.send_if_modified(|known| {
            let changed = *known != urls;
            *known = urls;
            changed
        });
    }

    /// The URLs at which the other schedulers of this database can be reached.
    pub fn others(&self) -> Vec<String> {
        self.others.borrow().clone()
    }

    /// The URLs of [`Self::others`], as a channel that announces changes.
    pub fn others_watched(&self) -> watch::Receiver<Vec<String>> {
        self.others.subscribe()
    }

    /// Sends local signals to the other schedulers, until `shutdown`.
    pub async fn tell_others(&self, servers: Servers, shutdown: CancellationToken) {
        self.notifier.tell_others(servers, shutdown).await;
    }

    /// Receives the signals of other schedulers, until `shutdown`.
    pub async fn hear_others(&self, servers: Servers, shutdown: CancellationToken) {
        notifier::hear_others(|news| self.hear(news), servers, shutdown).await;
    }

    /// Wakes the background tasks and agents for which another scheduler sent signals.
    fn hear(&self, news: &Signals) {
        self.activity.note();
        news.tasks().for_each(|task| self.signal(task).ring());
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        match news.agents() {
            None => agents.values().for_each(|notify| notify.notify_one()),
            Some(named) => named.iter().filter_map(|agent| agents.get(agent)).for_each(|notify| notify.notify_one()),
        }
    }
}

/// The time of the last signal of any kind, which shows whether the system is active.
#[derive(Debug)]
struct LastSignal {
    began: Instant,
    /// Milliseconds after `began`, rounded up, so that a signal never seems older than it is.
    last: AtomicU64,
}

impl Default for LastSignal {
    fn default() -> Self {
        Self { began: Instant::now(), last: AtomicU64::new(0) }
    }
}

impl LastSignal {
    fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis() + 1).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    fn quiet_for(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}
