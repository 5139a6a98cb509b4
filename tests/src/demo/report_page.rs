//! Composes the report of a run, which is one self-contained HTML page: its heading and tiles, then
//! the charts, then the tables of targets, checks, agents and assignments. All values come from the
//! run.

use landfall_scheduler::plot::map::Groups;
use landfall_scheduler::plot::{STYLE as PLOTS, document};
use maud::{Markup, html};

use super::report_charts::{self, ReportInput};

/// The style of the plots and of the lab's pages.
pub(crate) fn style() -> String {
    [PLOTS, include_str!("report_page.css")].concat()
}

pub fn page(run: &ReportInput<'_>) -> String {
    let groups = groups(run);
    let agents = run.scenario.agents.len();
    let title = format!("Landfall: {} sites, {agents} agents", run.sites.len());
    let body = html! {
        h1 { (run.sites.len()) " sites, each crawled from nearby" }
        p.soft {
            (agents) " agents, " (run.record.landmarks.len()) " landmarks, strategy " (run.strategy) ", scenario "
            (run.scenario.name) " (seed " (run.scenario.seed) "), emulated on one machine in "
            (run.took.as_secs()) " s. The scheduler never saw the emulated round trips."
        }
        @if let Some(reason) = run.busy {
            p.busy { b { "Times are approximate" } ": " (reason) ". The checks do not depend on them." }
        }
        (tiles(run))
        (report_charts::embedding_map(run, &groups))
        (report_charts::sites_per_agent(run))
        (report_charts::accuracy(run))
        (report_charts::throughput(run))
        (targets(run))
        (checks(run))
        (agents_table(run))
        (assignments(run))
    };
    document(&title, &style(), &body)
}

fn tiles(run: &ReportInput<'_>) -> Markup {
    let count = |kind: &str| run.record.tasks.iter().filter(|task| task.kind.as_deref() == Some(kind)).count();
    let ratio = run.figures.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
    let error = run.figures.relative_error(0.5).map_or("–".to_owned(), |error| format!("{:.1} %", error * 100.0));
    let pages: i64 = run.record.tasks.iter().map(|task| i64::from(task.pages)).sum();
    let tiles = [
        (count("complete").to_string(), "sites complete"),
        (count("truncated").to_string(), "cut by a budget"),
        (pages.to_string(), "pages"),
        (format!("{:.1}", run.figures.megabytes_per_minute()), "MB a minute over the whole crawl"),
        (ratio, "of a random choice's round trip"),
        (error, "median error of predicted distance"),
    ];
    html! { div.tiles { @for (value, what) in tiles { div.tile { b { (value) } span { (what) } } } } }
}

fn groups(run: &ReportInput<'_>) -> Groups {
    Groups::of(run.scenario.agents.iter().map(|agent| {
        let same = agent.city == agent.carrier;
        let group = if same { agent.name.clone() } else { format!("{} {}", agent.city, agent.carrier) };
        let sites = run.record.tasks.iter().filter(|task| task.crawler.as_ref() == Some(&agent.name)).count();
        (agent.name.clone(), group, sites)
    }))
}

fn targets(run: &ReportInput<'_>) -> Markup {
    html! { section.card {
        h2 { "Targets" }
        table {
            tr { th { "target" } th { "wanted" } th { "measured in this run" } th { "" } }
            @for target in run.targets { tr {
                td { (target.name) } td { (target.wanted) } td { (target.measured) }
                td class=(if target.met { "met" } else { "missed" }) { (if target.met { "met" } else { "missed" }) }
            } }
        }
    } }
}

fn checks(run: &ReportInput<'_>) -> Markup {
    html! { section.card {
        h2 { "What was checked" }
        p.soft { "In the database, and against the web servers' own access logs." }
        table { @for check in run.checks { tr {
            td { (check.rule) @for violation in check.violations.iter().take(5) { br; span.soft { (violation) } } }
            td class=(if check.holds() { "met" } else { "missed" }) { (if check.holds() { "holds" } else { "broken" }) }
        } } }
    } }
}

fn agents_table(run: &ReportInput<'_>) -> Markup {
    let rows = run.scenario.agents.iter().map(|agent| {
        let tasks: Vec<_> = run.record.tasks.iter().filter(|task| task.crawler.as_ref() == Some(&agent.name)).collect();
        let pages: i32 = tasks.iter().map(|task| task.pages).sum();
        let bytes: i64 = tasks.iter().map(|task| task.bytes).sum();
        let landmark = run.record.landmarks.iter().position(|name| *name == agent.name);
        (agent, landmark, tasks.len(), pages, bytes)
    });
    html! { section.card {
        h2 { "Agents" }
        table {
            tr { th { "agent" } th { "city" } th { "carrier" } th { "landmark" } th.n { "sites" } th.n { "pages" } th.n { "kB" } }
            @for (agent, landmark, sites, pages, bytes) in rows { tr {
                td { (agent.name) } td { (agent.city) } td { (agent.carrier) }
                td { @if let Some(position) = landmark { "no. " (position + 1) } }
                td.n { (sites) } td.n { (pages) } td.n { (bytes / 1000) }
            } }
        }
    } }
}

fn assignments(run: &ReportInput<'_>) -> Markup {
    html! { section.card { details {
        summary { "All " (run.record.tasks.len()) " assignments" }
        table {
            tr {
                th { "site" } th { "agent" } th.n { "predicted" } th.n { "crawled" } th { "outcome" } th.n { "pages" } th.n { "kB" }
            }
            @for task in &run.record.tasks { tr {
                td { (task.site) } td { (task.agent.as_deref().unwrap_or("–")) }
                td.n { (task.predicted_us.map_or("–".to_owned(), millis)) }
                td.n { (task.crawled_us.map_or("–".to_owned(), millis)) }
                td { (task.kind.as_deref().unwrap_or(&task.state)) @if let Some(budget) = &task.budget { " (" (budget) ")" } }
                td.n { (task.pages) } td.n { (task.bytes / 1000) }
            } }
        }
    } } }
}

fn millis(micros: i64) -> String {
    format!("{:.1} ms", f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1e3)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::DateTime;
    use landfall_scheduler::gnp::{Embedding, Placement};
    use landfall_scheduler::model::{AgentId, EmbeddingEpoch, Strategy};

    use super::*;
    use crate::evidence::batch_record::{BatchRecord, EmbeddingRecord, TaskRecord};
    use crate::evidence::check::tests::task;
    use crate::evidence::figures::{Figures, float};
    use crate::world::scenario::{Layout, SMALL, Scenario};

    /// A batch record after a run of the small layout. The coordinates are invented.
    fn record(scenario: &Scenario, sites: &[String]) -> BatchRecord {
        let epoch = EmbeddingEpoch::new(1);
        let place = |index: usize| {
            let turn = float(index);
            Placement { epoch, coordinate: vec![turn.sin() * 20.0, turn.cos() * 15.0, turn, 1.0], fit_error: 0.1 }
        };
        let names: Vec<String> = scenario.agents.iter().map(|agent| agent.name.clone()).collect();
        let ids = (1..).map(AgentId::new);
        let placed = ids.clone().zip((0..names.len()).map(place)).collect();
        let landmarks = ids.take(3).collect();
        let embedding = Embedding::from_parts(epoch, 3, landmarks, placed, 0.1).unwrap();
        let tasks = sites.iter().enumerate().map(|(index, site)| TaskRecord {
            agent: Some(names[index % 3].clone()),
            crawler: Some(names[index % 3].clone()),
            pages: 7,
            bytes: 90_000,
            started_at: DateTime::from_timestamp(1_700_000_000 + i64::try_from(index).unwrap(), 0),
            duration_ms: 4_000,
            predicted_us: Some(12_345),
            ..task(site)
        });
        BatchRecord {
            tasks: tasks.collect(),
            active_leases: 0,
            wrong_progress: Vec::new(),
            landmarks: names[..3].to_vec(),
            site_measurements: Vec::new(),
            mesh_measurements: Vec::new(),
            trust: crate::evidence::batch_record::TrustRecord::default(),
            embedding: Some(EmbeddingRecord {
                embedding,
                agents: names.iter().cloned().zip((0..names.len()).map(place)).collect(),
                sites: sites.iter().cloned().zip((10..).map(place)).collect(),
            }),
        }
    }

    #[test]
    fn the_page_shows_every_picture_and_no_broken_number() {
        let scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(None, None).unwrap();
        let sites: Vec<String> = scenario.sites.iter().map(|site| format!("http://{}:8080", site.host)).collect();
        let record = record(&scenario, &sites);
        let figures = Figures::of(&record, &scenario, &sites);
        let targets = crate::demo::targets::accuracy_targets(&figures, 0.6);
        let run = ReportInput {
            scenario: &scenario,
            record: &record,
            figures: &figures,
            targets: &targets,
            checks: &[],
            sites: &sites,
            strategy: Strategy::GNP_TOP3,
            took: Duration::from_secs(5),
            busy: Some("the machine was busy <here>"),
        };
        let page = page(&run);
        let keys = page.matches("<svg class=\"dot\"").count() + page.matches("<svg class=\"key\"").count();
        assert_eq!((page.matches("<svg").count() - keys, keys), (5, 11));
        assert_eq!(page.matches("<figcaption>").count(), 4);
        for nonsense in ["NaN", "inf\"", "<here>", "http-equiv", "src="] {
            assert!(!page.contains(nonsense), "{nonsense}");
        }
        for element in ["line", "path", "circle", "rect", "text"] {
            let (opened, closed) = (format!("<{element} "), format!("</{element}>"));
            assert_eq!(page.matches(&opened).count(), page.matches(&closed).count(), "unclosed {element}");
        }
        assert!(sites.iter().all(|site| page.contains(site)));
        assert!(scenario.agents.iter().all(|agent| page.contains(&agent.name)));
    }
}
