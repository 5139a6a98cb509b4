//! Composes the page: its heading and tiles, then the charts, then the tables.

use landfall_scheduler::plot::map::Groups;
use landfall_scheduler::plot::{STYLE as PLOTS, document};
use maud::{Markup, html};

use super::report_input::ReportInput;
use super::{bars, map, scatter, tables, throughput};

/// The style of the plots and of the lab's pages.
pub(crate) fn style() -> String {
    [PLOTS, include_str!("style.css")].concat()
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
        (map::figure(run, &groups))
        (bars::figure(run))
        (scatter::figure(run))
        (throughput::figure(run))
        (tables::targets(run))
        (tables::checks(run))
        (tables::agents_table(run))
        (tables::assignments(run))
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
        let keys = page.matches("<svg class=\"dot\"").count();
        assert_eq!((page.matches("<svg").count() - keys, keys), (4, 9));
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
