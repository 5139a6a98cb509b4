//! Detects whether the database answers, and whether it accepts changes.
//!
//! A database that refuses connections gives an error at once. A database is silent if its machine
//! has failed, the network is cut, or its process is stopped. A silent database would block every
//! query, because only the server itself enforces statement time-outs. A database is read-only if
//! it is a standby, or if an administrator has forbidden changes.
//!
//! Therefore one connection queries the database every second. If an answer takes longer than
//! `PATIENCE`, the database counts as silent until the next answer. If the connection breaks, or
//! the server accepts no changes, a new connection decides, because another server may have become
//! the primary, or an administrator may have ended this one connection.
//!
//! While the database is silent, requests are refused, sessions end, and background jobs abandon
//! their passes. While it is read-only, it is read as usual, changes are refused by the database
//! itself, and background jobs pause.
//!
//! It is unknown whether interrupted work was committed. Submissions and outcomes have unique keys,
//! so a repeated submission or outcome is recognised and has no further effect.

use std::fmt;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::store::servers::{self, Reached, Servers};

/// Interval between two queries.
const PERIOD: Duration = Duration::from_secs(1);
/// Maximum time to wait for an answer. A healthy database answers within a millisecond, and a
/// database on a swapping machine within two seconds. The limit is well below the lifetime of a
/// session (30 s), after which agents stop their crawls.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the database is good for at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DatabaseState {
    #[default]
    Answers,
    /// It answers, but accepts no changes.
    ReadOnly,
    /// It does not answer.
    Silent,
}

/// The state as the beginning of a sentence for operators.
impl fmt::Display for DatabaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answers => "the database answers",
            Self::ReadOnly => "the database is read-only",
            Self::Silent => "the database does not answer",
        })
    }
}

/// The state of the database. It is assumed to answer until [`Database::watch`] detects that it
/// does not.
#[derive(Debug, Default)]
pub struct Database {
    state: watch::Sender<DatabaseState>,
}

impl Database {
    pub fn state(&self) -> DatabaseState {
        *self.state.borrow()
    }

    /// The state, as a channel that announces changes.
    pub fn watched(&self) -> watch::Receiver<DatabaseState> {
        self.state.subscribe()
    }

    /// Returns as soon as the database is silent.
    pub async fn silent(&self) {
        self.becomes(|state| state == DatabaseState::Silent).await;
    }

    async fn becomes(&self, awaited: impl Fn(DatabaseState) -> bool) {
        // This cannot fail, because `self` owns the sender.
        drop(self.state.subscribe().wait_for(|state| awaited(*state)).await);
    }

    /// Runs work that queries the database. If the database is or becomes silent, drops the work
    /// and its transaction, and returns `None`.
    pub async fn while_it_answers<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.silent() => None,
            done = work => Some(done),
        }
    }

    /// Like [`Self::while_it_answers`], for work that is useless without changes to the database.
    pub async fn while_it_accepts_changes<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.becomes(|state| state != DatabaseState::Answers) => None,
            done = work => Some(done),
        }
    }

    /// Queries the database every second until `shutdown`. Calls `moved` with the server that new
    /// connections must use, whenever the former connections may be of no more use.
    pub async fn watch(&self, servers: Servers, moved: impl Fn(&PgConnectOptions), shutdown: CancellationToken) {
        let mut connection = None;
        let watching = async {
            loop {
                connection = self.look(&servers, connection.take(), &moved).await;
                tokio::time::sleep(PERIOD).await;
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = watching => {}
        }
    }

    /// Asks over the former connection, and, if its answer is not that all is well, over a new one.
    /// Returns the connection.
    async fn look(
        &self,
        servers: &Servers,
        former: Option<PgConnection>,
        moved: &impl Fn(&PgConnectOptions),
    ) -> Option<PgConnection> {
        let first = former.is_none() && self.state() == DatabaseState::Answers;
        if let Some(mut conn) = former {
            match tokio::time::timeout(PATIENCE, servers::is_read_only(&mut conn)).await {
                Ok(Ok(false)) => {
                    self.note(DatabaseState::Answers, "");
                    return Some(conn);
                }
                Ok(Ok(true)) => {}
                Ok(Err(error)) => tracing::debug!(%error, "the connection that watches the database broke"),
                // The other connections to this server hang as well, so nobody may wait for them
                // until another server has been found.
                Err(_) => self.note(DatabaseState::Silent, &format!("no answer in {PATIENCE:?}")),
            }
        }
        match servers.connect().await {
            Ok(Reached { conn, writable, server }) => {
                // What ended this connection, or made it useless, may concern the others as well.
                if !first {
                    moved(&server);
                }
                let state = if writable { DatabaseState::Answers } else { DatabaseState::ReadOnly };
                self.note(state, &servers::place(&server));
                Some(conn)
            }
            Err(error) => {
                self.note(DatabaseState::Silent, &error.to_string());
                None
            }
        }
    }

    fn note(&self, state: DatabaseState, detail: &str) {
        let changed = self.state.send_if_modified(|known| std::mem::replace(known, state) != state);
        match state {
            _ if !changed => {}
            DatabaseState::Answers => tracing::warn!("the database answers and accepts changes again"),
            DatabaseState::ReadOnly => {
                tracing::warn!(
                    at = detail,
                    "{state}; changes are refused, and clients and agents are told to try again"
                );
            }
            DatabaseState::Silent => {
                tracing::warn!(problem = detail, "{state}; clients and agents are told to try again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_for_a_silent_database_is_told_and_may_ask_again_when_it_is_back() {
        let database = Database::default();
        assert_eq!(database.while_it_answers(async { 7 }).await, Some(7));
        let waiting = database.while_it_answers(std::future::pending::<()>());
        let told = async {
            tokio::task::yield_now().await;
            database.note(DatabaseState::Silent, "no answer");
        };
        assert_eq!(tokio::join!(waiting, told).0, None);
        assert_eq!(database.while_it_answers(async { 7 }).await, None, "still");
        database.note(DatabaseState::Answers, "");
        assert_eq!(database.while_it_answers(async { 7 }).await, Some(7));
    }
}
