//! Reads the facts for the status of the whole system. No statement reads all tasks or all sites.

use sqlx::PgConnection;

use crate::model::service::ServiceFacts;
use crate::status::{AgentStatus, DatabaseStatus, DiskSpace, LandmarkStatus, MapStatus, Status};

use crate::store::agents::enrolments;
use crate::store::agents::refusals::Refusal;
use crate::store::batches::totals;
use crate::store::embeddings;
use crate::store::embeddings::landmarks::{self, ChosenBy};
use crate::store::measurements::quarantines;
use crate::store::rows::Rows;
use crate::store::schedulers;
use crate::store::sites::open_circuits;
use crate::store::types::Unsigned;
use crate::store::{Error, settings};

/// The state of the system, with at most `batches` batches. Run in a transaction in which all
/// statements see one snapshot.
pub async fn read(conn: &mut PgConnection, batches: u32) -> Result<Status, Error> {
    let now = sqlx::query_scalar!(r#"select now() as "now!""#).one(conn).await?;
    let (batches, more_batches) = totals::unfinished(conn, batches).await?;
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
        open_enrolments: enrolments::open_tokens(conn).await?,
        landmarks: landmarks.collect(),
        map,
        map_alarm: quarantines::alarm(conn).await?,
        batches,
        more_batches,
        open_circuits: open_circuits::count(conn).await?,
        has_contact: settings::contact_url(conn).await?.is_some(),
    })
}

async fn database(conn: &mut PgConnection) -> Result<DatabaseStatus, Error> {
    let row = sqlx::query!(
        r#"
        select split_part(current_setting('server_version'), ' ', 1) as "version!",
               pg_database_size(current_database()) as "size!: Unsigned<u64>"
        "#
    )
    .one(conn)
    .await?;
    Ok(DatabaseStatus { version: row.version, size: row.size.0 })
}

/// All agents that were not removed, sorted by name.
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

/// The free and total space of a file system; `None` if either is unknown.
pub(in crate::store) fn disk(free: Option<Unsigned<u64>>, size: Option<Unsigned<u64>>) -> Option<DiskSpace> {
    Some(DiskSpace { free: free?.0, size: size?.0 })
}
