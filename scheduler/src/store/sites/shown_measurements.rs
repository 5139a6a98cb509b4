//! Reads the measurements and the placement of a site, as the details of the site show them.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::gnp::Placement;
use crate::model::Rtt;
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::sites::by_name::Site;
use crate::store::types::Micros;

/// One prober's measurement of a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteMeasurement {
    pub prober: String,
    /// The statistical weighted mean of the samples. `None`, like `min` and `median`, if no sample
    /// was answered.
    pub rtt: Option<Rtt>,
    pub min: Option<Rtt>,
    pub median: Option<Rtt>,
    pub spread: Option<Micros>,
    pub answered: u32,
    pub lost: u32,
    pub address: Option<String>,
    /// Why the measurement failed.
    pub failure: Option<String>,
    /// The site that was measured instead; `None` if this site was measured.
    pub shared_from: Option<String>,
    /// Number of requests that the prober sent to the site, in all measurements.
    pub requests: u64,
    pub measured_at: DateTime<Utc>,
    /// Whether the site was measured for a confirmation.
    pub confirming: bool,
}

/// The newest measurement by each prober, sorted by the prober's name.
pub async fn measurements(conn: &mut PgConnection, site: &Site) -> Result<Vec<SiteMeasurement>, Error> {
    let measurements = sqlx::query_as!(
        SiteMeasurement,
        r#"
        select distinct on (a.name) a.name as prober, m.rtt_us as rtt, m.min_us as min, m.median_us as median, m.spread_us as spread,
               m.answered, m.lost, host(m.address) as address, m.failure, m.shared_from, m.requests, m.measured_at,
               c.site_id is not null as "confirming!"
        from site_measurements m join agents a on a.id = m.prober_id
        left join confirming_measurements c on c.site_id = m.site_id and c.prober_id = m.prober_id
        where m.site_id = any($1)
        order by a.name, m.measured_at desc
        "#,
        &site.ids() as _,
    );
    measurements.all(conn).await
}

/// The site's placement in the newest embedding in which the site is located.
pub async fn placement(conn: &mut PgConnection, site: &Site) -> Result<Option<Placement>, Error> {
    let placement = sqlx::query_as!(
        Placement,
        "select epoch, coordinate, fit_error from site_placements where site_id = any($1) order by epoch desc limit 1",
        &site.ids() as _,
    );
    placement.optional(conn).await
}
