//! Group commit: one transaction for the requests of several agents.
//!
//! A statement and a commit cost nearly as much for one agent as for twenty. Requests that arrive
//! during a transaction wait for its end, and the next transaction runs all of them. If no
//! transaction runs, a request does not wait for further requests.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tokio::sync::{Semaphore, oneshot};
use tonic::Status;

use crate::grpc::errors;
use crate::store;

/// Maximum number of rows in one transaction. The maximum is high enough to share the cost of the
/// commit, and low enough for a transaction that takes only tens of milliseconds. A larger request
/// gets its own transaction.
const MOST_ROWS: usize = 1024;
/// If at least this many rows wait, a second transaction starts while the first is still running.
/// Fewer rows wait for the first transaction to end, because two small transactions cost more than
/// one that contains all their rows.
const CROWD_ROWS: usize = 256;
/// Maximum time that a shared transaction waits for a lock. This time is longer than a shared
/// transaction takes (tens of milliseconds), but short compared with the heartbeat interval.
/// Cancelling a large batch may lock a task for a minute; the agents of other tasks must not wait
/// for that.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);

/// A request that can share a transaction.
pub(super) trait Request: Sized + Send + Sync {
    type Answer: Send + std::fmt::Debug;

    /// Number of rows that the request affects.
    fn rows(&self) -> usize;

    /// Runs the requests and returns their answers in the same order. If this fails, each request
    /// is run in its own transaction.
    fn run(
        conn: &mut PgConnection,
        requests: &[&Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, store::Error>> + Send;
}

/// The queue of requests of one kind. Each session has at most one request in the queue, and waits
/// for its answer.
#[derive(Debug)]
pub(super) struct GroupCommit<R: Request> {
    waiting: Mutex<VecDeque<PendingRequest<R>>>,
    /// Acquired by the session that runs the transaction.
    turn: Semaphore,
    /// Acquired by the session that runs a second transaction at the same time.
    second: Semaphore,
}

#[derive(Debug)]
struct PendingRequest<R: Request> {
    request: R,
    verdict: oneshot::Sender<CommitResult<R>>,
}

/// What a transaction returns to the session that made a request.
#[derive(Debug)]
enum CommitResult<R: Request> {
    /// The request was completed, or failed permanently.
    Answered(Result<R::Answer, Status>),
    /// Nothing was done. The session must run the request in its own transaction, however long that
    /// takes.
    Alone(R),
}

impl<R: Request> Default for GroupCommit<R> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: Semaphore::new(1), second: Semaphore::new(1) }
    }
}

impl<R: Request> GroupCommit<R> {
    /// Runs the request in a shared transaction and returns its result after the commit.
    pub(super) async fn ask(&self, pool: &PgPool, request: R) -> Result<R::Answer, Status> {
        let (verdict, mut judged) = oneshot::channel();
        let crowded = {
            let mut queue = self.queue();
            queue.push_back(PendingRequest { request, verdict });
            queue.iter().map(|waiting| waiting.request.rows()).sum::<usize>() >= CROWD_ROWS
        };
        loop {
            let second = async { if crowded { self.second.acquire().await } else { std::future::pending().await } };
            tokio::select! {
                biased;
                verdict = &mut judged => return conclude(pool, verdict).await,
                turn = async { tokio::select! { turn = self.turn.acquire() => turn, turn = second => turn } } => {
                    let batch = self.take();
                    if batch.is_empty() {
                        // The transaction of another session has included the request.
                        drop(turn);
                        return conclude(pool, judged.await).await;
                    }
                    serve(pool, batch).await;
                }
            }
        }
    }

    /// Takes the requests of the next transaction from the queue, oldest first. Drops a request if
    /// its session no longer waits.
    fn take(&self) -> Vec<PendingRequest<R>> {
        let mut queue = self.queue();
        let (mut batch, mut rows) = (Vec::new(), 0);
        while let Some(next) = queue.pop_front() {
            if next.verdict.is_closed() {
                continue;
            }
            rows += next.request.rows();
            if rows > MOST_ROWS && !batch.is_empty() {
                queue.push_front(next);
                break;
            }
            batch.push(next);
        }
        batch
    }

    /// Locks the queue. The lock is never held across an await.
    fn queue(&self) -> MutexGuard<'_, VecDeque<PendingRequest<R>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the requests in one transaction. If Postgres refuses the transaction, each request is
/// returned to its session, so that no request fails or waits because of another request.
async fn serve<R: Request>(pool: &PgPool, batch: Vec<PendingRequest<R>>) {
    let requests: Vec<&R> = batch.iter().map(|waiting| &waiting.request).collect();
    let begun = store::begin_impatient(pool, LOCK_PATIENCE).await;
    // Failures to send an answer are ignored: if a session has ended in the meantime, its agent
    // repeats the request, and the store then has the result.
    match attempt(begun, &requests).await {
        Ok(answers) => {
            for (waiting, answer) in batch.into_iter().zip(answers) {
                let _heard = waiting.verdict.send(CommitResult::Answered(Ok(answer)));
            }
        }
        Err(FailedTransaction::Refused(error)) => {
            tracing::info!(
                error = &error as &dyn std::error::Error,
                requests = batch.len(),
                "a transaction of several requests was refused: each is repeated alone"
            );
            for waiting in batch {
                let _heard = waiting.verdict.send(CommitResult::Alone(waiting.request));
            }
        }
        Err(FailedTransaction::Broken(error)) => {
            let status = Status::from(error);
            for waiting in batch {
                let _heard = waiting.verdict.send(CommitResult::Answered(Err(status.clone())));
            }
        }
    }
}

/// Returns the request's result, or runs the request in its own transaction if needed. `verdict` is
/// an error if the session that ran the transaction was dropped: the scheduler stopped, or the
/// database became unreachable.
async fn conclude<R: Request>(
    pool: &PgPool,
    verdict: Result<CommitResult<R>, oneshot::error::RecvError>,
) -> Result<R::Answer, Status> {
    match verdict {
        Ok(CommitResult::Answered(answer)) => answer,
        Ok(CommitResult::Alone(request)) => match attempt(store::begin(pool).await, &[&request]).await {
            Ok(mut answers) => answers.pop().ok_or_else(errors::away),
            Err(FailedTransaction::Refused(error) | FailedTransaction::Broken(error)) => Err(error.into()),
        },
        Err(_) => Err(errors::away()),
    }
}

/// Why a transaction failed.
enum FailedTransaction {
    /// Postgres refused the transaction because of one of the requests, and nothing was done.
    Refused(store::Error),
    /// The database became unavailable, perhaps during the commit, so only idempotent requests may
    /// be retried.
    Broken(store::Error),
}

async fn attempt<R: Request>(
    begun: Result<Transaction<'static, Postgres>, store::Error>,
    requests: &[&R],
) -> Result<Vec<R::Answer>, FailedTransaction> {
    let mut tx = begun.map_err(FailedTransaction::Broken)?;
    match R::run(&mut tx, requests).await {
        Ok(answers) => {
            tx.commit().await.map_err(|error| FailedTransaction::Broken(error.into()))?;
            Ok(answers)
        }
        Err(error) if !refused(&error) => Err(FailedTransaction::Broken(error)),
        Err(error) => {
            // Rolls back before any retry, so that the retry does not wait for the locks of this
            // transaction.
            tx.rollback().await.map_err(|error| FailedTransaction::Broken(error.into()))?;
            Err(FailedTransaction::Refused(error))
        }
    }
}

/// Whether the error is a refusal by a reachable Postgres, or invalid stored data.
const fn refused(error: &store::Error) -> bool {
    !matches!(error, store::Error::Database(cause) if !matches!(cause, sqlx::Error::Database(_)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tonic::Code;

    use super::*;

    /// Divides by a number. Returns the id of the transaction that made the division.
    #[derive(Debug)]
    struct Divide(i32);

    impl Request for Divide {
        type Answer = i64;

        fn rows(&self) -> usize {
            usize::try_from(self.0).unwrap_or(0)
        }

        async fn run(conn: &mut PgConnection, requests: &[&Self]) -> Result<Vec<i64>, store::Error> {
            let mut answers = Vec::new();
            for divide in requests {
                let by = sqlx::query_scalar("select pg_current_xact_id()::text::bigint + 0 / $1").bind(divide.0);
                answers.push(by.fetch_one(&mut *conn).await?);
            }
            Ok(answers)
        }
    }

    /// Makes all these requests while another transaction is running.
    async fn asked(pool: &PgPool, group: &Arc<GroupCommit<Divide>>, by: &[i32]) -> Vec<Result<i64, Status>> {
        let under_way = group.turn.acquire().await.expect("a turn");
        let mut asking = Vec::new();
        for (number, &by) in by.iter().enumerate() {
            let (pool, group) = (pool.clone(), Arc::clone(group));
            let queue = Arc::clone(&group);
            asking.push(tokio::spawn(async move { group.ask(&pool, Divide(by)).await }));
            while queue.queue().len() <= number {
                tokio::task::yield_now().await;
            }
        }
        drop(under_way);
        let mut answers = Vec::new();
        for asking in asking {
            answers.push(asking.await.expect("no panic"));
        }
        answers
    }

    #[sqlx::test(migrations = false)]
    async fn who_asks_while_a_transaction_is_under_way_shares_the_next(pool: PgPool) {
        let group = Arc::new(GroupCommit::default());
        let answers: Vec<i64> =
            asked(&pool, &group, &[1, 2, 3, 4]).await.into_iter().map(|answer| answer.expect("divided")).collect();
        assert!(answers.iter().all(|transaction| *transaction == answers[0]), "{answers:?}");
        let next = group.ask(&pool, Divide(1)).await.expect("divided");
        assert!(next > answers[0], "nobody waits for company");
    }

    #[sqlx::test(migrations = false)]
    async fn nobody_fails_for_another(pool: PgPool) {
        let group = Arc::new(GroupCommit::default());
        let answers = asked(&pool, &group, &[1, 0, 2]).await;
        let codes: Vec<Code> =
            answers.iter().map(|answer| answer.as_ref().map_or_else(Status::code, |_| Code::Ok)).collect();
        assert_eq!(codes, [Code::Ok, Code::Internal, Code::Ok]);
        assert_ne!(answers[0].as_ref().ok(), answers[2].as_ref().ok(), "each by itself");
    }

    #[tokio::test]
    async fn a_transaction_takes_on_so_many_rows_and_nobody_who_has_gone() {
        let group = GroupCommit::<Divide>::default();
        let most = i32::try_from(MOST_ROWS).expect("a number");
        let ask = |rows| {
            let (verdict, judged) = oneshot::channel();
            group.queue().push_back(PendingRequest { request: Divide(rows), verdict });
            judged
        };
        let _waiting = [ask(most + 1), ask(most - 1)];
        drop(ask(1));
        let _more = [ask(1), ask(1)];
        let taken = || group.take().iter().map(|waiting| waiting.request.0).collect::<Vec<_>>();
        assert_eq!(taken(), [most + 1], "more than that goes alone");
        assert_eq!(taken(), [most - 1, 1]);
        assert_eq!(taken(), [1]);
        assert!(taken().is_empty());
    }
}
