//! Stores the report that answers a measurement order, and ends the order. A report without an open
//! order is ignored.

use sqlx::{Connection, PgConnection};

use crate::model::{AgentId, OrderId, SiteId};
use crate::store::Error;
use crate::store::measurements::measurement_report::{MeasurementReport, ReportContent};
use crate::store::measurements::mesh::upsert_beacon;
use crate::store::measurements::of_sites;
use crate::store::rows::Rows;
use crate::store::sites::origins_and_aliases;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportTarget {
    /// The measured site or, if the reported origin shows that this site is an alias, the site to
    /// which the alias points.
    Site(SiteId),
    Beacon(AgentId),
    /// The agent has no open order with the reported identifier: the report is late, repeated, or
    /// about another agent's order. The report changed nothing.
    Unknown,
}

/// Stores the answer to a measurement order, and ends the order. If the target is a site, also
/// stores the origin that the prober observed.
pub async fn record(
    conn: &mut PgConnection,
    agent: AgentId,
    order: OrderId,
    report: &MeasurementReport,
) -> Result<ReportTarget, Error> {
    let mut tx = conn.begin().await?;
    let answered = sqlx::query!(
        "delete from measurement_orders where id = $1 and prober_id = $2
         returning site_id, agent_id, address is not null as \"had_turn!\"",
        order.get(),
        agent.get(),
    )
    .optional(&mut tx)
    .await?;
    let had_turn = answered.as_ref().is_some_and(|row| row.had_turn);
    let target = answered.map(|row| (row.site_id, row.agent_id));
    let recorded = match target {
        Some((Some(site), _)) => {
            of_sites::upsert(&mut tx, site, agent, had_turn, report).await?;
            let site = match &report.origin {
                Some(origin) => origins_and_aliases::settle(&mut tx, site, origin).await?,
                None => site,
            };
            ReportTarget::Site(site)
        }
        Some((None, Some(target))) => {
            if let ReportContent::Measured { result, .. } = &report.finding {
                upsert_beacon(&mut tx, agent, target, result).await?;
            }
            ReportTarget::Beacon(target)
        }
        Some((None, None)) | None => ReportTarget::Unknown,
    };
    tx.commit().await?;
    Ok(recorded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use std::time::Duration;

    use crate::model::Rtt;
    use crate::store::fixtures::{self, Conn};
    use crate::store::measurements::measurement_result::{Measured, MeasurementResult};

    fn measured() -> MeasurementResult {
        let rtt = Rtt::try_from_micros(12_345).expect("a round trip");
        Ok(Measured { rtt, min: rtt, median: rtt, spread: Duration::from_micros(7), answered: 5, lost: 1 })
    }

    fn report(result: MeasurementResult, origin: Option<&str>, address: Option<IpAddr>) -> MeasurementReport {
        MeasurementReport { origin: origin.map(str::to_owned), address, ..result.into() }
    }

    async fn order(conn: &mut PgConnection, prober: AgentId, site: SiteId) -> OrderId {
        let id: i64 = sqlx::query_scalar(
            "insert into measurement_orders (prober_id, site_id, expires_at) values ($1, $2, now() + interval '1 hour')
             returning id",
        )
        .bind(prober.get())
        .bind(site.get())
        .fetch_one(conn)
        .await
        .expect("insert an order");
        OrderId::new(id)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_report_counts_once_and_only_for_whom_it_was_ordered_from(mut conn: Conn) {
        let (ours, other) = (fixtures::agent(&mut conn, "a").await, fixtures::agent(&mut conn, "b").await);
        let site = fixtures::site(&mut conn, "a.cn").await;
        let order = order(&mut conn, ours, site).await;
        let address: IpAddr = "2001:db8::1".parse().expect("an address");

        let stolen =
            record(&mut conn, other, order, &report(measured(), Some("https://evil:443"), None)).await.expect("record");
        assert_eq!(stolen, ReportTarget::Unknown);
        assert!(of_sites(&mut conn, &[site]).await.expect("read").is_empty());

        let first = report(measured(), Some("https://a.cn"), Some(address));
        let first = record(&mut conn, ours, order, &first).await.expect("record");
        assert_eq!(first, ReportTarget::Site(site));
        let known = of_sites(&mut conn, &[site]).await.expect("read");
        assert_eq!(known[&site], [(ours, Rtt::try_from_micros(12_345).expect("a round trip"))]);

        let repeat = record(&mut conn, ours, order, &Err("late".into()).into()).await.expect("record");
        assert_eq!(repeat, ReportTarget::Unknown, "the order was answered");
        assert_eq!(of_sites(&mut conn, &[site]).await.expect("read"), known);
        let stored: (String, String) =
            sqlx::query_as("select origin, host(site_measurements.address) from sites, site_measurements")
                .fetch_one(&mut *conn)
                .await
                .expect("read");
        assert_eq!(stored, ("https://a.cn".into(), "2001:db8::1".into()));
    }
}
