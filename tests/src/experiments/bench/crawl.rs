//! Measures the cost of crawling a page. The agent's crawler is compared with `spider`, wget2 and
//! Scrapy on a site of 5,001 linked pages.
//!
//! The cost is processor time (user and system). Elapsed times are not comparable, because the
//! agent requests one page at a time and the other crawlers several. Each run is a process,
//! measured from start to end. The runs of the crawlers alternate. A run fails if the site's server
//! counted too few fetched pages. The server is a separate process, whose cost is not measured.

use std::path::Path;

use anyhow::ensure;

use super::line::{Line, median};
use crawlers::{Crawler, CrawlerPaths, OURS, OURS_WARC, SPIDER, WGET2};
use measured::{ProcessCost, cost_of};
use site::{ServedSites, Server, SitePlan};

mod crawlers;
pub mod measured;
pub mod site;

/// As on an ordinary site, a page has about 4 KiB and 20 links, and about twenty pages link to it.
pub(super) const PLAN: SitePlan = SitePlan { pages: 5001, fan: 4, others: 16, bytes: 4096 };
const RUNS: usize = 5;
const LEAST_RATIO: f64 = 1.2;
const MOST_MIB: f64 = 64.0;

struct Row {
    name: &'static str,
    costs: Vec<ProcessCost>,
}

impl Row {
    /// Pages per second of processor time, one value per run.
    fn rates(&self) -> Vec<f64> {
        let pages = f64::from(u32::try_from(PLAN.pages).unwrap_or(u32::MAX));
        self.costs.iter().map(|cost| pages / cost.cpu_s()).collect()
    }

    fn peak_mib(&self) -> f64 {
        let peaks = self.costs.iter().map(|cost| f64::from(i32::try_from(cost.peak_kib).unwrap_or(i32::MAX)) / 1024.0);
        peaks.fold(0.0, f64::max)
    }

    /// The median of a figure, with its minimum and maximum.
    fn spread(&self, figure: impl Fn(&ProcessCost) -> f64, digits: usize) -> String {
        let figures: Vec<f64> = self.costs.iter().map(figure).collect();
        let (least, most) =
            (figures.iter().copied().fold(f64::MAX, f64::min), figures.iter().copied().fold(0.0, f64::max));
        format!("{:.digits$} ({least:.digits$} - {most:.digits$})", median(figures))
    }
}

pub(super) async fn run() -> anyhow::Result<Vec<Line>> {
    let paths = CrawlerPaths::find()?;
    let mut server = Server::start(&ServedSites::one(PLAN)).await?;
    let (mut rows, mut lines, mut able) = (Vec::new(), Vec::new(), Vec::new());
    for Crawler { name, call } in paths.crawlers() {
        match call {
            Ok(call) => {
                able.push(call);
                rows.push(Row { name, costs: Vec::new() });
            }
            Err(reason) => lines.push(Line::plain(format!("{name}: {reason}"), "-")),
        }
    }
    for _ in 0..RUNS {
        for (row, call) in rows.iter_mut().zip(&able) {
            let folder = tempfile::tempdir()?;
            let command = call(&paths, &server.url);
            row.costs.push(crawl(&mut server, row.name, &command, folder.path()).await?);
        }
    }
    for row in &rows {
        let pages = f64::from(u32::try_from(PLAN.pages)?);
        let Row { name, .. } = row;
        lines
            .push(Line::plain(format!("{name}: pages a processor second"), row.spread(|cost| pages / cost.cpu_s(), 0)));
        lines.push(Line::plain(format!("{name}: of it in the system, s"), row.spread(|cost| cost.system_s, 2)));
        lines.push(Line::plain(format!("{name}: from start to end, s"), row.spread(|cost| cost.wall_s, 2)));
        let (what, mib) = (format!("{name}: peak memory, MiB"), row.peak_mib());
        let ours = [OURS, OURS_WARC].contains(name);
        lines.push(if ours { Line::at_most(what, mib, MOST_MIB) } else { Line::plain(what, format!("{mib:.0}")) });
    }
    for (ours, peer) in [(OURS, SPIDER), (OURS, WGET2), (OURS_WARC, WGET2)] {
        let row = |name: &str| rows.iter().find(|row| row.name == name);
        if let (Some(a), Some(b)) = (row(ours), row(peer)) {
            // Each ratio compares two runs of the same repetition, because other load on the
            // machine affects both runs about equally.
            let ratio = median(a.rates().iter().zip(b.rates()).map(|(a, b)| a / b).collect());
            lines.push(Line::at_least(format!("{ours} to {peer}"), ratio, LEAST_RATIO));
        }
    }
    Ok(lines)
}

/// Makes one run. Fails if the crawler did not fetch every page.
async fn crawl(server: &mut Server, name: &str, command: &[String], folder: &Path) -> anyhow::Result<ProcessCost> {
    server.reset().await?;
    let cost = cost_of(command, folder).await.map_err(|error| error.context(name.to_owned()))?;
    let asked = server.asked().await?;
    ensure!(
        asked.pages == PLAN.pages,
        "{name} fetched {} of {} pages in {} requests",
        asked.pages,
        PLAN.pages,
        asked.requests
    );
    Ok(cost)
}
