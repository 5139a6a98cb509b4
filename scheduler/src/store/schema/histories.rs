//! Histories of the database: the parts of its life in which no committed transaction was lost.
//!
//! A restore, a promoted standby, and a recovery to a point in time lose transactions whose numbers
//! (identifiers, tokens, incarnations) agents and operators have seen. Therefore the database then
//! begins another history: a random number, and a floor that all new numbers exceed. So no number
//! ever means two things, and a lease's token tells in which history the lease was granted.
//!
//! A server that is promoted is reached only by new connections. Therefore each connection that can
//! write begins with [`verify`], which begins a history before another statement can take a number.

use std::sync::Arc;

use sqlx::PgConnection;
use sqlx::postgres::types::Oid;

use crate::model::{HistoryId, LeaseToken, words};
use crate::store::agents::refusals::Refusal;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::{Error, MIGRATOR, Tx};

/// A floor exceeds all known numbers by at least the distance to the next multiple of this constant.
/// Fewer numbers than this constant are lost: the constant allows for a million per second for
/// eleven days. A double can represent the floors of thousands of histories exactly.
pub(super) const LEAP: i64 = 1_000_000_000_000;
/// Each floor is a multiple of this constant, because such numbers are easy to read.
const STEP: i64 = 1_000_000;

words!(
    /// Why a history began.
    HistoryCause {
        /// The database was created.
        Created = "created",
        /// The database was restored from a backup.
        Restored = "restored",
        /// The server was promoted, or recovered to a point in time, so its timeline is new.
        Promoted = "promoted",
        /// The rows were copied to another server or database, by other means than a restore.
        Copied = "copied",
    }
);

/// The database's histories, as read when an agent's session was opened.
///
/// Later histories may be missing. A number of such a history counts as one of the newest history
/// that is known, which is no error: a message proves nothing unless the store also knows its lease.
#[derive(Debug, Clone)]
pub struct Histories(Arc<[History]>);

#[derive(Debug, Clone, Copy)]
struct History {
    id: HistoryId,
    floor: i64,
}

impl Histories {
    pub async fn load(conn: &mut PgConnection) -> Result<Self, Error> {
        let newest_first = sqlx::query_as!(History, "select id, floor from histories order by floor desc");
        Ok(Self(newest_first.all(conn).await?.into()))
    }

    /// Whether the newest history is that with this floor.
    pub fn are_current(&self, floor: i64) -> bool {
        self.0.first().is_none_or(|newest| newest.floor == floor)
    }

    /// The history in which a token was granted; `None` if there never was such a token.
    pub fn of(&self, token: LeaseToken) -> Option<HistoryId> {
        self.0.iter().find(|history| history.floor < token.get()).map(|history| history.id)
    }

    /// Whether this database may have granted the lease with this token in the history that a
    /// message names. Agents older than this field name none (0); of their messages the token alone
    /// decides.
    pub fn contain(&self, token: LeaseToken, named: i64) -> bool {
        named == 0 || self.of(token).is_none_or(|history| history.get() == named)
    }
}

/// The highest number that may have been issued before the newest history; 0 in the first history.
pub async fn floor(conn: &mut PgConnection) -> Result<i64, Error> {
    sqlx::query_scalar!(r#"select max(floor) as "floor!" from histories"#).one(conn).await
}

/// The refusal of an unknown number. If the number may have been issued in a lost history, the agent
/// is not at fault, and the refusal is [`Refusal::LostHistory`]; else it is `otherwise`.
pub fn blame(number: i64, floor: i64, otherwise: Refusal) -> Refusal {
    if (1..=floor).contains(&number) { Refusal::LostHistory } else { otherwise }
}

/// The place of a database: its server, and the part of the server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// The identifier of the server's files, which its standbys share.
    server: i64,
    timeline: i64,
    /// The number of the database on the server.
    database: i64,
}

/// The place for which the newest history was begun, and the present place.
#[derive(Debug)]
struct Places {
    /// `None` in a new database.
    known: Option<Place>,
    /// `None` on a standby.
    present: Option<Place>,
}

async fn places(conn: &mut PgConnection) -> Result<Places, Error> {
    let found = sqlx::query!(
        r#"
        select h.server, h.timeline, h.database, system_identifier as "present_server!",
               -- The timeline of the control file may still be that before a promotion. This name
               -- begins with the present one. Only a server that accepts changes has such a name.
               case when not pg_is_in_recovery()
                   then ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
               end as present_timeline,
               (select oid::bigint from pg_database where datname = current_database()) as "present_database!"
        from histories h, pg_control_system()
        order by h.floor desc
        limit 1
        "#,
    )
    .one(conn)
    .await?;
    let place =
        |(server, timeline, database)| Some(Place { server: server?, timeline: timeline?, database: database? });
    Ok(Places {
        known: place((found.server, found.timeline, found.database)),
        present: place((Some(found.present_server), found.present_timeline, Some(found.present_database))),
    })
}

/// Begins a history if the database is not where the newest history was begun. Call this for each
/// new connection before any other statement.
///
/// On a standby, the connection gets only transactions that are read-only. Otherwise it could write
/// after the standby's promotion without having begun a history.
pub async fn verify(conn: &mut PgConnection) -> Result<(), Error> {
    let Places { known, present } = places(conn).await?;
    if present.is_none() {
        return sqlx::query!("set session characteristics as transaction read only").run(conn).await;
    }
    if known == present {
        return Ok(());
    }
    let mut tx = Tx::on(conn).await?;
    lock(&mut tx).await?;
    // Another connection may have begun the history in the meantime.
    let Places { known, present } = places(&mut tx).await?;
    match (known, present) {
        (None, Some(present)) => note(&mut tx, present).await?,
        (Some(known), Some(present)) if known != present => {
            let promoted = Place { timeline: present.timeline, ..known } == present;
            let cause = if promoted { HistoryCause::Promoted } else { HistoryCause::Copied };
            let floor = begin(&mut tx, cause).await?;
            let said = sentence(known, present, floor);
            sqlx::query!("insert into events (noun, what, cause) values ('database', $1, $2)", cause.name(), said)
                .run(&mut tx)
                .await?;
            tracing::warn!(cause = cause.name(), "{said}");
        }
        _ => {}
    }
    Ok(tx.commit().await?)
}

/// What operators are told.
fn sentence(known: Place, present: Place, floor: i64) -> String {
    let where_ = match () {
        () if present.server != known.server => "the rows are on another server".to_owned(),
        () if present.database != known.database => "the rows are in another database of the server".to_owned(),
        () => format!("the server's timeline is {} after {}", present.timeline, known.timeline),
    };
    format!(
        "{where_}: what the former server committed but this one did not receive is lost; agents' reports on it are \
         refused as \"lost-history\", and new numbers are above {floor}"
    )
}

/// Keeps other connections from beginning a history. Readers are not kept out.
async fn lock(tx: &mut Tx<'_>) -> Result<(), Error> {
    sqlx::query!("lock table histories in share row exclusive mode").run(tx).await
}

/// Stores the place of a new database.
async fn note(conn: &mut PgConnection, place: Place) -> Result<(), Error> {
    sqlx::query!(
        // Databases that were made from the same template would otherwise have the same history.
        "update histories set id = default, server = $1, timeline = $2, database = $3",
        place.server,
        place.timeline,
        place.database,
    )
    .run(conn)
    .await
}

/// The names of the tables that the migrations create.
pub(super) fn tables() -> Vec<&'static str> {
    let lines = MIGRATOR.iter().flat_map(|migration| migration.sql.as_str().lines());
    lines.filter_map(|line| line.strip_prefix("create table ")?.split([' ', '(']).next()).collect()
}

/// The sequences that number the rows of Landfall's tables, and that of the log. The schema may also
/// contain sequences of other programs.
async fn sequences(conn: &mut PgConnection) -> Result<Vec<Oid>, Error> {
    sqlx::query_scalar!(
        r#"
        select s.oid from pg_class s
        where s.relkind = 'S' and s.relnamespace = current_schema()::regnamespace
          and (s.relname = 'event_offset' or exists (
              select from pg_depend d join pg_class t on t.oid = d.refobjid
              where d.objid = s.oid and d.deptype = 'i' and t.relname = any($1)
          ))
        "#,
        &tables() as _,
    )
    .all(conn)
    .await
}

/// Begins a history: makes all new numbers higher than all numbers issued before. Returns the new
/// floor. The sequences rise even if the transaction is rolled back, which
/// does no harm.
pub(super) async fn begin(tx: &mut Tx<'_>, cause: HistoryCause) -> Result<i64, Error> {
    lock(tx).await?;
    let sequences = sequences(tx).await?;
    // The random part keeps apart the numbers of two histories that continue from the same rows, for
    // example if two standbys of a server are promoted, or a backup is restored twice.
    let floor = sqlx::query_scalar!(
        r#"
        select (greatest(
                   (select max(pg_sequence_last_value(sequence)) from unnest($3::oid[]) as ours (sequence)),
                   (select max(floor) from histories), (select max(incarnation) from agents),
                   (select xact::text::bigint from events order by xact desc limit 1), 0
               ) / $1::bigint + 1) * $1::bigint + floor(random() * ($1::bigint / $2::bigint))::bigint * $2::bigint as "floor!"
        "#,
        LEAP,
        STEP,
        &sequences,
    )
    .one(tx)
    .await?;
    sqlx::query!("select setval(sequence, $1) from unnest($2::oid[]) as ours (sequence)", floor, &sequences)
        .all(tx)
        .await?;
    sqlx::query!("update agents set incarnation = $1", floor).run(tx).await?;
    let Places { present, .. } = places(tx).await?;
    sqlx::query!(
        "insert into histories (cause, floor, server, timeline, database) values ($1, $2, $3, $4, $5)",
        cause as _,
        floor,
        present.map(|place| place.server),
        present.map(|place| place.timeline),
        present.map(|place| place.database),
    )
    .run(tx)
    .await?;
    Ok(floor)
}

#[cfg(test)]
mod tests {
    use sqlx::postgres::PgPoolOptions;
    use sqlx::{AssertSqlSafe, PgPool};

    use super::*;
    use crate::model::{CrawlEnding, TaskId};
    use crate::store::agents::sessions;
    use crate::store::fixtures::{self, Conn, LeasedTask};
    use crate::store::leases::outcomes::OutcomeAnswer;

    async fn causes(conn: &mut PgConnection) -> Vec<String> {
        fixtures::scalar(conn, "select array_agg(cause::text order by floor) from histories").await
    }

    async fn newest(conn: &mut PgConnection) -> (i64, i64) {
        let rows: Vec<(i64, i64)> =
            sqlx::query_as("select id, floor from histories order by floor desc").fetch_all(conn).await.expect("read");
        rows[0]
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_promoted_server_begins_a_history_once_and_its_crawls_go_on(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        verify(&mut conn).await.expect("verify");
        verify(&mut conn).await.expect("verify");
        assert_eq!(causes(&mut conn).await, ["created"]);
        let (first, _) = newest(&mut conn).await;
        let LeasedTask { agent, session, task, .. } = fixtures::leased(&mut conn, "a").await;

        fixtures::execute(&mut conn, "update histories set timeline = timeline - 1").await;
        // Each connection of a pool finds the new timeline at the same time.
        let servers = (*pool.connect_options()).clone().into();
        let connecting = (0..4).map(|_| crate::store::connect(&servers));
        futures_util::future::try_join_all(connecting).await.expect("connect");
        assert_eq!(causes(&mut conn).await, ["created", "promoted"]);
        let told: Vec<(String,)> = fixtures::rows(&mut conn, "select what from events where noun = 'database'").await;
        assert_eq!(told, [("promoted".to_owned(),)]);

        let (second, floor) = newest(&mut conn).await;
        let histories = Histories::load(&mut conn).await.expect("load");
        let named = [(1, first), (floor, first), (floor + 1, second)];
        for (token, history) in named {
            assert_eq!(histories.of(LeaseToken::new(token)).map(HistoryId::get), Some(history));
        }
        for (token, history, expected) in
            [(1, first, true), (1, second, false), (floor + 1, first, false), (floor + 1, 7, false), (1, 0, true)]
        {
            assert_eq!(histories.contain(LeaseToken::new(token), history), expected, "{token} {history}");
        }

        // The database still knows the lease, so the agent keeps it.
        let waiting = sessions::waiting(&mut conn, agent, session).await.expect("ask");
        assert!(waiting.is_some(), "the session goes on");
        let report = |task, token| fixtures::report(task, LeaseToken::new(token), CrawlEnding::Complete);
        let lost = [report(task, 2), report(TaskId::new(task.get() + 1), 1)];
        for report in &lost {
            let answer = fixtures::record(&mut conn, agent, report).await;
            assert_eq!(answer, OutcomeAnswer::Refused(Refusal::LostHistory), "{report:?}");
        }
        let answer = fixtures::record(&mut conn, agent, &report(task, 1)).await;
        assert!(matches!(answer, OutcomeAnswer::Accepted { freed: true, .. }), "{answer:?}");

        let batch = fixtures::batch(&mut conn, "later", "random").await;
        assert_eq!(batch.get(), floor + 1);
        let site = fixtures::site(&mut conn, "later.cn").await;
        let later = fixtures::assigned(&mut conn, batch, site, agent).await;
        let granted = fixtures::grant(&mut conn, agent, session).await;
        assert_eq!(granted, [(later, LeaseToken::new(floor + 1))]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn histories_that_continue_from_the_same_rows_share_no_number(mut conn: Conn) {
        let mut begun = Vec::new();
        for _ in 0..2 {
            let mut tx = Tx::on(&mut conn).await.expect("begin");
            begin(&mut tx, HistoryCause::Promoted).await.expect("begin a history");
            begun.push(newest(&mut tx).await);
            tx.rollback().await.expect("roll back");
            // Sequences keep their values after a rollback.
            fixtures::execute(
                &mut conn,
                "select setval(oid::regclass, 1) from pg_class
                 where relkind = 'S' and relnamespace = current_schema()::regnamespace",
            )
            .await;
        }
        assert_ne!(begun[0].0, begun[1].0);
        assert_ne!(begun[0].1, begun[1].1);
        assert!(begun.iter().all(|(_, floor)| (LEAP..2 * LEAP).contains(floor)), "{begun:?}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_ordinary_role_learns_the_history_and_copied_rows_begin_another(pool: PgPool) {
        let role = "landfall_ordinary";
        let run = async |sql: String| {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.expect("run");
        };
        run(format!(
            "drop role if exists {role}; create role {role};
             revoke create on schema public from public;
             grant select, insert, update on all tables in schema public to {role};
             grant usage, select, update on all sequences in schema public to {role}"
        ))
        .await;
        let options = (*pool.connect_options()).clone().options([("role", role)]);
        let ordinary = PgPoolOptions::new().connect_with(options).await.expect("connect");
        let mut conn = ordinary.acquire().await.expect("connect");
        verify(&mut conn).await.expect("verify");
        run("update histories set server = 7".to_owned()).await;
        verify(&mut conn).await.expect("verify");
        assert_eq!(causes(&mut conn).await, ["created", "copied"]);
        drop(conn);
        ordinary.close().await;
        run(format!("drop owned by {role}; drop role {role}")).await;
    }
}
