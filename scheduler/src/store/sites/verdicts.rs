//! Verdicts on sites: whether a site stands in one place or several, with confidence and evidence.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::SiteId;

use super::Site;
use crate::store::Error;
use crate::store::rows::{Rows, Statement};

/// A site that may stand in several places.
#[derive(Debug, Clone, PartialEq)]
pub struct SuspectedSite {
    /// The confidence, from 0 to 1; 1 is certain.
    pub confidence: f64,
    /// The evidence in words; never empty.
    pub evidence: String,
}

/// Stores verdicts, replacing earlier ones. `None` means that the site stands in one place.
pub async fn upsert(conn: &mut PgConnection, judged: &[(SiteId, Option<SuspectedSite>)]) -> Result<(), Error> {
    let sites: Vec<i64> = judged.iter().map(|(site, _)| site.get()).collect();
    let confidence =
        |(_, suspicion): &(SiteId, Option<SuspectedSite>)| suspicion.as_ref().map_or(0.0, |one| one.confidence);
    let confidences: Vec<f64> = judged.iter().map(confidence).collect();
    let evidence: Vec<String> = judged
        .iter()
        .map(|(_, suspicion)| suspicion.as_ref().map(|one| one.evidence.clone()).unwrap_or_default())
        .collect();
    sqlx::query!(
        r#"
        insert into site_verdicts (site_id, suspect, confidence, evidence)
        select site_id, evidence <> '', confidence, evidence
        from unnest($1::bigint[], $2::double precision[], $3::text[]) as judged (site_id, confidence, evidence)
        order by site_id
        on conflict (site_id) do update
        set suspect = excluded.suspect, confidence = excluded.confidence, evidence = excluded.evidence, judged_at = now()
        "#,
        &sites,
        &confidences,
        &evidence,
    )
    .run(conn)
    .await
}

/// Of these sites, returns those that may stand in several places.
pub async fn suspicions(conn: &mut PgConnection, sites: &[SiteId]) -> Result<HashMap<SiteId, SuspectedSite>, Error> {
    let rows = sqlx::query!(
        "select site_id, confidence, evidence from site_verdicts where site_id = any($1) and suspect",
        sites as _,
    )
    .all(conn)
    .await?;
    let suspicion = |confidence, evidence| SuspectedSite { confidence, evidence };
    Ok(rows.into_iter().map(|row| (row.site_id, suspicion(row.confidence, row.evidence))).collect())
}

/// The newest verdict on a site or, for an alias, on the site to which the alias points. `None` if
/// the site has not been judged, `Some(None)` if it stands in one place.
pub async fn of_site(conn: &mut PgConnection, site: &Site) -> Result<Option<Option<SuspectedSite>>, Error> {
    let row = sqlx::query!(
        r#"
        select suspect, confidence, evidence from site_verdicts where site_id = any($1)
        order by judged_at desc limit 1
        "#,
        &site.ids() as _,
    )
    .optional(conn)
    .await?;
    Ok(row.map(|row| row.suspect.then_some(SuspectedSite { confidence: row.confidence, evidence: row.evidence })))
}
