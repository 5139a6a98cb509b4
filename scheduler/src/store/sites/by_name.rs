//! Finds sites by name, origin, or another spelling of either.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::SiteId;
use crate::model::site_name::SiteName;
use crate::store::Error;
use crate::store::rows::Rows;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    pub id: SiteId,
    pub name: String,
    pub origin: Option<String>,
    /// For an alias, the site to which the alias points, with that site's name; `None` for any
    /// other site.
    pub alias_of: Option<(SiteId, String)>,
}

/// Finds a site by its name, its origin, or another spelling of either.
pub async fn find(conn: &mut PgConnection, name: &SiteName) -> Result<Option<Site>, Error> {
    Ok(find_all(conn, std::slice::from_ref(name)).await?.pop().flatten())
}

/// Finds the sites of many names, in their order.
pub async fn find_all(conn: &mut PgConnection, names: &[SiteName]) -> Result<Vec<Option<Site>>, Error> {
    let spellings = names
        .iter()
        .zip(0_i64..)
        .flat_map(|(name, place)| name.spellings().into_iter().map(move |spelling| (place, spelling)));
    let (places, spellings): (Vec<i64>, Vec<String>) = spellings.unzip();
    let rows = sqlx::query!(
        r#"
        with spellings as (
            select place, text, position
            from unnest($1::bigint[], $2::text[]) with ordinality as spellings (place, text, position)
        ), found as (
            select place, position, true as by_name, s.id from spellings join sites s on s.name = text
            union all
            select place, position, false, s.id from spellings join sites s on s.origin = text and s.alias_of is null
        ), best as (
            select distinct on (place) place, id from found order by place, position, by_name desc
        )
        select best.place as "place!", s.id, s.name, s.origin, s.alias_of, keeper.name as "keeper?"
        from best join sites s on s.id = best.id left join sites keeper on keeper.id = s.alias_of
        "#,
        &places,
        &spellings,
    )
    .all(conn)
    .await?;
    let found = rows.into_iter().map(|row| {
        let alias_of = row.alias_of.zip(row.keeper);
        (row.place, Site { id: row.id, name: row.name, origin: row.origin, alias_of })
    });
    let mut found: HashMap<i64, Site> = found.collect();
    Ok((0_i64..).take(names.len()).map(|place| found.remove(&place)).collect())
}

impl Site {
    /// The site's identifier and, for an alias, also the identifier of the site to which the alias
    /// points. The data of both sites apply to the alias.
    pub fn ids(&self) -> Vec<SiteId> {
        std::iter::once(self.id).chain(self.alias_of.as_ref().map(|(keeper, _)| *keeper)).collect()
    }
}
