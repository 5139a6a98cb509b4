//! Reads the hosts that a batch's crawls have discovered: other sites to which pages link.
//!
//! Rows are read in pages, in order of name, from the primary key of `discovered_hosts`. So a
//! report needs constant memory.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::BatchId;
use crate::store::Error;
use crate::store::rows_and_errors::Rows;
use crate::store::types::Unsigned;

#[derive(Debug, Clone)]
pub struct HostFilter {
    pub batch: BatchId,
    /// At least this many sites link to the host.
    pub min_sites: u32,
    /// The host is neither the name nor the origin of a site.
    pub unlisted: bool,
    /// Only links found at this time or later count.
    pub since: Option<DateTime<Utc>>,
    /// Only links found before this time count.
    pub until: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRow {
    /// The name, in the spelling of site lists.
    pub host: String,
    /// Number of the batch's sites whose pages link to the host.
    pub sites: u64,
    /// The name of one of these sites.
    pub example: String,
    /// When the first of these links was found.
    pub found_at: DateTime<Utc>,
    /// Whether the host is the name or the origin of a site, in any spelling.
    pub listed: bool,
}

/// Reads the report page by page. Keeps no connection between pages.
#[derive(Debug, Clone)]
pub struct HostPages {
    wanted: HostFilter,
    /// The last host that was read.
    after: String,
}

/// A statement about the wanted hosts after `$after`, in order of name. `$query` is sqlx's macro,
/// and `$row` its type of rows. `$select` and `$rest` are the parts of the statement before and
/// after the subquery `h`.
macro_rules! of_hosts {
    ($query:ident $(($row:ident))?, $select:literal, $rest:literal, $wanted:expr, $after:expr $(, $limit:expr)?) => {
        sqlx::$query!(
            $($row,)?
            $select
                + r#"
            from (
                select * from (
                    select linked.*, exists (
                               select from sites where name = any(array[host, 'https://' || host, 'http://' || host])
                           ) or exists (
                               select from sites
                               where origin = any(array[host, 'https://' || host, 'http://' || host] collate "default")
                                 and alias_of is null
                           ) as listed
                    from (
                        select host, count(*) as sites, min(site_id) as site_id, min(found_at) as found_at
                        from discovered_hosts
                        where batch_id = $1 and host > $2 and ($3::timestamptz is null or found_at >= $3)
                          and ($4::timestamptz is null or found_at < $4)
                        group by host
                        having count(*) >= $5
                        order by host
                    ) linked
                ) known
                where not ($6 and listed)
            ) h
            "# + $rest,
            $wanted.batch.get(),
            $after,
            $wanted.since,
            $wanted.until,
            i64::from($wanted.min_sites),
            $wanted.unlisted,
            $($limit,)?
        )
    };
}

impl HostPages {
    pub const fn new(wanted: HostFilter) -> Self {
        Self { wanted, after: String::new() }
    }

    /// At most `limit` further rows; empty after the last row. Run in a snapshot of its own, because
    /// settings of the planner last until its end.
    pub async fn next(&mut self, conn: &mut PgConnection, limit: u32) -> Result<Vec<HostRow>, Error> {
        let Self { wanted, after } = &*self;
        // Without these settings the planner would read all hosts of the batch for every page.
        sqlx::query!(
            r#"
            select set_config('enable_sort', 'off', true) as sort, set_config('enable_hashagg', 'off', true) as hashagg,
                   set_config('max_parallel_workers_per_gather', '0', true) as workers, set_config('jit', 'off', true) as jit
            "#
        )
        .one(conn)
        .await?;
        let rows = of_hosts!(
            query_as(HostRow),
            r#"
            select h.host as "host!", h.sites as "sites!: Unsigned<u64>", s.name as example, h.found_at as "found_at!",
                   h.listed as "listed!"
            "#,
            r#"
            join sites s on s.id = h.site_id
            order by h.host
            limit $7
            "#,
            wanted,
            after,
            i64::from(limit)
        )
        .all(conn)
        .await?;
        if let Some(last) = rows.last() {
            self.after.clone_from(&last.host);
        }
        Ok(rows)
    }

    /// Number of rows that have not been read yet.
    pub async fn behind(&self, conn: &mut PgConnection) -> Result<u64, Error> {
        let Self { wanted, after } = self;
        let counted = of_hosts!(query_scalar, r#"select count(*) as "count!: Unsigned<u64>""#, "", wanted, after);
        Ok(counted.one(conn).await?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};

    async fn read(conn: &mut Conn, wanted: &HostFilter, limit: u32) -> Vec<(String, u64, String, bool)> {
        let (mut pages, mut rows) = (HostPages::new(wanted.clone()), Vec::new());
        let all = pages.behind(conn).await.expect("counted");
        loop {
            let page = pages.next(conn, limit).await.expect("read");
            assert!(page.len() <= usize::try_from(limit).expect("small"));
            if page.is_empty() {
                assert_eq!(u64::try_from(rows.len()).expect("small"), all);
                return rows;
            }
            rows.extend(page.into_iter().map(|row| (row.host, row.sites, row.example, row.listed)));
            let behind = pages.behind(conn).await.expect("counted");
            assert_eq!(behind, all - u64::try_from(rows.len()).expect("small"));
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn hosts_are_read_by_name_with_the_sites_that_link_to_them(mut conn: Conn) {
        let batch = fixtures::batch(&mut conn, "autumn", "gnp-top3").await;
        let other = fixtures::batch(&mut conn, "winter", "gnp-top3").await;
        for name in ["a.cn", "b.cn", "c.cn", "http://d.cn"] {
            fixtures::site(&mut conn, name).await;
        }
        fixtures::execute(&mut conn, "update sites set origin = 'https://www.c.cn' where name = 'c.cn'").await;
        fixtures::execute_for(
            &mut conn,
            "insert into discovered_hosts (batch_id, host, site_id, found_at)
             select $1, host, id, case when host = 'old.cn' then now() - interval '2 days' else now() end
             from sites, unnest(array['b.cn', 'd.cn', 'new.cn', 'old.cn', 'www.c.cn', 'http://new.cn:81']) host
             where name = 'a.cn' or name = 'b.cn' and host in ('new.cn', 'old.cn')",
            batch.get(),
        )
        .await;
        fixtures::execute_for(
            &mut conn,
            "insert into discovered_hosts (batch_id, host, site_id) select $1, 'third.cn', id from sites",
            other.get(),
        )
        .await;
        let all = HostFilter { batch, min_sites: 0, unlisted: false, since: None, until: None };
        let row = |host: &str, sites, listed| (host.to_owned(), sites, "a.cn".to_owned(), listed);
        let expected = [
            row("b.cn", 1, true),
            row("d.cn", 1, true),
            row("http://new.cn:81", 1, false),
            row("new.cn", 2, false),
            row("old.cn", 2, false),
            row("www.c.cn", 1, true),
        ];
        for limit in [1, 2, 100] {
            assert_eq!(read(&mut conn, &all, limit).await, expected);
        }
        let unlisted = HostFilter { unlisted: true, ..all.clone() };
        assert_eq!(read(&mut conn, &unlisted, 2).await, expected[2..5]);
        let linked = HostFilter { min_sites: 2, ..all.clone() };
        assert_eq!(read(&mut conn, &linked, 1).await, expected[3..5]);
        let yesterday: DateTime<Utc> = fixtures::scalar(&mut conn, "select now() - interval '1 day'").await;
        let new = HostFilter { since: Some(yesterday), min_sites: 2, ..all.clone() };
        assert_eq!(read(&mut conn, &new, 1).await, expected[3..4]);
        let old = HostFilter { until: Some(yesterday), ..all };
        assert_eq!(read(&mut conn, &old, 1).await, expected[4..5]);
    }
}
