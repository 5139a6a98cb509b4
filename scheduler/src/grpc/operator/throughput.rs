//! Reports the throughput of a batch by slice of time, agent and strategy.

use std::time::Duration;

use landfall_proto::v1;
use tonic::Status;

use crate::Scheduler;
use crate::model::Strategy;
use crate::store::reports::ReportScope;
use crate::store::reports::throughput::{Agent, BatchGrowth, CrawlTotals, newest_round};
use crate::throughput::{self, Growth, growth, megabytes_per_minute, per_minute};

use super::convert::{InvalidField, duration, rtt, timestamp};
use super::named::{self, Unknown};

/// Default number of slices of time in a report. A terminal can show this many at once.
const SLICES: u16 = 20;
/// Maximum number of slices of time. No plot can show more.
const MOST_SLICES: u16 = 500;

pub(super) async fn report(
    scheduler: &Scheduler,
    request: v1::ThroughputRequest,
) -> Result<v1::ThroughputResponse, Status> {
    let slices = checked(&request)?;
    let v1::ThroughputRequest { batch: name, round, .. } = request;
    // The queries share one snapshot, so that the slices and the sums cover the same crawls.
    let mut tx = scheduler.operators.snapshot("report throughput").await?;
    let batch = named::batch(&mut tx, &name).await?.id;
    let scope = ReportScope { batch, round };
    if let Some(round) = round {
        let newest = newest_round(&mut tx, batch).await?;
        if newest.is_none_or(|newest| round > newest) {
            return Err(Unknown::Round { batch: name, round, newest }.into());
        }
    }
    let report = BatchGrowth::read(&mut tx, scope, slices).await?;
    Ok(report.into())
}

/// Checks the round of a request, and returns the number of slices.
fn checked(request: &v1::ThroughputRequest) -> Result<u16, InvalidField> {
    if request.round == Some(0) {
        return Err(InvalidField::new("round", "0 is not a round: rounds are counted from 1"));
    }
    match request.slices {
        None => Ok(SLICES),
        Some(slices) => u16::try_from(slices)
            .ok()
            .filter(|slices| (1..=MOST_SLICES).contains(slices))
            .ok_or_else(|| InvalidField::new("slices", format!("must be 1 to {MOST_SLICES}, not {slices}"))),
    }
}

impl From<BatchGrowth> for v1::ThroughputResponse {
    fn from(grown: BatchGrowth) -> Self {
        let BatchGrowth { totals, crawls, recent, time, slices } = grown;
        let all = crawls.all.total;
        let span = time.map_or(Duration::ZERO, |(begun, until)| (until - begun).to_std().unwrap_or_default());
        Self {
            begun_at: time.map(|(begun, _)| timestamp(begun)),
            until: time.map(|(_, until)| timestamp(until)),
            sites: totals.tasks,
            crawled: all.sites,
            uncrawled: totals.uncrawled,
            crawling: totals.remaining.crawling,
            crawling_pages: totals.crawling_pages,
            pages: all.pages,
            bytes: all.bytes,
            megabytes_per_minute: megabytes_per_minute(all.bytes, span),
            sites_per_minute: per_minute(all.sites as f64, span),
            growth: growth(&slices, span, all).into_iter().map(Into::into).collect(),
            agents: crawls.agents.into_iter().map(|(agent, part)| row(agent, &part, all.bytes, span)).collect(),
            strategies: crawls.strategies.into_iter().map(|(name, part)| strategy(name, &part, span)).collect(),
            estimate: throughput::estimate(&totals.remaining, &recent).map(Into::into),
        }
    }
}

fn row(Agent { name, city, carrier }: Agent, part: &CrawlTotals, bytes: u64, span: Duration) -> v1::AgentThroughput {
    v1::AgentThroughput {
        agent: name,
        city,
        carrier,
        sites: part.total.sites,
        pages: part.total.pages,
        bytes: part.total.bytes,
        megabytes_per_minute: megabytes_per_minute(part.total.bytes, span),
        busy: Some(duration(part.busy)),
        crawling: Some(duration(part.crawling)),
        share: (bytes > 0).then(|| part.total.bytes as f64 / bytes as f64),
    }
}

fn strategy(strategy: Strategy, part: &CrawlTotals, span: Duration) -> v1::StrategyThroughput {
    v1::StrategyThroughput {
        strategy: strategy.to_string(),
        sites: part.total.sites,
        pages: part.total.pages,
        bytes: part.total.bytes,
        megabytes_per_minute: megabytes_per_minute(part.total.bytes, span),
        mean_rtt: rtt(part.mean_rtt),
        crawling: Some(duration(part.crawling)),
    }
}

impl From<Growth> for v1::GrowthSlice {
    fn from(slice: Growth) -> Self {
        Self {
            until: Some(duration(slice.until)),
            sites: slice.total.sites,
            pages: slice.total.pages,
            bytes: slice.total.bytes,
            megabytes_per_minute: slice.megabytes_per_minute,
            sites_per_minute: slice.sites_per_minute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_slices_or_a_round_that_cannot_be_is_named() {
        let ask = |round, slices| checked(&v1::ThroughputRequest { batch: "b".into(), round, slices });
        assert_eq!(ask(None, None), Ok(20));
        assert_eq!(ask(Some(2), Some(500)), Ok(500));
        for (round, slices, problem) in [
            (Some(0), None, "round: 0 is not a round: rounds are counted from 1"),
            (None, Some(0), "slices: must be 1 to 500, not 0"),
            (None, Some(u32::MAX), "slices: must be 1 to 500, not 4294967295"),
        ] {
            assert_eq!(ask(round, slices).unwrap_err().to_string(), problem);
        }
    }
}
