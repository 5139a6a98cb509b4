//! The results of `lab fleet`: rates and costs by the size of the fleet, a line fitted to the
//! rates, the load of agents that joined, and whether the throughput is constant.

use std::fmt::Write as _;

use anyhow::Context;
use landfall_scheduler::model::stats::median;
use serde::Serialize;

use super::SLOTS;
use super::sample::{AgentSample, Sample};
use crate::cluster::Cluster;
use crate::evidence::fit::LineFit;
use crate::evidence::float;
use crate::evidence::table::text_table;
use crate::world::World;
use crate::world::sites::Delivery;

/// Minimum share of idle processor time. Below it, the machine's processors limit the rate of
/// crawls, and the period is not used to judge how the rate grows with the number of agents.
const IDLE: f64 = 0.2;
/// The pages per second count as linear in the number of agents if the coefficient of determination
/// is at least this.
const LEAST_R_SQUARED: f64 = 0.99;
/// Maximum relative deviation of the scheduler's processor time per crawl from its mean.
const MOST_DEVIATION: f64 = 0.10;

/// The rates and costs in one period.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    agents: usize,
    pages_per_s: f64,
    mb_per_min: f64,
    crawls_per_s: f64,
    /// Links on the fetched pages, per second.
    links_per_s: f64,
    /// The share of the machine's processor time that was idle.
    idle: f64,
    scheduler_ms_per_crawl: Option<f64>,
    postgres_ms_per_crawl: Option<f64>,
    scheduler_percent: f64,
    postgres_percent: f64,
    scheduler_mb: f64,
    /// Means over the agents. 100 % is one whole processor.
    agent_percent: f64,
    agent_ms_per_page: Option<f64>,
    agent_mb: f64,
    agent_messages_per_s: f64,
    agent_lookups_per_s: f64,
}

impl Row {
    fn of(world: &World, deliveries: &[Delivery], [from, to]: &[Sample; 2]) -> Self {
        let seconds = (to.at - from.at).as_secs_f64();
        let within: Vec<&Delivery> =
            deliveries.iter().filter(|one| one.until >= from.at && one.until < to.at).collect();
        let (pages, agents) = (float(within.len()), to.agents.len());
        let bytes: usize = within.iter().map(|one| one.bytes).sum();
        let links: f64 = within.iter().map(|one| world.webs[one.site].links_per_page()).sum();
        let crawls = f64::from(i32::try_from(to.crawls - from.crawls).unwrap_or(i32::MAX));
        let each = |of: fn(&AgentSample) -> f64| {
            let spent = |(to, from): (&AgentSample, &AgentSample)| of(to) - of(from);
            to.agents.iter().zip(&from.agents).map(spent).sum::<f64>()
        };
        let (scheduler_s, postgres_s) = (to.scheduler_s - from.scheduler_s, to.postgres_s - from.postgres_s);
        let agents_s = each(|agent| agent.processor_s);
        let per = |cost_s: f64, count: f64| (count > 0.0).then(|| cost_s * 1e3 / count);
        Self {
            agents,
            pages_per_s: pages / seconds,
            mb_per_min: float(bytes) / 1e6 / (seconds / 60.0),
            crawls_per_s: crawls / seconds,
            links_per_s: links / seconds,
            idle: to.machine.zip(from.machine).map_or(0.0, |(to, from)| to.idle_since(from)),
            scheduler_ms_per_crawl: per(scheduler_s, crawls),
            postgres_ms_per_crawl: per(postgres_s, crawls),
            scheduler_percent: scheduler_s / seconds * 100.0,
            postgres_percent: postgres_s / seconds * 100.0,
            scheduler_mb: to.scheduler_memory / 1e6,
            agent_percent: agents_s / float(agents) / seconds * 100.0,
            agent_ms_per_page: per(agents_s, pages),
            agent_mb: to.agents.iter().map(|agent| agent.memory).sum::<f64>() / float(agents) / 1e6,
            agent_messages_per_s: each(|agent| agent.messages) / float(agents) / seconds,
            agent_lookups_per_s: each(|agent| agent.lookups) / float(agents) / seconds,
        }
    }
}

pub(super) struct Report {
    rows: Vec<Row>,
    steady: Vec<Row>,
    /// For each agent, the seconds from its session's start until all its slots had a lease.
    full_after_s: Vec<f64>,
}

impl Report {
    pub(super) async fn of(cluster: &Cluster, windows: &[[Sample; 2]], steady: &[[Sample; 2]]) -> anyhow::Result<Self> {
        let deliveries = cluster.world.log.deliveries();
        let rows = |windows: &[[Sample; 2]]| {
            windows.iter().map(|window| Row::of(&cluster.world, &deliveries, window)).collect::<Vec<Row>>()
        };
        let query = "
            select extract(epoch from l.granted_at - s.opened_at)::float8
            from (select agent_id, min(opened_at) as opened_at from sessions group by agent_id) s
            join lateral (
                select granted_at from leases where agent_id = s.agent_id order by granted_at offset $1 limit 1
            ) l on true";
        let full = sqlx::query_scalar(query).bind(i64::from(SLOTS) - 1).fetch_all(&cluster.pool).await;
        Ok(Self { rows: rows(windows), steady: rows(steady), full_after_s: full.context("read the first leases")? })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n{}", self.rates(), self.costs());
        for line in self.findings() {
            writeln!(text, "{line}").expect("a string can be written to");
        }
        text
    }

    fn rates(&self) -> String {
        let cells = |row: &Row| {
            vec![
                row.agents.to_string(),
                format!("{:.1}", row.pages_per_s),
                format!("{:.0}", row.links_per_s),
                format!("{:.1}", row.mb_per_min),
                format!("{:.2}", row.crawls_per_s),
                format!("{:.0} %", row.idle * 100.0),
            ]
        };
        text_table(
            &["agents", "pages/s", "links/s", "MB/min", "crawls/s", "machine idle"],
            &self.rows.iter().map(cells).collect::<Vec<_>>(),
        )
    }

    fn costs(&self) -> String {
        let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let cells = |row: &Row| {
            vec![
                row.agents.to_string(),
                shown(row.scheduler_ms_per_crawl),
                format!("{:.2}", row.scheduler_percent),
                format!("{:.1}", row.scheduler_mb),
                shown(row.postgres_ms_per_crawl),
                format!("{:.2}", row.postgres_percent),
                shown(row.agent_ms_per_page),
                format!("{:.2}", row.agent_percent),
                format!("{:.1}", row.agent_mb),
                format!("{:.2}", row.agent_messages_per_s),
                format!("{:.2}", row.agent_lookups_per_s),
            ]
        };
        let header = [
            "agents",
            "scheduler: ms/crawl",
            "% of a core",
            "MB",
            "Postgres: ms/crawl",
            "% of a core",
            "agent: ms/page",
            "% of a core",
            "MB",
            "messages/s",
            "lookups/s",
        ];
        text_table(&header, &self.rows.iter().map(cells).collect::<Vec<_>>())
    }

    fn findings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let unlimited = |row: &&Row| row.idle >= IDLE;
        let points: Vec<(f64, f64)> =
            self.rows.iter().filter(unlimited).map(|row| (float(row.agents), row.pages_per_s)).collect();
        if let Some(limited) = self.rows.iter().find(|row| row.idle < IDLE) {
            let idle = limited.idle * 100.0;
            lines.push(format!("from {} agents on, the machine is the limit ({idle:.0} % idle)", limited.agents));
        }
        if let Some(fit) = LineFit::of(&points).filter(|fit| fit.slope > 0.0) {
            let verdict = verdict(fit.r_squared >= LEAST_R_SQUARED);
            lines.push(format!(
                "growth: {:.2} pages/s an agent, {:+.2} at none; R2 {:.4}, target >= {LEAST_R_SQUARED}: {verdict}",
                fit.slope, fit.intercept, fit.r_squared
            ));
        }
        let costs: Vec<f64> = self.rows.iter().filter(unlimited).filter_map(|row| row.scheduler_ms_per_crawl).collect();
        if !costs.is_empty() {
            let mean = costs.iter().sum::<f64>() / float(costs.len());
            let deviation = costs.iter().map(|cost| (cost / mean - 1.0).abs()).fold(0.0, f64::max);
            lines.push(format!(
                "scheduler's processor time a crawl: {mean:.2} ms, at most {:.0} % off, target <= {:.0} %: {}",
                deviation * 100.0,
                MOST_DEVIATION * 100.0,
                verdict(deviation <= MOST_DEVIATION)
            ));
        }
        let spent: Vec<(f64, f64)> =
            self.rows.iter().filter(unlimited).map(|row| (row.crawls_per_s, row.scheduler_percent)).collect();
        if let Some(fit) = LineFit::of(&spent) {
            // One per cent of a processor is ten milliseconds of processor time per second.
            lines.push(format!(
                "of it: {:.2} ms for each crawl, and {:.2} % of a core whatever is crawled (R2 {:.3})",
                fit.slope * 10.0,
                fit.intercept,
                fit.r_squared
            ));
        }
        if let Some(full) = median(self.full_after_s.clone()) {
            let last = self.full_after_s.iter().copied().fold(0.0, f64::max);
            lines.push(format!(
                "an agent that joins has all slots in use after {full:.2} s (median), {last:.2} s (most)"
            ));
        }
        lines.extend(self.steadiness());
        lines
    }

    /// The slope of the throughput over the periods with all agents.
    fn steadiness(&self) -> Option<String> {
        let mean = self.steady.iter().map(|row| row.pages_per_s).sum::<f64>() / float(self.steady.len().max(1));
        let points: Vec<(f64, f64)> =
            self.steady.iter().enumerate().map(|(period, row)| (float(period), row.pages_per_s / mean)).collect();
        let fit = LineFit::of(&points).filter(|_| mean > 0.0)?;
        let whole = float(points.len());
        Some(format!(
            "throughput with all agents: {mean:.1} pages/s, changes by {:+.2} % +- {:.2} % over {whole} periods",
            fit.slope * whole * 100.0,
            fit.slope_error? * whole * 100.0
        ))
    }

    pub(super) fn json(&self) -> impl Serialize {
        serde_json::json!({ "growth": self.rows, "steady": self.steady, "full_after_s": self.full_after_s })
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(agents: usize, pages_per_s: f64, idle: f64, scheduler_ms_per_crawl: f64) -> Row {
        Row {
            agents,
            pages_per_s,
            mb_per_min: 0.0,
            crawls_per_s: pages_per_s / 10.0,
            links_per_s: 0.0,
            idle,
            scheduler_ms_per_crawl: Some(scheduler_ms_per_crawl),
            postgres_ms_per_crawl: None,
            scheduler_percent: 1.0 + pages_per_s / 10.0 * 0.25,
            postgres_percent: 0.0,
            scheduler_mb: 0.0,
            agent_percent: 0.0,
            agent_ms_per_page: None,
            agent_mb: 0.0,
            agent_messages_per_s: 0.0,
            agent_lookups_per_s: 0.0,
        }
    }

    #[test]
    fn a_machine_at_its_limit_does_not_count_against_the_growth_of_the_fleet() {
        let rows = vec![row(2, 20.0, 0.9, 7.5), row(4, 40.0, 0.5, 5.0), row(6, 60.0, 0.3, 4.2), row(8, 61.0, 0.1, 4.0)];
        let steady = [60.0, 61.0, 62.0].map(|pages| row(8, pages, 0.5, 4.0)).to_vec();
        let report = Report { rows, steady, full_after_s: vec![0.5, 0.1, 0.2] };
        let found = report.findings().join("\n");
        for said in [
            "from 8 agents on, the machine is the limit (10 % idle)",
            "growth: 10.00 pages/s an agent, +0.00 at none; R2 1.0000, target >= 0.99: met",
            "at most 35 % off, target <= 10 %: MISSED",
            "of it: 2.50 ms for each crawl, and 1.00 % of a core whatever is crawled (R2 1.000)",
            "has all slots in use after 0.20 s (median), 0.50 s (most)",
            "throughput with all agents: 61.0 pages/s, changes by +4.92 % +- 0.00 % over 3 periods",
        ] {
            assert!(found.contains(said), "{said}: {found}");
        }
        let idle = Report { rows: vec![row(2, 0.0, 0.9, 0.0)], steady: Vec::new(), full_after_s: Vec::new() };
        assert!(!idle.findings().iter().any(|line| line.contains("NaN")), "{:?}", idle.findings());
    }
}
