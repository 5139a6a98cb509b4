//! Backup and restore: exports a consistent snapshot of the whole database, reads the properties
//! that a backup and a restore check first, and adjusts a restored database.
//!
//! Agents and operators may have seen numbers (identifiers, tokens, incarnations) that the database
//! no longer contains. So a restored database begins another history (`histories`). Nothing that
//! was active in the backup continues, because its sessions and leases ended long ago. While a
//! restore is incomplete, the database has a table that only restores create.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::agents::sessions::EndCause;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::schema::histories::{self, HistoryCause};
use crate::store::types::whole;
use crate::store::{Error, Tx, leases, minute};

/// An exported snapshot, valid until the transaction that [`begin_snapshot`] opened ends.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The snapshot's name, for `pg_dump`.
    pub name: String,
    pub at: DateTime<Utc>,
    /// The database's newest migration.
    pub schema: i64,
    /// SHA-256 of the operator's token, hexadecimal; `None` before the first start.
    pub operator_token: Option<String>,
    /// SHA-256 of the certificate authority that agents trust, hexadecimal; `None` if all parts run
    /// on one machine.
    pub authority: Option<String>,
    pub sites: i64,
    /// Number of agents that have not been removed.
    pub agents: i64,
}

/// Begins a transaction that keeps one snapshot until the connection closes, and exports this
/// snapshot. The statements are not checked at compile time, so that they also work on the schema
/// of an earlier release.
pub async fn begin_snapshot(conn: &mut PgConnection) -> Result<Snapshot, Error> {
    // The transaction is idle while other programs use the snapshot.
    sqlx::query("set idle_in_transaction_session_timeout = 0").run(conn).await?;
    sqlx::query("begin transaction isolation level repeatable read, read only").run(conn).await?;
    type Row = (String, DateTime<Utc>, i64, Option<String>, Option<String>, i64, i64);
    let row: Row = sqlx::query_as(
        "select pg_export_snapshot(), now(), (select max(version) from _sqlx_migrations where success),
                encode(operator_token_hash, 'hex'), ca_fingerprint,
                (select count(*) from sites), (select count(*) from agents where removed_at is null)
         from settings",
    )
    .fetch_one(&mut *conn)
    .await?;
    let (name, at, schema, operator_token, authority, sites, agents) = row;
    Ok(Snapshot { name, at, schema, operator_token, authority, sites, agents })
}

/// Properties that decide whether a database can be backed up, or be the target of a restore.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct DatabaseFacts {
    /// The server's major version.
    pub postgres: i32,
    /// The schema in which tables are created.
    pub schema: Option<String>,
    /// Whether the database contains Landfall's tables.
    pub ours: bool,
    /// Whether the database contains nothing except what extensions created.
    pub empty: bool,
}

/// Reads the facts, even from a database without Landfall's tables.
pub async fn look(conn: &mut PgConnection) -> Result<DatabaseFacts, Error> {
    let place = sqlx::query_as(
        "select current_setting('server_version_num')::integer / 10000 as postgres, current_schema()::text as schema,
                to_regclass('_sqlx_migrations') is not null and to_regclass('settings') is not null as ours,
                not exists (
                    select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
                      and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')
                ) as empty",
    )
    .fetch_one(&mut *conn)
    .await?;
    Ok(place)
}

pub async fn analyze(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("analyze").run(conn).await
}

/// The result of a restore, as reported to the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreResult {
    pub at: DateTime<Utc>,
    pub backed_up_at: DateTime<Utc>,
    pub backup_version: String,
    pub sessions: u64,
    pub leases: u64,
    /// Number of enrolment tokens that the restore voided.
    pub tokens: u64,
}

impl RestoreResult {
    pub fn sentence(&self) -> String {
        format!(
            "restored from the backup of {} (landfall {}): {} sessions and {} leases of that time were ended, {} \
             enrolment tokens voided",
            minute(&self.backed_up_at),
            self.backup_version,
            self.sessions,
            self.leases,
            self.tokens
        )
    }
}

/// Marks an empty database as being restored. [`rewind`] removes the mark.
pub async fn begin(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("create table restore_under_way ()").run(conn).await
}

/// Removes the mark from a database into which no row was restored.
pub async fn give_up(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("drop table if exists restore_under_way").run(conn).await
}

/// Whether a restore into this database has begun but not ended.
pub async fn under_way(conn: &mut PgConnection) -> Result<bool, Error> {
    sqlx::query_scalar("select to_regclass('restore_under_way') is not null").one(conn).await
}

/// Prepares restored rows for use: begins a history, ends sessions and leases, voids open enrolment tokens, deletes orders and schedulers, and records the
/// restore. The schema is the newest.
pub async fn rewind(
    tx: &mut Tx<'_>,
    backed_up_at: DateTime<Utc>,
    backup_version: &str,
) -> Result<RestoreResult, Error> {
    histories::begin(tx, HistoryCause::Restored).await?;
    // Agents get new orders; reports for old orders are refused.
    sqlx::query!("delete from measurement_orders").run(tx).await?;
    sqlx::query!("update terms set holder = null, served_until = coalesce(served_until, now())").run(tx).await?;
    sqlx::query!("delete from schedulers").run(tx).await?;
    let ended = sqlx::query!(
        "update sessions set state = 'closed', end_cause = $1, ended_at = now() where state = 'active'",
        EndCause::Restored,
    )
    .affected(tx)
    .await?;
    let leases = leases::release_of_ended_sessions(tx, leases::ReleaseScope::All, u32::MAX).await?;
    let voided = sqlx::query!("update enrolments set expires_at = now() where used_at is null and expires_at > now()")
        .affected(tx)
        .await?;
    let at = sqlx::query_scalar!(
        r#"
        insert into restores (backed_up_at, backup_version, sessions, leases, tokens)
        values ($1, $2, $3, $4, $5)
        returning restored_at
        "#,
        backed_up_at,
        backup_version,
        whole::<i64, _>(ended),
        whole::<i64, _>(leases),
        whole::<i64, _>(voided),
    )
    .one(tx)
    .await?;
    let backup_version = backup_version.to_owned();
    let restored = RestoreResult { at, backed_up_at, backup_version, sessions: ended, leases, tokens: voided };
    let cause = restored.sentence();
    sqlx::query!("insert into events (noun, what, cause) values ('database', 'restored', $1)", cause).run(tx).await?;
    give_up(tx).await?;
    Ok(restored)
}

/// Returns the newest restore that no scheduler has reported yet, and marks it as reported.
pub async fn take_untold(conn: &mut PgConnection) -> Result<Option<RestoreResult>, Error> {
    let untold = sqlx::query_as!(
        RestoreResult,
        r#"
        update restores set told_at = now() where told_at is null
        returning restored_at as at, backed_up_at, backup_version, sessions, leases, tokens
        "#,
    );
    Ok(untold.all(conn).await?.into_iter().max_by_key(|restored| restored.at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::PgPool;

    use super::*;
    use crate::model::{CrawlEnding, LeaseToken, TaskId};
    use crate::store::agents::refusals::Refusal;
    use crate::store::agents::{issued_tokens, new_enrolments, sessions};
    use crate::store::fixtures::{self, Conn, LeasedTask};
    use crate::store::leases::outcomes::{OutcomeAnswer, OutcomeReport};
    use crate::store::reports::events::{self, Filter};
    use crate::store::schema::retention;

    fn report(task: TaskId, token: i64) -> OutcomeReport {
        fixtures::report(task, LeaseToken::new(token), CrawlEnding::Complete)
    }

    async fn rewound(conn: &mut PgConnection) -> RestoreResult {
        fixtures::tx(conn, async |tx| rewind(tx, DateTime::<Utc>::UNIX_EPOCH, "0.1.0").await).await.expect("rewind")
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn nothing_of_then_goes_on_and_no_number_comes_twice(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let LeasedTask { agent, task, .. } = fixtures::leased(&mut conn, "a").await;
        let LeasedTask { agent: other, task: second, .. } = fixtures::leased(&mut conn, "b").await;
        let wanted = fixtures::agent_request(new_enrolments::Name::Given("lhasa".into()));
        let enrolment = new_enrolments::create(&mut conn, &[wanted]).await.expect("enrol").remove(0);

        let restored = rewound(&mut conn).await;
        let floor = histories::floor(&mut conn).await.expect("floor");
        assert_eq!((restored.sessions, restored.leases, restored.tokens), (2, 2, 1));
        assert_eq!(fixtures::state(&mut conn, task).await, "assigned");
        let told = "select count(*) from tasks where state = 'assigned' and crashes = 0";
        assert_eq!(fixtures::scalar::<i64>(&mut conn, told).await, 2);
        let void = issued_tokens::redeem(&mut conn, enrolment.token.reveal(), 5).await.unwrap_err().to_string();
        assert!(void.contains("expired"), "{void}");

        // An agent may report a task or token that was issued after the backup. A report of a
        // number that was never issued shows a fault of the agent.
        let answers = [
            (report(task, 2), OutcomeAnswer::Refused(Refusal::LostHistory)),
            (report(TaskId::new(999), 1), OutcomeAnswer::Refused(Refusal::LostHistory)),
            (report(task, floor + 1), OutcomeAnswer::Refused(Refusal::ForgedToken)),
            (report(TaskId::new(floor + 1), 1), OutcomeAnswer::Refused(Refusal::UnknownTask)),
            (report(second, 0), OutcomeAnswer::Refused(Refusal::ForgedToken)),
        ];
        for (report, expected) in answers {
            assert_eq!(fixtures::record(&mut conn, agent, &report).await, expected, "{report:?}");
        }
        // The outcome of a lease from the backup is accepted until a newer lease of the task is
        // granted, as with any expired lease.
        let mut tx = Tx::on(&mut conn).await.expect("begin");
        let late = fixtures::record(&mut tx, other, &report(second, 1)).await;
        assert!(matches!(late, OutcomeAnswer::Accepted { freed: false, .. }), "{late:?}");
        tx.rollback().await.expect("roll back");

        let opened = sessions::open(&mut conn, agent, &fixtures::registration(), fixtures::TERMS).await.expect("open");
        assert_eq!((opened.session.get(), opened.incarnation.get()), (floor + 1, floor + 1));
        let granted = leases::grant(&mut conn, agent, opened.session).await.expect("grant");
        assert_eq!((granted[0].task, granted[0].token.get()), (task, floor + 1));
        let site = fixtures::site(&mut conn, "new.cn").await;
        assert_eq!(site.get(), floor + 1);
        let answer = fixtures::record(&mut conn, agent, &report(task, floor + 1)).await;
        assert!(matches!(answer, OutcomeAnswer::Accepted { .. }), "{answer:?}");

        rewound(&mut conn).await;
        let next = histories::floor(&mut conn).await.expect("floor");
        assert!(next / histories::LEAP > floor / histories::LEAP, "{next}: a second one goes beyond the first");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_log_goes_on_behind_what_another_server_wrote(mut conn: Conn) {
        fixtures::leased(&mut conn, "a").await;
        // Simulates events from a server that had executed more transactions than this server.
        fixtures::execute(&mut conn, "update events set xact = '5000000000'").await;
        let known: i64 = fixtures::scalar(&mut conn, "select count(*) from events").await;
        rewound(&mut conn).await;
        let mut last = String::new();
        // The event `restored` is visible only after all other transactions on this server have
        // ended.
        while last != "restored" {
            tokio::task::yield_now().await;
            let page = events::newest(&mut conn, &Filter::default(), 100).await.expect("read");
            last = page.events.last().map(|event| event.what.clone()).unwrap_or_default();
            assert!(i64::try_from(page.events.len()).expect("few") >= known, "nothing that was there is hidden");
            let next = events::after(&mut conn, &Filter::default(), page.next).await.expect("read on");
            // Events of transactions that ended in the meantime may be on the next page, but no
            // event may be returned twice.
            assert!(next.events.iter().all(|event| event.cursor > page.next), "a reader continues behind the last one");
        }
        let pruned = retention::prune_events(&mut conn, Duration::from_secs(3600)).await.expect("prune");
        assert_eq!(pruned, 0, "nothing of it is taken for a copy that nobody can read");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_restore_is_told_once_and_a_cut_one_keeps_schedulers_out(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        assert_eq!(take_untold(&mut conn).await.expect("ask"), None);
        begin(&mut conn).await.expect("begin");
        let refused = fixtures::open((*pool.connect_options()).clone()).await.unwrap_err();
        assert!(matches!(refused, Error::HalfRestored), "{refused}");
        let restored = rewound(&mut conn).await;
        assert!(!under_way(&mut conn).await.expect("ask"));
        assert_eq!(take_untold(&mut conn).await.expect("ask"), Some(restored));
        assert_eq!(take_untold(&mut conn).await.expect("ask"), None);
    }
}
