//! Group commit: one transaction for the requests of several agents. It records outcomes, and
//! grants leases for the freed slots.
//!
//! A statement and a commit cost nearly as much for one agent as for twenty. Requests that arrive
//! during a transaction wait for its end, and the next transaction runs all of them. If no
//! transaction runs, a request does not wait for further requests.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use sqlx::PgConnection;
use tokio::sync::{Semaphore, oneshot};
use tonic::Status;

use super::patience::Unhandled;
use super::received::Outcome;
use crate::grpc::errors;
use crate::model::{AgentId, SiteId};
use crate::store::leases::outcomes::{self, OutcomeAnswer, OutcomeReport};
use crate::store::leases::{self, FreeSlots, Grant};
use crate::store::measurements::quarantines_and_contradictions::{self, CrawlRtt};
use crate::store::sites::names_and_origins;
use crate::store::{self, Db, Locked, Tx};

/// Maximum number of rows in one transaction. The maximum is high enough to share the cost of the
/// commit, and low enough for a transaction that takes only tens of milliseconds. A larger request
/// gets its own transaction.
const MOST_ROWS: usize = 1024;
/// If at least this many rows wait, a second transaction starts while the first is still running.
/// Fewer rows wait for the first transaction to end, because two small transactions cost more than
/// one that contains all their rows.
const CROWD_ROWS: usize = 256;

/// A request that can share a transaction.
pub(super) trait Request: Sized + Send + Sync {
    type Answer: Send + std::fmt::Debug;
    /// The transaction's name, for its counts.
    const NAME: &'static str;

    /// Number of rows that the request affects.
    fn rows(&self) -> usize;

    /// Runs the requests and returns their answers in the same order. If this fails, each request
    /// is run in its own transaction.
    fn run(tx: &mut Tx<'_>, requests: &[&Self])
    -> impl Future<Output = Result<Vec<Self::Answer>, store::Error>> + Send;
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
    /// Nothing was done. The session must run the request in its own transaction.
    Alone(R),
}

impl<R: Request> Default for GroupCommit<R> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: Semaphore::new(1), second: Semaphore::new(1) }
    }
}

impl<R: Request> GroupCommit<R> {
    /// Runs the request in a shared transaction and returns its result after the commit.
    pub(super) async fn ask(&self, db: &Db, request: R) -> Result<R::Answer, Unhandled> {
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
                verdict = &mut judged => return conclude(db, verdict).await,
                turn = async { tokio::select! { turn = self.turn.acquire() => turn, turn = second => turn } } => {
                    let batch = self.take();
                    if batch.is_empty() {
                        // The transaction of another session has included the request.
                        drop(turn);
                        return conclude(db, judged.await).await;
                    }
                    serve(db, batch).await;
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
async fn serve<R: Request>(db: &Db, batch: Vec<PendingRequest<R>>) {
    let requests: Vec<&R> = batch.iter().map(|waiting| &waiting.request).collect();
    // Failures to send an answer are ignored: if a session has ended in the meantime, its agent
    // repeats the request, and the store then has the result.
    match attempt(db, &requests).await {
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
    db: &Db,
    verdict: Result<CommitResult<R>, oneshot::error::RecvError>,
) -> Result<R::Answer, Unhandled> {
    match verdict {
        Ok(CommitResult::Answered(answer)) => Ok(answer?),
        Ok(CommitResult::Alone(request)) => alone(db, &request).await,
        Err(_) => Err(errors::away().into()),
    }
}

/// Runs the request in its own transaction.
pub(super) async fn alone<R: Request>(db: &Db, request: &R) -> Result<R::Answer, Unhandled> {
    match attempt(db, &[request]).await {
        Ok(mut answers) => Ok(answers.pop().ok_or_else(errors::away)?),
        Err(FailedTransaction::Refused(error) | FailedTransaction::Broken(error)) => Err(error.into()),
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

async fn attempt<R: Request>(db: &Db, requests: &[&R]) -> Result<Vec<R::Answer>, FailedTransaction> {
    let running = db.tx(R::NAME, |tx| R::run(tx, requests).boxed());
    running.await.map_err(|error| {
        if refused(&error) { FailedTransaction::Refused(error) } else { FailedTransaction::Broken(error) }
    })
}

/// Whether the error is a refusal by a reachable Postgres, or invalid stored data.
const fn refused(error: &store::Error) -> bool {
    !matches!(error, store::Error::Database(cause) if !matches!(cause, sqlx::Error::Database(_)))
}

/// Maximum number of outcomes from one stream that are recorded at once. The maximum is high enough
/// to share the cost of the commit, and low enough for a transaction that takes only tens of
/// milliseconds.
pub(super) const MOST_AT_ONCE: usize = 512;
/// Storing this many discovered hosts takes about as long as recording one outcome.
pub(super) const HOSTS_PER_ROW: usize = 10;
/// Maximum number of leases granted to an agent in a shared transaction that records outcomes. A
/// session that got this many leases is woken to fill its other free slots.
pub(super) const FILLED_AT_ONCE: i64 = 512;

/// The group commit of outcomes, shared by the sessions of one scheduler.
pub(super) type OutcomeCommits = GroupCommit<OutcomeBatch>;

/// The outcomes of one agent, which are recorded together.
#[derive(Debug)]
pub(super) struct OutcomeBatch {
    pub(super) agent: AgentId,
    pub(super) reports: Arc<[Outcome]>,
    /// The agent's free slots; `None` if no leases may be granted, not even for the slots that
    /// these outcomes free.
    pub(super) free: Option<FreeSlots>,
}

/// The result of recording an agent's outcomes.
#[derive(Debug)]
pub(super) struct RecordedOutcome {
    /// One answer per report, in the order of the reports.
    pub(super) answers: Vec<OutcomeAnswer>,
    /// The origins of crawled sites that are to be settled in later transactions, because a site is
    /// locked before its tasks.
    pub(super) origins: Vec<(SiteId, String)>,
    /// The granted leases, and the number of free slots for which leases could be granted.
    pub(super) grants: Vec<Grant>,
    pub(super) slots: i64,
}

/// Number of slots that were freed, which is the number of outcomes that ended an active lease.
pub(super) fn freed(answers: &[OutcomeAnswer]) -> i64 {
    let freed = answers.iter().filter(|answer| matches!(answer, OutcomeAnswer::Accepted { freed: true, .. })).count();
    i64::try_from(freed).unwrap_or(i64::MAX)
}

impl Request for OutcomeBatch {
    type Answer = RecordedOutcome;
    const NAME: &'static str = "record outcomes";

    fn rows(&self) -> usize {
        let hosts: usize = self.reports.iter().map(|outcome| outcome.report.hosts.len()).sum();
        self.reports.len() + hosts / HOSTS_PER_ROW
    }

    async fn run(tx: &mut Tx<'_>, requests: &[&Self]) -> Result<Vec<RecordedOutcome>, store::Error> {
        // Sessions are locked before tasks, as in every transaction that locks both.
        let asking: Vec<FreeSlots> = requests.iter().filter_map(|asked| asked.free).collect();
        let locked = leases::lock(tx, &asking).await?;
        let reported: Vec<(AgentId, &OutcomeReport, Option<&str>)> = requests
            .iter()
            .flat_map(|asked| {
                asked.reports.iter().map(|Outcome { report, origin, .. }| (asked.agent, report, origin.as_deref()))
            })
            .collect();
        let reports: Vec<_> = reported.iter().map(|&(agent, report, _)| (agent, report)).collect();
        let answers = outcomes::record_all(tx, &reports).await?;
        let (mut found, mut crawls) = (Vec::new(), Vec::new());
        for (&(agent, report, origin), answer) in reported.iter().zip(&answers) {
            if let OutcomeAnswer::Accepted { site, .. } = *answer {
                found.extend(origin.map(|_| site));
                crawls.extend(report.rtt.map(|rtt| CrawlRtt { agent, site, task: report.task, rtt }));
            }
        }
        let unsettled =
            if found.is_empty() { HashSet::new() } else { names_and_origins::unsettled(tx, &found).await? };
        note(tx, crawls).await?;
        let mut answers = answers.into_iter();
        let mut recorded: Vec<RecordedOutcome> = requests
            .iter()
            .map(|asked| {
                let answers: Vec<OutcomeAnswer> = answers.by_ref().take(asked.reports.len()).collect();
                let origins =
                    asked.reports.iter().zip(&answers).filter_map(|(Outcome { origin, .. }, answer)| match *answer {
                        OutcomeAnswer::Accepted { site, .. } if unsettled.contains(&site) => {
                            Some((site, origin.clone()?))
                        }
                        _ => None,
                    });
                RecordedOutcome { origins: origins.collect(), answers, grants: Vec::new(), slots: 0 }
            })
            .collect();
        let free = requests.iter().map(|asked| {
            let FreeSlots { session, slots, .. } = asked.free?;
            let (agent, _) = *locked.get(&session)?;
            Some(FreeSlots { agent, session, slots })
        });
        fill(tx, free.zip(&mut recorded)).await?;
        Ok(recorded)
    }
}

async fn fill(
    tx: &mut Tx<'_>,
    recorded: impl Iterator<Item = (Option<FreeSlots<Locked<AgentId>>>, &mut RecordedOutcome)>,
) -> Result<(), store::Error> {
    let (mut filled, mut asking) = (Vec::new(), Vec::new());
    for (free, recorded) in recorded {
        let freed = freed(&recorded.answers);
        if let Some(free) = free.filter(|_| freed > 0) {
            recorded.slots = free.slots.saturating_add(freed).min(FILLED_AT_ONCE);
            asking.push(FreeSlots { slots: recorded.slots, ..free });
            filled.push(recorded);
        }
    }
    for (recorded, grants) in filled.into_iter().zip(leases::fill(tx, &asking).await?) {
        recorded.grants = grants;
    }
    Ok(())
}

async fn note(conn: &mut PgConnection, mut crawls: Vec<CrawlRtt>) -> Result<(), store::Error> {
    if crawls.is_empty() {
        return Ok(());
    }
    crawls.sort_unstable_by_key(|crawled| crawled.site);
    for site in quarantines_and_contradictions::note(conn, &crawls).await? {
        tracing::debug!(site.id = %site, "a site is to be measured again: crawls contradict");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;
    use tonic::Code;

    use super::*;

    /// Divides by a number. Returns the id of the transaction that made the division.
    #[derive(Debug)]
    struct Divide(i32);

    impl Request for Divide {
        type Answer = i64;
        const NAME: &'static str = "divide";

        fn rows(&self) -> usize {
            usize::try_from(self.0).unwrap_or(0)
        }

        async fn run(tx: &mut Tx<'_>, requests: &[&Self]) -> Result<Vec<i64>, store::Error> {
            let mut answers = Vec::new();
            for divide in requests {
                let by = sqlx::query_scalar("select pg_current_xact_id()::text::bigint + 0 / $1").bind(divide.0);
                answers.push(by.fetch_one(&mut **tx).await?);
            }
            Ok(answers)
        }
    }

    /// Makes all these requests while another transaction is running.
    async fn asked(db: &Db, group: &Arc<GroupCommit<Divide>>, by: &[i32]) -> Vec<Result<i64, Unhandled>> {
        let under_way = group.turn.acquire().await.expect("a turn");
        let mut asking = Vec::new();
        for (number, &by) in by.iter().enumerate() {
            let (db, group) = (db.clone(), Arc::clone(group));
            let queue = Arc::clone(&group);
            asking.push(tokio::spawn(async move { group.ask(&db, Divide(by)).await }));
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
        let db = Db::of(pool);
        let group = Arc::new(GroupCommit::default());
        let answers: Vec<i64> =
            asked(&db, &group, &[1, 2, 3, 4]).await.into_iter().map(|answer| answer.expect("divided")).collect();
        assert!(answers.iter().all(|transaction| *transaction == answers[0]), "{answers:?}");
        let next = group.ask(&db, Divide(1)).await.expect("divided");
        assert!(next > answers[0], "nobody waits for company");
    }

    #[sqlx::test(migrations = false)]
    async fn nobody_fails_for_another(pool: PgPool) {
        let db = Db::of(pool);
        let group = Arc::new(GroupCommit::default());
        let answers = asked(&db, &group, &[1, 0, 2]).await;
        let code = |answer: &Result<_, Unhandled>| match answer {
            Ok(_) => Code::Ok,
            Err(Unhandled::Ends(status)) => status.code(),
            Err(Unhandled::Later) => panic!("nothing is locked"),
        };
        assert_eq!(answers.iter().map(code).collect::<Vec<_>>(), [Code::Ok, Code::Internal, Code::Ok]);
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
