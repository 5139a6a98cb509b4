//! The chart of crawled sites, with one bar per agent. Bars are split by the sites' carriers if
//! there are few carriers.

use std::collections::BTreeSet;

use landfall_scheduler::plot::map::{colour, legend};
use landfall_scheduler::plot::px;
use maud::{Markup, html};

use super::axis_ticks::{label, ticks};
use super::report_input::ReportInput;
use crate::evidence::figures::float;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 150.0;
const ROW: f64 = 20.0;
const TOP: f64 = 26.0;
/// Maximum number of carriers by which bars are split. If there are more carriers, bars are not
/// split.
const MAX_CARRIERS: usize = 8;

struct Bar<'a> {
    agent: &'a str,
    parts: Vec<usize>,
    megabytes: f64,
    mean_ms: Option<f64>,
}

pub(super) fn figure(run: &ReportInput<'_>) -> Markup {
    let carriers = carriers(run);
    let bars = bars(run, &carriers);
    let most = bars.iter().map(|bar| bar.parts.iter().sum::<usize>()).max().unwrap_or(0).max(1);
    let per_site = (WIDTH - LEFT - RIGHT) / float(most);
    let height = TOP + ROW * float(bars.len()) + 8.0;
    html! { figure {
        h2 { "Who crawls what" }
        figcaption {
            "Sites crawled by each agent" @if carriers.len() > 1 { ", coloured by the site's carrier" }
            "; beside each bar the megabytes, and the mean emulated round trip to its sites."
        }
        svg viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label="Sites crawled by each agent" {
            title { "Sites crawled by each agent" }
            @for tick in ticks(float(most)) {
                line.grid x1=(px(LEFT + tick * per_site)) x2=(px(LEFT + tick * per_site)) y1=(px(TOP - 6.0)) y2=(px(height)) {}
                text x=(px(LEFT + tick * per_site)) y="14" text-anchor="middle" { (label(tick)) }
            }
            @for (row, bar) in bars.iter().enumerate() {
                @let y = TOP + ROW * float(row);
                text x=(px(LEFT - 10.0)) y=(px(y + 13.0)) text-anchor="end" { (bar.agent) }
                @for (rank, (begin, count)) in starts(&bar.parts).enumerate() {
                    @if count > 0 {
                        rect x=(px(LEFT + float(begin) * per_site)) y=(px(y + 2.0)) width=(px(float(count) * per_site - 1.0))
                            height=(px(ROW - 5.0)) rx="2" fill=(colour(rank)) {
                            title { (bar.agent) ": " (count) " sites" @if carriers.len() > 1 { " on " (carriers[rank]) } }
                        }
                    }
                }
                @let end = LEFT + float(bar.parts.iter().sum::<usize>()) * per_site;
                text x=(px(end + 8.0)) y=(px(y + 13.0)) {
                    (bar.parts.iter().sum::<usize>())
                    @if let Some(mean) = bar.mean_ms { " · " (format!("{:.1} MB · {mean:.0} ms", bar.megabytes)) }
                }
            }
        }
        @if carriers.len() > 1 {
            (legend(&carriers.iter().enumerate().map(|(rank, name)| (colour(rank), (*name).to_owned())).collect::<Vec<_>>()))
        }
    } }
}

/// The carriers by which bars are split. If there are more than [`MAX_CARRIERS`], the result is one
/// carrier without a name.
fn carriers<'a>(run: &ReportInput<'a>) -> Vec<&'a str> {
    let all: BTreeSet<&str> = run.scenario.sites.iter().map(|site| site.carrier.as_str()).collect();
    if all.len() > MAX_CARRIERS { vec![""] } else { all.into_iter().collect() }
}

fn bars<'a>(run: &ReportInput<'a>, carriers: &[&str]) -> Vec<Bar<'a>> {
    let mut bars: Vec<Bar<'a>> = run
        .scenario
        .agents
        .iter()
        .enumerate()
        .map(|(agent_index, agent)| {
            let mut bar = Bar { agent: &agent.name, parts: vec![0; carriers.len()], megabytes: 0.0, mean_ms: None };
            let mut total_ms = 0.0;
            for task in run.record.tasks.iter().filter(|task| task.crawler.as_ref() == Some(&agent.name)) {
                let Some(site) = run.sites.iter().position(|name| *name == task.site) else { continue };
                let carrier = run.scenario.sites[site].carrier.as_str();
                bar.parts[carriers.iter().position(|name| *name == carrier).unwrap_or(0)] += 1;
                bar.megabytes += f64::from(u32::try_from(task.bytes).unwrap_or(u32::MAX)) / 1e6;
                total_ms += run.scenario.paths[agent_index][site].rtt_ms;
            }
            let sites: usize = bar.parts.iter().sum();
            bar.mean_ms = (sites > 0).then(|| total_ms / float(sites));
            bar
        })
        .collect();
    bars.sort_by_key(|bar| std::cmp::Reverse(bar.parts.iter().sum::<usize>()));
    bars
}

/// The start and the length of each part of a bar. The start is the sum of the parts before it.
fn starts(parts: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    parts.iter().scan(0, |end, &count| {
        let begin = *end;
        *end += count;
        Some((begin, count))
    })
}
