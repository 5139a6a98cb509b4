//! Runs a cell of the paper's experiments with two strategies from the same frozen survey, and
//! compares each run with its simulation.

use std::path::Path;
use std::time::Duration;

use landfall_lab::evidence::figures::float;
use landfall_lab::experiments::paper::lab_cells::SurveyedCluster;
use landfall_lab::experiments::sweep::run::LayoutSimulation;
use landfall_lab::experiments::sweep::settings::{EXPERIMENTS, Settings};
use landfall_scheduler::model::Strategy;

use crate::harness::beside;

/// Time between probes of a site. This time can be short, because there are only twenty sites.
const SITE_INTERVAL: Duration = Duration::from_millis(100);

/// Settings with ten agents, twenty small sites, and 8 requests per second to each site. So the
/// request interval, and not the machine, limits the speed of crawls. Most crawls take about a
/// second, which should be longer than the time until all sites have their agents, even if the
/// machine is busy.
fn small() -> anyhow::Result<Settings> {
    let changes = [
        ("agents = 30", "agents = 10"),
        ("sites = 203", "sites = 20"),
        ("landmarks = 9", "landmarks = 6"),
        ("mean_pages = 30.0", "mean_pages = 10.0"),
        ("max_pages = 50", "max_pages = 14"),
        ("per_site_rps = \"unthrottled\"", "per_site_rps = 8.0"),
        ("per_site_rps = [\"unthrottled\", 4.0, 1.0]", "per_site_rps = [\"unthrottled\", 8.0]"),
    ];
    let text = changes.iter().fold(EXPERIMENTS.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    Settings::parse(&text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lab_and_the_simulation_make_the_same_requests() {
    let _beside = beside().await;
    let settings = small().unwrap();
    let (layouts, _) = settings.available_layouts(Path::new("/nowhere")).unwrap();
    let mut surveyed = SurveyedCluster::survey(&settings, &layouts[0], 1, SITE_INTERVAL).await.unwrap();
    for strategy in [Strategy::GNP_TOP3, Strategy::Random] {
        let result = surveyed.crawl_cell(settings.base, strategy).await.unwrap();
        let mut simulation =
            LayoutSimulation::surveyed(&settings, &layouts[0], 1, &result.measurements, result.first_task).unwrap();
        let simulated = simulation.simulate(settings.base, strategy, 0).unwrap();
        // Every site gets a slot immediately, so no site is moved to another agent, and the lab and
        // the simulation choose the same agents.
        assert_eq!(result.per_agent, simulated.per_agent, "{strategy}");
        assert_eq!(result.sites.len(), settings.sites);
        let bytes: usize = simulated.arrived.iter().map(|body| body.bytes).sum();
        let arrived = result.growth.curve.last().unwrap().1 * 1e6;
        assert!((arrived - float(bytes)).abs() < 1.0, "{arrived} of {bytes} bytes");
        let requests = result.machine.requests_per_s * result.makespan_s;
        assert!((requests - float(simulated.requests)).abs() < 0.5, "{requests}: {simulated:?}");
        // No crawl can be faster than the interval permits. How much slower a crawl is depends on
        // the load of the machine.
        let least = simulated.makespan.as_secs_f64() * 0.8;
        assert!(result.makespan_s > least && result.growth.mb_per_min > 0.0, "{result:?} and {least} s");
    }
    surveyed.end().await.unwrap();
}
