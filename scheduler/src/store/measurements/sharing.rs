//! Which agents share one measurement between the sites at an address. The table
//! `address_disagreements` stores the addresses at which an agent measured two sites and found
//! different round trips, although it could have shared one measurement.
//!
//! An agent that found different round trips for sites at one address shares no measurement at that
//! address for `NOT_SHARED_FOR`. If `ENOUGH` agents that are not quarantined report a difference,
//! no agent shares measurements at that address. So one lying or slow agent can end only its own
//! sharing, and other agents still share. Two lying agents can end all sharing, but only at the
//! addresses that they report.

use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::AgentId;
use crate::store::Error;
use crate::store::rows::Statement;
use crate::store::types::Interval;

/// Time for which the sites at an address are measured one by one after a disagreement. It is
/// longer than the time for which agents remember their measurements.
pub(in crate::store) const NOT_SHARED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Number of agents that must report a disagreement before all agents stop sharing. One agent is
/// not enough, because it may err for a local reason.
pub(in crate::store) const ENOUGH: i64 = 2;

/// Stores that an agent found different round trips for sites at one address.
pub(super) async fn note_disagreement(conn: &mut PgConnection, address: IpAddr, prober: AgentId) -> Result<(), Error> {
    sqlx::query!(
        r#"
        insert into address_disagreements (address, prober_id) values ($1, $2)
        on conflict (address, prober_id) do update set seen_at = excluded.seen_at
        "#,
        address,
        prober.get(),
    )
    .run(conn)
    .await
}

/// Deletes disagreements that are too old to be considered.
pub async fn prune_disagreements(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!("delete from address_disagreements where seen_at <= now() - $1::interval", Interval(NOT_SHARED_FOR),)
        .run(conn)
        .await
}
