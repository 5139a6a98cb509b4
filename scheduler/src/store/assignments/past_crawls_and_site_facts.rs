//! What strategies learn from and use besides round trips: the past crawls of agents and sites, and
//! each site's host, address, position and size.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::site_name::SiteName;
use crate::model::{AgentId, Rtt, SiteId, Strategy, TaskId};
use crate::store::rows_and_errors::Rows;
use crate::store::types::Interval;
use crate::store::{Error, position};
use crate::strategy::candidate_and_site::SiteFacts;
use crate::strategy::learned_distances::{
    CRAWLS_LEARNED, CRAWLS_OF_A_SITE, CrawlObservation, MOST_RESIDUALS_OF_AN_AGENT, RESIDUALS,
};
use crate::strategy::similar_sites::{CrawlResidual, Prefix, weight};
use crate::strategy::{Crawl, Work, crawl_weight};

/// The newest crawls of each of these agents, newest first: what each crawl fetched, its round trip
/// and its duration. Omits crawls without a round trip or a page. Also omits crawls that the agent
/// took over from another agent, because their duration depends on both agents.
pub async fn crawls(conn: &mut PgConnection, agents: &[AgentId]) -> Result<HashMap<AgentId, Vec<Crawl>>, Error> {
    let rows = sqlx::query!(
        r#"
        select newest.agent_id as "agent_id!", newest.pages as "pages!", newest.bytes as "bytes!", newest.duration_ms as "duration_ms!",
               newest.rtt_us as "rtt_us!", b.request_interval_ms,
               now() - newest.accepted_at as "age!: Interval"
        from unnest($1::bigint[]) as one (agent_id)
        cross join lateral (
            select o.* from outcomes o where o.agent_id = one.agent_id order by o.accepted_at desc limit $2
        ) newest
        join tasks t on t.id = newest.task_id
        join batches b on b.id = t.batch_id
        where newest.kind in ('complete', 'truncated') and newest.rtt_us is not null and newest.pages > 0
          and not exists (select from preemptions r where r.task_id = newest.task_id and r.token < newest.token)
        order by newest.agent_id, newest.accepted_at desc
        "#,
        agents as _,
        CRAWLS_LEARNED,
    )
    .all(conn)
    .await?;
    let mut crawls: HashMap<AgentId, Vec<Crawl>> = HashMap::new();
    for row in rows {
        let crawl = Crawl {
            work: Work { pages: row.pages.0, bytes: row.bytes.0, interval: row.request_interval_ms.0 },
            rtt: row.rtt_us,
            took: row.duration_ms.0,
            weight: crawl_weight(row.age.0),
        };
        crawls.entry(row.agent_id).or_default().push(crawl);
    }
    Ok(crawls)
}

/// The network of a site's address, and the newest crawls of the site.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CrawledSite {
    pub network: Option<Prefix>,
    /// Newest first.
    pub crawls: Vec<CrawlObservation>,
}

/// The network and the newest crawls of each of these sites.
pub async fn crawled(conn: &mut PgConnection, sites: &[SiteId]) -> Result<HashMap<SiteId, CrawledSite>, Error> {
    let rows = sqlx::query!(
        r#"
        select s.id, s.address, newest.agent_id as "agent_id?", newest.rtt_us,
               now() - newest.accepted_at as "age: Interval"
        from sites s
        left join lateral (
            select o.agent_id, o.rtt_us, o.accepted_at from tasks t join outcomes o on o.task_id = t.id
            where t.site_id = s.id and o.rtt_us is not null
              and o.agent_id not in (select q.agent_id from quarantines q where q.released_at is null)
            order by o.accepted_at desc
            limit $2
        ) newest on true
        where s.id = any($1)
        order by s.id, newest.accepted_at desc
        "#,
        sites as _,
        CRAWLS_OF_A_SITE,
    )
    .all(conn)
    .await?;
    let mut crawled: HashMap<SiteId, CrawledSite> = HashMap::new();
    for row in rows {
        let of_it = crawled.entry(row.id).or_default();
        of_it.network = row.address.map(Prefix::from);
        if let (Some(agent), Some(rtt), Some(age)) = (row.agent_id, row.rtt_us, row.age) {
            of_it.crawls.push(CrawlObservation { agent, rtt, weight: weight(age.0) });
        }
    }
    Ok(crawled)
}

/// The crawl residuals of the connected agents' newest crawls. Omits crawls whose agent had neither
/// a measured nor a predicted round trip to the site.
pub async fn residuals(conn: &mut PgConnection) -> Result<Vec<CrawlResidual>, Error> {
    let preferring = Strategy::each().filter(|strategy| strategy.prefers_the_nearest());
    let preferring: Vec<String> = preferring.map(String::from).collect();
    let rows = sqlx::query!(
        r#"
        select newest.agent_id as "agent_id!", s.id as site_id, newest.rtt_us as "rtt_us!", s.address,
               c.predicted_us[array_position(c.candidates, c.agent_id)] as "predicted_us: Rtt",
               (select m.rtt_us from site_measurements m where m.site_id = s.id and m.prober_id = newest.agent_id) as "probed_us: Rtt",
               c.strategy = any($4) and c.cause <> 'explores' as "preferred!",
               now() - newest.accepted_at as "age!: Interval"
        from sessions here
        cross join lateral (
            select o.* from outcomes o where o.agent_id = here.agent_id order by o.accepted_at desc
            limit (select greatest($1, least($2, $3 / greatest(count(*), 1))) from sessions where state = 'active')
        ) newest
        join tasks t on t.id = newest.task_id
        join sites s on s.id = t.site_id
        join assignments c on c.id = t.assignment_id and c.agent_id = newest.agent_id
        where here.state = 'active' and newest.rtt_us is not null
          and here.agent_id not in (select q.agent_id from quarantines q where q.released_at is null)
          -- A crawl of a site in several places shows only the place that served this crawl.
          and not exists (select from site_verdicts v where v.site_id = s.id and v.suspect)
        "#,
        CRAWLS_LEARNED,
        MOST_RESIDUALS_OF_AN_AGENT,
        RESIDUALS,
        &preferring,
    )
    .all(conn)
    .await?;
    let mut residuals = Vec::new();
    for row in rows {
        let Some(known) = row.probed_us.or(row.predicted_us) else { continue };
        residuals.push(CrawlResidual {
            agent: row.agent_id,
            site: row.site_id,
            network: row.address.map(Prefix::from),
            known,
            probed: row.probed_us.is_some(),
            preferred: row.preferred,
            crawled: row.rtt_us,
            weight: weight(row.age.0),
        });
    }
    Ok(residuals)
}

/// The facts that strategies use about these tasks' sites.
pub async fn of_tasks(conn: &mut PgConnection, tasks: &[TaskId]) -> Result<HashMap<TaskId, SiteFacts>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.id as "id!", coalesce(s.origin, s.name) as "name!", s.address, s.latitude, s.longitude,
               b.request_interval_ms as "request_interval_ms!",
               last.pages as "pages?", last.bytes as "bytes?", under_way.pages as "fetched?"
        from tasks t
        join sites s on s.id = t.site_id
        join batches b on b.id = t.batch_id
        left join checkpoints under_way on under_way.task_id = t.id
        left join lateral (
            select o.pages, o.bytes from tasks other join outcomes o on o.task_id = other.id
            where other.site_id = t.site_id and o.kind in ('complete', 'truncated')
            order by o.accepted_at desc
            limit 1
        ) last on true
        where t.id = any($1)
        "#,
        tasks as _,
    )
    .all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let host = match row.name.parse::<SiteName>() {
                Ok(name) => name.host().to_owned(),
                Err(_) => row.name,
            };
            let size = match (row.pages, row.bytes) {
                (Some(pages), Some(bytes)) => Some((pages.0, bytes.0)),
                _ => None,
            };
            let position = position("sites", row.latitude, row.longitude)?;
            let (fetched, interval) = (row.fetched.map_or(0, u32::from), row.request_interval_ms.0);
            Ok((row.id, SiteFacts { host, address: row.address, position, size, fetched, interval }))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gnp::SuspectedSite;
    use crate::gnp::trust::Kind;
    use crate::model::{CrawlEnding, LeaseToken};
    use crate::store::Tx;
    use crate::store::fixtures::{self, Conn};
    use crate::store::leases;
    use crate::store::leases::outcomes::OutcomeReport;
    use crate::store::measurements::quarantines_and_contradictions;
    use crate::store::sites::positions_and_verdicts;
    use crate::strategy::usual_size;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_crawls_saw_is_remembered_and_of_a_quarantined_agent_it_is_not_believed(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "gnp-top1").await;
        let site = fixtures::site(&mut conn, "www.a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, agent).await;
        let fresh = of_tasks(&mut conn, &[task]).await.expect("read");
        assert_eq!((fresh[&task].host.as_str(), fresh[&task].size), ("www.a.cn", None));
        let token: LeaseToken = leases::grant(&mut conn, agent, session).await.expect("grant")[0].token;
        let rtt = Rtt::try_from_micros(20_000).ok();
        let report =
            OutcomeReport { pages: 7, bytes: 9_000, rtt, ..fixtures::report(task, token, CrawlEnding::Complete) };
        fixtures::record(&mut conn, agent, &report).await;
        assert_eq!(of_tasks(&mut conn, &[task]).await.expect("read")[&task].size, Some((7, 9_000)));
        let seen = crawled(&mut conn, &[site]).await.expect("read");
        assert_eq!(seen[&site].crawls.iter().map(|crawl| crawl.rtt.as_micros()).collect::<Vec<_>>(), [20_000]);
        assert_eq!(usual_size(&crawls(&mut conn, &[agent]).await.expect("read")), Some((7, 9_000)));
        fixtures::measured(&mut conn, site, agent, 15_000, "0").await;
        let learned = residuals(&mut conn).await.expect("read");
        assert_eq!(
            learned.iter().map(|one| (one.known.as_micros(), one.crawled.as_micros())).collect::<Vec<_>>(),
            [(15_000, 20_000)]
        );
        let suspicion = SuspectedSite { confidence: 0.9, evidence: "two are too near".into() };
        positions_and_verdicts::upsert(&mut conn, &[(site, Some(suspicion))]).await.expect("judge");
        assert!(residuals(&mut conn).await.expect("read").is_empty(), "nobody knows where it was served from");
        positions_and_verdicts::upsert(&mut conn, &[(site, None)]).await.expect("judge");
        assert_eq!(residuals(&mut conn).await.expect("read").len(), 1);
        assert!(
            quarantines_and_contradictions::hold(&mut conn, agent, Kind::Asymmetry, "it lies")
                .await
                .expect("quarantine")
        );
        assert!(crawled(&mut conn, &[site]).await.expect("read")[&site].crawls.is_empty());
        assert!(residuals(&mut conn).await.expect("read").is_empty());
    }
}
