//! Disagreements: addresses whose sites an agent found to differ although it would have shared a measurement between them.
//!
//! Invariants: for `NOT_SHARED_FOR` the agent that says so shares nothing there, and nobody does once `ENOUGH` agents that
//! are not quarantined say so. So an agent that lies or is slow costs the sites what it would cost them without sharing, and
//! makes nobody else cost more; two that lie end the sharing at the addresses they name.

use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::AgentId;

use super::Error;
use super::rows::Statement;
use super::types::Interval;

/// So long the sites of an address that differ are measured one by one. Longer than any agent remembers what it measured.
pub(super) const NOT_SHARED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Agents whose word holds for all: one may be wrong for a reason of its own.
pub(super) const ENOUGH: i64 = 2;

/// Notes that an agent found the sites at an address to differ.
pub(super) async fn note(conn: &mut PgConnection, address: IpAddr, prober: AgentId) -> Result<(), Error> {
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

/// Forgets what is too old to count.
pub async fn prune(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!("delete from address_disagreements where seen_at <= now() - $1::interval", Interval(NOT_SHARED_FOR),)
        .run(conn)
        .await
}
