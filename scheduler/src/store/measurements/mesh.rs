//! The mesh: each agent's newest measurement of each other agent's beacon.

use sqlx::PgConnection;

use crate::gnp::Mesh;
use crate::model::{AgentId, Rtt};
use crate::store::Error;
use crate::store::measurements::results_and_failures::{self, MeasurementResult, ResultColumns};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Unsigned, whole};

/// One agent's measurement of another agent's beacon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeshMeasurement {
    pub prober: AgentId,
    pub target: AgentId,
    pub rtt: Rtt,
}

impl FromIterator<MeshMeasurement> for Mesh {
    fn from_iter<I: IntoIterator<Item = MeshMeasurement>>(measured: I) -> Self {
        let mut mesh = Self::new();
        measured.into_iter().for_each(|pair| mesh.insert(pair.prober, pair.target, pair.rtt));
        mesh
    }
}

/// The progress of the agents' measurements of each other. The two directions between two agents
/// count as two pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// Number of pairs that were measured, successfully or not.
    pub measured: u64,
    /// Number of pairs to be measured.
    pub pairs: u64,
}

pub(super) async fn upsert_beacon(
    conn: &mut PgConnection,
    prober: AgentId,
    target: AgentId,
    result: &MeasurementResult,
) -> Result<(), Error> {
    let columns = ResultColumns::from(result);
    let failure = result.as_ref().err();
    sqlx::query!(
        r#"
        insert into mesh_measurements (prober_id, agent_id, rtt_us, answered, lost, failure,
                                       cause, said, failed_at, reached_us, reached_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, case when $7::probe_failure is not null then now() end,
                $3, case when $3::bigint is not null then now() end)
        on conflict (prober_id, agent_id) do update
        set rtt_us = excluded.rtt_us, answered = excluded.answered, lost = excluded.lost,
            failure = excluded.failure, measured_at = excluded.measured_at,
            -- A failure keeps the last success, and a success keeps the last failure.
            cause = coalesce(excluded.cause, mesh_measurements.cause),
            said = coalesce(excluded.said, mesh_measurements.said),
            failed_at = coalesce(excluded.failed_at, mesh_measurements.failed_at),
            reached_us = coalesce(excluded.reached_us, mesh_measurements.reached_us),
            reached_at = coalesce(excluded.reached_at, mesh_measurements.reached_at)
        "#,
        prober.get(),
        target.get(),
        columns.rtt,
        columns.answered,
        columns.lost,
        columns.failure,
        failure.map(|failure| failure.cause) as Option<results_and_failures::Cause>,
        failure.map(|failure| failure.said.as_str()),
    )
    .run(conn)
    .await
}

/// All round trips between agents, except those measured by quarantined agents.
pub async fn mesh(conn: &mut PgConnection) -> Result<Vec<MeshMeasurement>, Error> {
    mesh_of(conn, Reporters::Believed).await
}

/// The round trips among these agents, without those measured by quarantined agents.
pub async fn mesh_among(conn: &mut PgConnection, agents: &[AgentId]) -> Result<Vec<MeshMeasurement>, Error> {
    let agents: Vec<i64> = agents.iter().map(|agent| agent.get()).collect();
    let mesh = sqlx::query_as!(
        MeshMeasurement,
        r#"
        select m.prober_id as prober, m.agent_id as target, m.rtt_us as "rtt!"
        from unnest($1::bigint[]) as prober (id)
        cross join unnest($1::bigint[]) as target (id)
        join mesh_measurements m on m.prober_id = prober.id and m.agent_id = target.id
        where m.rtt_us is not null
          and prober.id not in (select q.agent_id from quarantines q where q.released_at is null)
        "#,
        &agents,
    );
    mesh.all(conn).await
}

/// All round trips between agents, including those measured by quarantined agents. Used to judge
/// which agents are trusted.
pub async fn mesh_of_all(conn: &mut PgConnection) -> Result<Vec<MeshMeasurement>, Error> {
    mesh_of(conn, Reporters::All).await
}

/// Selects measurements by their probers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reporters {
    Believed,
    All,
}

async fn mesh_of(conn: &mut PgConnection, reporters: Reporters) -> Result<Vec<MeshMeasurement>, Error> {
    let mesh = sqlx::query_as!(
        MeshMeasurement,
        r#"
        select prober_id as prober, agent_id as target, rtt_us as "rtt!" from mesh_measurements
        where rtt_us is not null
          and ($1 or prober_id not in (select q.agent_id from quarantines q where q.released_at is null))
        order by prober_id, agent_id
        "#,
        reporters == Reporters::All,
    );
    mesh.all(conn).await
}

/// Whether any of these probers has never tried to measure another agent among these targets.
pub async fn has_gap(conn: &mut PgConnection, probers: &[AgentId], targets: &[AgentId]) -> Result<bool, Error> {
    sqlx::query_scalar!(
        r#"
        select exists (
            select from unnest($1::bigint[]) as prober (id)
            cross join unnest($2::bigint[]) as target (id)
            where prober.id <> target.id
              and not exists (
                  select from mesh_measurements tried where tried.prober_id = prober.id and tried.agent_id = target.id
              )
        ) as "has_gap!"
        "#,
        probers as _,
        targets as _,
    )
    .one(conn)
    .await
}

/// The coverage of the mesh among these agents, if each agent measures at most `peers` others.
pub async fn coverage(conn: &mut PgConnection, agents: &[AgentId], peers: u32) -> Result<Coverage, Error> {
    let others = agents.len().saturating_sub(1).min(usize::try_from(peers).unwrap_or(usize::MAX));
    let measured = sqlx::query_scalar!(
        r#"
        select coalesce(sum(least(rows_of_one, $2)), 0)::bigint as "measured!: Unsigned<u64>"
        from (
            select count(*) as rows_of_one from mesh_measurements
            where prober_id = any($1) and agent_id = any($1)
            group by prober_id
        ) by_prober
        "#,
        agents as _,
        whole::<i64, _>(others),
    )
    .one(conn)
    .await?;
    let pairs = others.saturating_mul(agents.len());
    Ok(Coverage { measured: measured.0, pairs: u64::try_from(pairs).unwrap_or(u64::MAX) })
}
