//! Detects whether the database answers.
//!
//! A database that refuses connections gives an error at once. A database is silent if its machine
//! has failed, the network is cut, or its process is stopped. A silent database would block every
//! query, because only the server itself enforces statement time-outs.
//!
//! Therefore one connection queries the database every second. If an answer takes longer than
//! `PATIENCE`, the database counts as silent until the next answer. While the database is silent,
//! requests are refused, sessions end, and background jobs abandon their passes.
//!
//! It is unknown whether interrupted work was committed. Submissions and outcomes have unique keys,
//! so a repeated submission or outcome is recognised and has no further effect.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Interval between two queries.
const PERIOD: Duration = Duration::from_secs(1);
/// Maximum time to wait for an answer or a connection. A healthy database answers within a
/// millisecond, and a database on a swapping machine within two seconds. The limit is well below
/// the lifetime of a session (30 s), after which agents stop their crawls.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether the database answers. It is assumed to answer until [`Database::watch`] detects that it
/// does not.
#[derive(Debug)]
pub struct Database {
    silent: watch::Sender<bool>,
}

impl Default for Database {
    fn default() -> Self {
        Self { silent: watch::Sender::new(false) }
    }
}

impl Database {
    /// Returns as soon as the database is silent.
    pub async fn silent(&self) {
        // This cannot fail, because `self` owns the sender.
        drop(self.silent.subscribe().wait_for(|silent| *silent).await);
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

    /// Queries the database every second until `shutdown`.
    pub async fn watch(&self, options: PgConnectOptions, shutdown: CancellationToken) {
        let mut connection = None;
        let watching = async {
            loop {
                let asked = tokio::time::timeout(PATIENCE, ask(&options, connection.take())).await;
                let (answer, problem) = match asked {
                    Ok(Ok(answered)) => (Some(answered), None),
                    Ok(Err(error)) => (None, Some(error.to_string())),
                    Err(_) => (None, Some(format!("no answer in {PATIENCE:?}"))),
                };
                connection = answer;
                self.note(problem.as_deref());
                tokio::time::sleep(PERIOD).await;
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = watching => {}
        }
    }

    fn note(&self, problem: Option<&str>) {
        let changed = self.silent.send_if_modified(|silent| {
            let changed = *silent != problem.is_some();
            *silent = problem.is_some();
            changed
        });
        match problem {
            Some(problem) if changed => {
                tracing::warn!(problem, "the database does not answer; clients and agents are told to try again");
            }
            None if changed => tracing::warn!("the database answers again"),
            _ => {}
        }
    }
}

/// Sends one query over the existing connection, or over a new one. Returns the connection.
async fn ask(options: &PgConnectOptions, former: Option<PgConnection>) -> Result<PgConnection, sqlx::Error> {
    let mut connection = match former {
        Some(connection) => connection,
        None => options.connect().await?,
    };
    connection.ping().await?;
    Ok(connection)
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
            database.note(Some("no answer"));
        };
        assert_eq!(tokio::join!(waiting, told).0, None);
        assert_eq!(database.while_it_answers(async { 7 }).await, None, "still");
        database.note(None);
        assert_eq!(database.while_it_answers(async { 7 }).await, Some(7));
    }
}
