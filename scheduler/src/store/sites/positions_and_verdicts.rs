//! Where sites are: positions from submitted lists and from a file that maps addresses to
//! positions, and verdicts whether a site stands in one place or several.
//!
//! Positions from lists take precedence.

use std::collections::HashMap;
use std::net::IpAddr;

use sqlx::PgConnection;

use crate::gnp::SuspectedSite;
use crate::model::SiteId;
use crate::model::geo::Position;
use crate::model::site_name::SiteName;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::sites::Site;
use crate::store::{Error, position};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    List,
    /// A file that maps addresses to positions.
    Geoip,
}

impl Source {
    /// The source's name, as stored and as shown to operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Geoip => "geoip",
        }
    }
}

/// Maximum number of rows that one statement stores.
const CHUNK: usize = 10_000;

/// Stores positions from a list, which replace the positions from earlier lists. The position of an
/// alias is stored for the site to which the alias points.
pub async fn listed(conn: &mut PgConnection, listed: &[(SiteName, Position)]) -> Result<(), Error> {
    for chunk in listed.chunks(CHUNK) {
        let names: Vec<String> = chunk.iter().map(|(name, _)| name.as_str().to_owned()).collect();
        let latitudes: Vec<f64> = chunk.iter().map(|(_, position)| position.latitude()).collect();
        let longitudes: Vec<f64> = chunk.iter().map(|(_, position)| position.longitude()).collect();
        sqlx::query!(
            r#"
            with said as (
                select distinct on (n.id) n.id, l.latitude, l.longitude
                from unnest($1::text[], $2::double precision[], $3::double precision[]) with ordinality
                    as l (name, latitude, longitude, place)
                cross join lateral (select coalesce(alias_of, id) as id from sites where name = l.name limit 1) n
                order by n.id, l.place
            ), held as (
                -- Locks the sites in one order, so that concurrent lists do not deadlock.
                select s.id, said.latitude, said.longitude from sites s join said on said.id = s.id
                where (s.latitude, s.longitude, s.position_source) is distinct from (said.latitude, said.longitude, 'list')
                order by s.id
                for no key update of s
            )
            update sites s set latitude = held.latitude, longitude = held.longitude, position_source = 'list'
            from held where s.id = held.id
            "#,
            &names,
            &latitudes,
            &longitudes,
        )
        .run(conn)
        .await?;
    }
    Ok(())
}

/// Of these sites, returns those without a position from a list, each with the address to which its
/// name resolves at the nearest prober.
pub async fn unlisted(conn: &mut PgConnection, sites: &[SiteId]) -> Result<Vec<(SiteId, IpAddr)>, Error> {
    let rows = sqlx::query!(
        r#"
        select distinct on (m.site_id) m.site_id, m.address as "address!"
        from site_measurements m join sites s on s.id = m.site_id
        where m.site_id = any($1) and m.address is not null and s.position_source is distinct from 'list'
        order by m.site_id, m.rtt_us nulls last, m.prober_id
        "#,
        sites as _,
    )
    .all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.site_id, row.address)).collect())
}

/// Stores positions that were looked up in a file by address, except for sites that have a position
/// from a list.
pub async fn looked_up(conn: &mut PgConnection, found: &[(SiteId, Position)]) -> Result<(), Error> {
    let sites: Vec<i64> = found.iter().map(|(site, _)| site.get()).collect();
    let latitudes: Vec<f64> = found.iter().map(|(_, position)| position.latitude()).collect();
    let longitudes: Vec<f64> = found.iter().map(|(_, position)| position.longitude()).collect();
    sqlx::query!(
        r#"
        with found as (
            select * from unnest($1::bigint[], $2::double precision[], $3::double precision[]) as f (id, latitude, longitude)
        ), held as (
            select s.id from sites s join found on found.id = s.id
            where s.position_source is distinct from 'list'
              and (s.latitude, s.longitude) is distinct from (found.latitude, found.longitude)
            order by s.id
            for no key update of s
        )
        update sites s set latitude = found.latitude, longitude = found.longitude, position_source = 'geoip'
        from found, held
        where found.id = held.id and s.id = held.id and s.position_source is distinct from 'list'
        "#,
        &sites,
        &latitudes,
        &longitudes,
    )
    .run(conn)
    .await
}

/// Positions of sites, with the source of each. Sites without a position are absent.
pub async fn of_sites(conn: &mut PgConnection, sites: &[SiteId]) -> Result<HashMap<SiteId, (Position, Source)>, Error> {
    let rows = sqlx::query!(
        r#"
        select id, latitude, longitude, position_source = 'list' as "listed!" from sites
        where id = any($1) and position_source is not null
        "#,
        sites as _,
    )
    .all(conn)
    .await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in rows {
        let source = if row.listed { Source::List } else { Source::Geoip };
        if let Some(position) = position("sites", row.latitude, row.longitude)? {
            found.insert(row.id, (position, source));
        }
    }
    Ok(found)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_list_counts_more_than_a_file_and_the_newest_list_most(mut conn: Conn) {
        let place = |latitude: f64| Position::try_new(latitude, 20.0).expect("a position");
        let (site, other) = (fixtures::site(&mut conn, "a.cn").await, fixtures::site(&mut conn, "b.cn").await);
        let agents = [fixtures::agent(&mut conn, "far").await, fixtures::agent(&mut conn, "near").await];
        for (agent, micros, address) in [(agents[0], 9000, "10.0.0.1"), (agents[1], 1000, "10.0.0.2")] {
            sqlx::query(
                "insert into site_measurements (site_id, prober_id, rtt_us, answered, lost, address) values ($1, $2, $3, 1, 0, $4::inet)",
            )
            .bind(site.get())
            .bind(agent.get())
            .bind(micros)
            .bind(address)
            .execute(&mut *conn)
            .await
            .expect("a measurement");
        }
        let known = async |conn: &mut PgConnection| of_sites(conn, &[site, other]).await.expect("read");
        assert_eq!(known(&mut conn).await, HashMap::new());
        let seen = unlisted(&mut conn, &[site, other]).await.expect("read");
        assert_eq!(seen, [(site, IpAddr::from([10, 0, 0, 2]))], "as the nearest prober sees it");
        looked_up(&mut conn, &[(site, place(1.0))]).await.expect("store");
        assert_eq!(known(&mut conn).await, HashMap::from([(site, (place(1.0), Source::Geoip))]));
        for latitude in [2.0, 3.0] {
            listed(&mut conn, &[("a.cn".parse().expect("a name"), place(latitude))]).await.expect("store");
        }
        assert_eq!(unlisted(&mut conn, &[site]).await.expect("read"), []);
        looked_up(&mut conn, &[(site, place(4.0))]).await.expect("store");
        assert_eq!(known(&mut conn).await, HashMap::from([(site, (place(3.0), Source::List))]));
        sqlx::query("update sites set alias_of = $1 where id = $2")
            .bind(site.get())
            .bind(other.get())
            .execute(&mut *conn)
            .await
            .expect("an alias");
        listed(&mut conn, &[("b.cn".parse().expect("a name"), place(5.0))]).await.expect("store");
        assert_eq!(known(&mut conn).await, HashMap::from([(site, (place(5.0), Source::List))]));
    }
}
