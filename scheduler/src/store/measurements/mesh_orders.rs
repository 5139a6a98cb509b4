//! Orders those measurements of agents' beacons that are missing or outdated, landmarks first.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::AgentId;
use crate::store::Error;
use crate::store::measurements::reach::MESH_RETRY;
use crate::store::rows::Rows;
use crate::store::types::Interval;

/// Settings for measurements of the mesh.
#[derive(Debug, Clone, Copy)]
pub struct MeshPlan {
    /// Age at which a round trip is measured again.
    pub max_age: Duration,
    /// Maximum number of other agents that each agent measures besides the landmarks.
    pub max_peers: u32,
    /// Maximum number of an agent's open beacon orders.
    pub max_orders: u32,
    pub lifetime: Duration,
}

/// The result of [`order_mesh`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshOrders {
    /// The prober of each new order.
    pub probers: Vec<AgentId>,
    /// Whether more measurements are due than were ordered, because a prober already has the
    /// maximum number of open orders.
    pub more_due: bool,
}

/// Orders those beacon measurements between connected agents that are missing or outdated. A prober
/// measures landmarks before other agents.
pub async fn order_mesh(conn: &mut PgConnection, plan: &MeshPlan) -> Result<MeshOrders, Error> {
    sqlx::query_as!(
        MeshOrders,
        r#"
        with connected as (
            select agents.id, beacon_url is not null as has_beacon, landmarks.agent_id is not null as is_landmark,
                   sessions.opened_at
            from agents
            join sessions on sessions.agent_id = agents.id and sessions.state = 'active'
            left join landmarks on landmarks.agent_id = agents.id
        ), pairs as (
            select prober.id as prober_id, target.id as agent_id, target.is_landmark,
                   greatest(prober.opened_at, target.opened_at) as both_there_at,
                   -- The order is the same in every pass, and different for each prober.
                   row_number() over (
                       partition by prober.id, target.is_landmark
                       order by hashint8extended(target.id, prober.id), target.id
                   ) as peer
            from connected prober join connected target on target.id <> prober.id and target.has_beacon
        ), due as (
            select pairs.prober_id, pairs.agent_id,
                   row_number() over (partition by pairs.prober_id order by is_landmark desc, peer) as place
            from pairs
            left join mesh_measurements known using (prober_id, agent_id)
            where (pairs.is_landmark or pairs.peer <= $3)
              and (known.measured_at is null
                   or known.measured_at < now() - case when known.rtt_us is null then $2::interval else $1 end
                   -- A repaired agent was restarted, so a failure is due after a new session.
                   or known.rtt_us is null and known.measured_at < pairs.both_there_at)
              and not exists (
                  select from measurement_orders open
                  where open.prober_id = pairs.prober_id and open.agent_id = pairs.agent_id
              )
        ), ordered as (
            insert into measurement_orders (prober_id, agent_id, expires_at)
            select prober_id, agent_id, now() + $5::interval
            from due
            where place <= $4 - (
                select count(*) from measurement_orders open
                where open.prober_id = due.prober_id and open.agent_id is not null
            )
            on conflict do nothing
            returning prober_id
        )
        select array(select prober_id from ordered) as "probers!: Vec<AgentId>",
               (select count(*) from due) > (select count(*) from ordered) as "more_due!"
        "#,
        Interval(plan.max_age),
        Interval(MESH_RETRY),
        i64::from(plan.max_peers),
        i64::from(plan.max_orders),
        Interval(plan.lifetime),
    )
    .one(conn)
    .await
}
