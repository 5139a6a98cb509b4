//! Runs `lab paper`: defines its arguments, plans and runs the cells, and prints the results.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use landfall_scheduler::model::Strategy;

use super::figures_and_page::{self, figure2, figure3};
use super::lab_cells::{FinishedCell, LabResult, SITE_INTERVAL, SurveyedCluster};
use super::simulated_cells::{SimulatedMedians, SimulationRatios, Simulator, agreement, busy};
use super::tables::Tables;
use crate::cluster::Binaries;
use crate::cluster::process::interrupted;
use crate::experiments::sweep::results::{self, CellStore, Row};
use crate::experiments::sweep::run::{LayoutSimulation, MatrixArgs, RunArgs, cell};
use crate::experiments::sweep::settings::{Cell, EXPERIMENTS, LayoutData, Point, Settings};
use crate::experiments::sweep::targets::{self, LEAST_SHARE_IN_LAB};

/// The folder of the finished cells and of the HTML page with the results.
const FOLDER: &str = "paper";
/// Number of seeds of Tables 1 and 2 with `--quick`.
const QUICK_TABLE_SEEDS: u64 = 2;
/// Durations from which the total time is estimated: a survey takes `SURVEY`, and the start and end
/// of a cell together take `AROUND_A_CELL`.
const SURVEY: Duration = Duration::from_secs(100);
const AROUND_A_CELL: Duration = Duration::from_secs(14);

/// Arguments of `lab paper`.
#[derive(Debug, Clone, Args)]
pub struct PaperArgs {
    #[command(flatten)]
    matrices: MatrixArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Run only one seed, and only the base cells of the paper's layout (or of --layout); two seeds
    /// for the tables
    #[arg(long)]
    quick: bool,
    /// Only Tables 1 and 2, which need no lab
    #[arg(long)]
    tables: bool,
    /// Only this layout
    #[arg(long, value_name = "NAME")]
    layout: Option<String>,
}

/// A cell to run. `takes` is the estimated duration of its crawls.
#[derive(Debug, Clone)]
struct PlannedCell {
    cell: Cell,
    strategy: Strategy,
    takes: Duration,
}

struct LayoutPlan<'a> {
    layout: &'a LayoutData,
    seed: u64,
    cells: Vec<PlannedCell>,
}

/// Runs the unfinished cells, and prints all results. Void cells and missed targets are not errors.
pub async fn paper(args: PaperArgs) -> anyhow::Result<()> {
    let settings = Settings::committed()?;
    let (mut layouts, missing) = settings.available_layouts(&args.matrices.data)?;
    missing.iter().for_each(|line| eprintln!("{line}"));
    if let Some(only) = &args.layout {
        layouts.retain(|layout| layout.name == *only);
        if layouts.is_empty() {
            bail!("there is no layout '{only}' here");
        }
    }
    let table_seeds = if args.quick { QUICK_TABLE_SEEDS } else { settings.table_seeds };
    if args.tables {
        print!("{}", Tables::of(&settings, &layouts, table_seeds)?.lines());
        return Ok(());
    }
    let Binaries { landfall, agent } = Binaries::find()?;
    let mut store = args.run.open(FOLDER, EXPERIMENTS, &[&landfall, &agent])?;
    let crawled = if args.quick { &layouts[..1] } else { &layouts[..] };
    let plans = plan(&settings, crawled, args.quick)?;
    announce(&plans, &store);
    for plan in &plans {
        tokio::select! {
            done = run_plan(&settings, plan, &mut store) => done?,
            () = interrupted() => bail!("interrupted; finished cells are stored, and the next run continues from there"),
        }
    }
    eprintln!("tables 1 and 2");
    let tables = Tables::of(&settings, &layouts, table_seeds)?;
    print(&settings, &plans, &store, &tables)
}

fn plan<'a>(settings: &'a Settings, layouts: &'a [LayoutData], quick: bool) -> anyhow::Result<Vec<LayoutPlan<'a>>> {
    let seeds = if quick { &settings.seeds[..1] } else { &settings.seeds[..] };
    let mut plans = Vec::new();
    for &seed in seeds {
        for layout in layouts {
            let points: Vec<Point> =
                if layout.matrix().is_some() || quick { vec![settings.base] } else { settings.one_at_a_time() };
            let mut simulation = LayoutSimulation::new(settings, layout, seed)?;
            let mut cells = Vec::new();
            for point in points {
                for &strategy in &settings.strategies {
                    let takes = simulation.simulate(point, strategy, 0)?.makespan;
                    cells.push(PlannedCell { cell: cell(layout, point, &strategy.to_string(), seed), strategy, takes });
                }
            }
            plans.push(LayoutPlan { layout, seed, cells });
        }
    }
    Ok(plans)
}

/// Prints the number of unfinished cells, and the estimated time to run them.
fn announce(plans: &[LayoutPlan<'_>], store: &CellStore<LabResult>) {
    let mut takes = Duration::ZERO;
    let (mut open, mut all) = (0, 0);
    for plan in plans {
        let left: Vec<&PlannedCell> = plan.cells.iter().filter(|one| store.find(&one.cell).is_none()).collect();
        all += plan.cells.len();
        open += left.len();
        if !left.is_empty() {
            takes += SURVEY;
        }
        takes += left.iter().map(|one| AROUND_A_CELL + one.takes).sum::<Duration>();
    }
    eprintln!(
        "{open} of {all} cells will run, in about {} minutes; nothing else should run on this machine",
        takes.as_secs().div_ceil(60)
    );
}

async fn run_plan(settings: &Settings, plan: &LayoutPlan<'_>, store: &mut CellStore<LabResult>) -> anyhow::Result<()> {
    if plan.cells.iter().all(|one| store.find(&one.cell).is_some()) {
        return Ok(());
    }
    let LayoutPlan { layout, seed, cells } = plan;
    let began = Instant::now();
    let mut simulator = Simulator::new(settings);
    let mut surveyed = SurveyedCluster::survey(settings, layout, *seed, SITE_INTERVAL)
        .await
        .with_context(|| format!("survey {} with seed {seed}", layout.name))?;
    eprintln!("{} seed {seed}: surveyed in {:.0} s", layout.name, began.elapsed().as_secs_f64());
    for planned in cells {
        if store.find(&planned.cell).is_some() {
            continue;
        }
        let (point, strategy) = (planned.cell.point, planned.strategy);
        let said = || format!("crawl {}", serde_json::to_string(&planned.cell).unwrap_or_default());
        let began = Instant::now();
        let result = surveyed.crawl_cell(point, strategy).await.with_context(said)?;
        store.add(planned.cell.clone(), result.clone())?;
        let told = line(&planned.cell, &result, simulator.simulate(layout, &planned.cell, strategy, &result)?);
        eprintln!("{told} (in {:.0} s)", began.elapsed().as_secs_f64());
    }
    surveyed.end().await
}

fn line(cell: &Cell, result: &LabResult, simulated: SimulatedMedians) -> String {
    let (busy, most) = busy(&result.per_agent);
    let SimulationRatios { growth, makespan } = SimulationRatios::of(simulated, result);
    let Point { loss, page_kb, per_site_rps, access_mbit } = cell.point;
    let rate = format!("{per_site_rps}{}", if per_site_rps.is_unthrottled() { "" } else { "/s" });
    let machine = result.machine;
    let void = result.void.as_ref().map_or(String::new(), |reason| format!("; VOID: {reason}"));
    format!(
        "{} seed {} loss x{loss} {page_kb} KB {rate} {access_mbit} Mbit/s {}: {:.1} MB/min, {:.1} s, \
         {busy} agents, {most} sites at most; \
         simulated {growth:.3} and {makespan:.3} of that, {} agents, {} sites at most; \
         {:.0} requests/s, {:.0} % idle, late {:.1} ms, lease {:.1} ms, outcome {:.1} ms, request {:.2} ms, begun {:.0} ms{void}",
        cell.layout,
        cell.seed,
        cell.strategy,
        result.growth.mb_per_min,
        result.makespan_s,
        simulated.busy,
        simulated.most,
        machine.requests_per_s,
        machine.idle * 100.0,
        machine.late_ms,
        machine.lease_ms,
        machine.outcome_ms,
        machine.request_ms,
        machine.begin_ms,
    )
}

fn print(
    settings: &Settings,
    plans: &[LayoutPlan<'_>],
    store: &CellStore<LabResult>,
    tables: &Tables,
) -> anyhow::Result<()> {
    let (mut finished, mut ratios, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let mut simulator = Simulator::new(settings);
    for (layout, planned) in plans.iter().flat_map(|plan| plan.cells.iter().map(|one| (plan.layout, one))) {
        let Some(result) = store.find(&planned.cell) else { continue };
        let simulated = simulator.simulate(layout, &planned.cell, planned.strategy, result)?;
        lines.push(line(&planned.cell, result, simulated));
        ratios.push(SimulationRatios::of(simulated, result));
        finished.push(FinishedCell { cell: planned.cell.clone(), result: result.clone() });
    }
    let rows: Vec<Row> = finished.iter().map(FinishedCell::row).collect();
    let (figure2, figure3) = (figure2(&finished), figure3(&finished, settings.base));
    let groups = results::groups(&rows);
    let mut verdict = targets::verdict(&groups, LEAST_SHARE_IN_LAB);
    verdict.extend(agreement(&finished, &ratios));
    let file = results::default_file(FOLDER, "report.html")?;
    let page = figures_and_page::page(&figures_and_page::Page {
        base: settings.base,
        finished: &finished,
        ratios: &ratios,
        tables,
        figure2: &figure2,
        figure3: &figure3,
        verdict: &verdict,
    });
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    std::fs::write(&file, page).with_context(|| format!("write {}", file.display()))?;
    println!("{}\n{}", tables.lines(), figures_and_page::figure_lines(&figure2, &figure3));
    lines.iter().for_each(|line| println!("{line}"));
    let names: Vec<String> = settings.strategies.iter().map(Strategy::to_string).collect();
    println!("\nMedians over seeds; in brackets the ratio to random's.\n{}", results::table(&groups, &names));
    verdict.iter().for_each(|line| println!("{line}"));
    println!("open {}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[tokio::test]
    async fn a_missing_layout_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let args = PaperArgs {
            matrices: MatrixArgs { data: PathBuf::from("/nowhere") },
            run: RunArgs { resume: Some(folder.path().join("cells.jsonl")), fresh: false },
            quick: true,
            tables: false,
            layout: Some("planetlab".to_owned()),
        };
        assert_eq!(paper(args).await.unwrap_err().to_string(), "there is no layout 'planetlab' here");
    }
}
