//! Reads the data for the status of the whole system. No statement reads all tasks or all sites.

use sqlx::PgConnection;

use crate::model::ServiceFacts;
use crate::status::{AgentStatus, BatchStatus, DatabaseStatus, LandmarkStatus, MapStatus, Status};
use crate::throughput::{self, RATE_WINDOW};

use crate::store::agents::issued_tokens;
use crate::store::agents::refusals::Refusal;
use crate::store::embeddings::landmarks::{self, ChosenBy};
use crate::store::embeddings::{self};
use crate::store::measurements::quarantines_and_contradictions;
use crate::store::rows_and_errors::Rows;
use crate::store::schedulers::{self, disk};
use crate::store::sites::open_circuits;
use crate::store::types::{Interval, Millis, Unsigned};
use crate::store::{Error, Snapshot, settings};

/// The state of the system, with at most `batches` batches.
pub async fn read(conn: &mut Snapshot, batches: u32) -> Result<Status, Error> {
    let now = sqlx::query_scalar!(r#"select now() as "now!""#).one(conn).await?;
    let (batches, more_batches) = unfinished(conn, batches).await?;
    let map = embeddings::history(conn, 1).await?.pop().map(|epoch| MapStatus {
        epoch: epoch.epoch.get(),
        fitted_at: epoch.fitted_at,
        error: epoch.mesh_error,
        agents: epoch.agents,
        landmarks: epoch.landmarks,
        dimensions: epoch.dimensions,
    });
    let landmarks = landmarks::list(conn).await?.into_iter().map(|landmark| LandmarkStatus {
        name: landmark.name,
        by_hand: landmark.by == ChosenBy::Hand,
        away_for: landmark.away_for,
    });
    Ok(Status {
        now,
        schedulers: schedulers::list(conn).await?,
        database: database(conn).await?,
        agents: agents(conn).await?,
        open_enrolments: issued_tokens::open_tokens(conn).await?,
        landmarks: landmarks.collect(),
        map,
        map_alarm: quarantines_and_contradictions::alarm(conn).await?,
        batches,
        more_batches,
        open_circuits: open_circuits::count(conn).await?,
        has_contact: settings::contact_url(conn).await?.is_some(),
    })
}

/// Returns at most `limit` batches with open tasks, the newest first, and the number of batches
/// omitted. Does not compute the remaining times ([`BatchStatus::estimate`]).
pub async fn unfinished(conn: &mut PgConnection, limit: u32) -> Result<(Vec<BatchStatus>, u64), Error> {
    let rows = sqlx::query!(
        r#"
        with unfinished as (
            select b.id, b.name, b.strategy, b.created_at, b.max_duration_ms, p.*, count(*) over () as all_unfinished
            from batch_progress p join batches b on b.id = p.batch_id
            where p.submitted + p.measuring + p.located + p.assigned + p.leased > 0
            order by b.id desc
            limit $1
        )
        select u.id as "id!", u.name as "name!", u.strategy as "strategy!", u.all_unfinished as "all!: Unsigned<u64>",
               u.submitted + u.measuring + u.located + u.assigned + u.leased as "open!: Unsigned<u64>",
               u.done + u.failed + u.cancelled as "ended!: Unsigned<u64>", u.failed as "failed!: Unsigned<u64>",
               u.leased as "leased!: Unsigned<u64>",
               u.held_unmet as "unmet!: Unsigned<u64>",
               coalesce(recent.crawls, 0)::float8 as "crawls!", coalesce(recent.bytes, 0)::float8 as "bytes!",
               recent.since as "since: Interval", u.max_duration_ms as "max_duration_ms!: Millis",
               -- The end of the present minute is in the future, so the difference may be negative.
               greatest(now() - coalesce(
                   (select max(at) from batch_changes where batch_id = u.id and crawls > 0),
                   (select max(minute) + interval '1 minute' from batch_minutes where batch_id = u.id), u.created_at
               ), interval '0') as "idle!: Interval"
        from unfinished u
        left join lateral (
            select sum(crawls) as crawls, sum(bytes) as bytes, now() - greatest(min(minute), now() - $2::interval) as since
            from (
                select minute, crawls, bytes from batch_minutes
                where batch_id = u.id and minute > now() - $2::interval
                union all
                select date_trunc('minute', at), crawls, bytes from batch_changes
                where batch_id = u.id and crawls > 0 and at > now() - $2::interval
            ) parts
        ) recent on true
        order by u.id desc
        "#,
        i64::from(limit),
        Interval(RATE_WINDOW),
    )
    .all(conn)
    .await?;
    let all = rows.first().map_or(0, |row| row.all.0);
    let batches: Vec<BatchStatus> = rows
        .into_iter()
        .map(|row| {
            let window = row.since.unwrap_or_default().0;
            let per_minute = |amount: f64| throughput::per_minute(amount, window).filter(|rate| *rate > 0.0);
            BatchStatus {
                id: row.id,
                name: row.name,
                strategy: row.strategy,
                sites: row.open.0 + row.ended.0,
                ended: row.ended.0,
                failed: row.failed.0,
                crawling: row.leased.0,
                unmet: row.unmet.0,
                sites_per_minute: per_minute(row.crawls),
                megabytes_per_minute: per_minute(row.bytes / throughput::BYTES_PER_MEGABYTE),
                idle: row.idle.0,
                max_duration: row.max_duration_ms.0,
                estimate: None,
            }
        })
        .collect();
    let more = all.saturating_sub(u64::try_from(batches.len()).unwrap_or(u64::MAX));
    Ok((batches, more))
}

async fn database(conn: &mut PgConnection) -> Result<DatabaseStatus, Error> {
    let row = sqlx::query!(
        r#"
        select split_part(current_setting('server_version'), ' ', 1) as "version!",
               pg_database_size(current_database()) as "size!: Unsigned<u64>",
               -- The setting of the server, because this transaction itself is read-only.
               pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean as "read_only!"
        "#
    )
    .one(conn)
    .await?;
    Ok(DatabaseStatus { version: row.version, size: row.size.0, read_only: row.read_only })
}

/// All agents that have not been removed, sorted by name.
async fn agents(conn: &mut PgConnection) -> Result<Vec<AgentStatus>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.name, a.capacity, a.version, a.incarnation > 0 as "known!", a.draining_since is not null as "draining!",
               s.id is not null and s.disconnected_at is null as "connected!", s.paused as "paused?",
               s.clock_ahead_s as "clock_ahead_s?", s.disk_free as "disk_free?: Unsigned<u64>",
               s.disk_size as "disk_size?: Unsigned<u64>",
               (select q.reason from quarantines q where q.agent_id = a.id and q.released_at is null) as quarantined,
               (select count(*) from leases l where l.agent_id = a.id and l.state = 'active') as "leases!: Unsigned<u32>",
               exists (
                   select from refusals r
                   where r.agent_id = a.id and r.kind = $1 and r.last_at > now() - interval '2 minutes'
               ) as "has_twin!",
               -- The limits make Postgres look up an agent's rows, instead of reading the mesh.
               s.id is not null and a.beacon_url is not null
                   and (
                       select m.agent_id from mesh_measurements m
                       where m.agent_id = a.id and m.rtt_us is not null limit 1
                   ) is null
                   and (select m.agent_id from mesh_measurements m where m.agent_id = a.id limit 1) is not null as "unreached!"
        from agents a
        left join sessions s on s.agent_id = a.id and s.state = 'active'
        where a.removed_at is null
        order by a.name
        "#,
        Refusal::Twin,
    )
    .all(conn)
    .await?;
    let agents = rows.into_iter().map(|row| {
        let facts = ServiceFacts {
            removed: false,
            draining: row.draining,
            leased: row.leases.0 > 0,
            known: row.known,
            connected: row.connected,
            paused: row.paused.is_some(),
            quarantined: row.quarantined.is_some(),
        };
        AgentStatus {
            name: row.name,
            service: facts.state(),
            connected: row.connected,
            slots: row.capacity.0,
            leases: row.leases.0,
            version: row.version,
            paused: row.paused,
            quarantined: row.quarantined,
            clock_ahead_s: row.clock_ahead_s,
            disk: disk(row.disk_free, row.disk_size),
            has_twin: row.has_twin,
            unreached: row.unreached,
        }
    });
    Ok(agents.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn only_batches_with_open_tasks_are_unfinished_and_a_limit_counts_the_others(mut conn: Conn) {
        for name in ["ended", "old", "new"] {
            let batch = fixtures::batch(&mut conn, name, "random").await;
            let site = fixtures::site(&mut conn, &format!("{name}.cn")).await;
            let state = if name == "ended" { "cancelled" } else { "submitted" };
            fixtures::task(&mut conn, batch, site, state).await;
        }
        let (listed, more) = unfinished(&mut conn, 1).await.expect("read");
        assert_eq!((listed[0].name.as_str(), listed.len(), more), ("new", 1, 1));
    }
}
