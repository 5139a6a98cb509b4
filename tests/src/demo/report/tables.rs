//! Draws the tables of targets, checks, agents and assignments.

use maud::{Markup, html};

use super::report_input::ReportInput;

pub(super) fn targets(run: &ReportInput<'_>) -> Markup {
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

pub(super) fn checks(run: &ReportInput<'_>) -> Markup {
    html! { section.card {
        h2 { "What was checked" }
        p.soft { "In the database, and against the web servers' own access logs." }
        table { @for check in run.checks { tr {
            td { (check.rule) @for violation in check.violations.iter().take(5) { br; span.soft { (violation) } } }
            td class=(if check.holds() { "met" } else { "missed" }) { (if check.holds() { "holds" } else { "broken" }) }
        } } }
    } }
}

pub(super) fn agents_table(run: &ReportInput<'_>) -> Markup {
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

pub(super) fn assignments(run: &ReportInput<'_>) -> Markup {
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
