//! Draws the charts of the report: the embedding as a map, the crawled sites with one bar per
//! agent, predicted against true round trips, and throughput and concurrent crawls over time.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use landfall_scheduler::gnp::project;
use landfall_scheduler::model::Strategy;
use landfall_scheduler::plot::map::{AgentMark, Groups, Plane, SiteMark, colour, draw, legend};
use landfall_scheduler::plot::px;
use maud::{Markup, html};

use super::targets::Target;
use crate::evidence::batch_record::BatchRecord;
use crate::evidence::check::Check;
use crate::evidence::figures::{Figures, float};
use crate::world::scenario::Scenario;

#[derive(Debug)]
pub struct ReportInput<'a> {
    pub scenario: &'a Scenario,
    pub record: &'a BatchRecord,
    pub figures: &'a Figures,
    pub targets: &'a [Target],
    pub checks: &'a [Check],
    /// The sites' names as submitted, by site index.
    pub sites: &'a [String],
    pub strategy: Strategy,
    pub took: Duration,
    /// Why the run's times are unreliable; `None` if they are reliable.
    pub busy: Option<&'a str>,
}

pub(super) fn embedding_map(run: &ReportInput<'_>, groups: &Groups) -> Markup {
    let Some((agents, sites, explained)) = marks(run) else {
        return html! { figure { h2 { "The map" } figcaption { "There is no embedding: measured distance decided." } } };
    };
    let (drawing, outside) = draw(Plane::Network, true, &agents, &sites, groups);
    html! { figure {
        h2 { "The map" }
        figcaption {
            "The embedding, projected on the two directions in which hosts differ most (" (format!("{:.0} %", explained * 100.0))
            " of the variance; access delays are not drawn). A line joins each site to the agent that crawled it, in that "
            "agent's colour. Large dots are agents, ringed dots are landmarks."
            @if outside > 0 { " Hosts beyond the frame are drawn on its edge: " (outside) "." }
        }
        (drawing)
        (groups.legend())
    } }
}

/// The marks of all placed agents and sites, and the fraction of the variance that the two plotted
/// directions show.
fn marks<'a>(run: &ReportInput<'a>) -> Option<(Vec<AgentMark<'a>>, Vec<SiteMark<'a>>, f64)> {
    let map = run.record.embedding.as_ref()?;
    let dimensions = map.embedding.dimensions();
    let placements = map.agents.values().chain(map.sites.values());
    let places: Vec<&[f64]> = placements.filter_map(|placement| placement.coordinate.get(..dimensions)).collect();
    if places.is_empty() || places.len() != map.agents.len() + map.sites.len() {
        return None;
    }
    let (projected, explained) = project(&places, dimensions);
    let mark = |(name, at): (&'a String, &[f64; 2])| {
        let landmark = run.record.landmarks.contains(name);
        let tooltip = if landmark { format!("{name}, a landmark") } else { name.clone() };
        AgentMark { name, at: *at, landmark, tooltip, href: None }
    };
    let agents = map.agents.keys().zip(&projected).map(mark).collect();
    let sites = map.sites.keys().zip(projected.iter().skip(map.agents.len())).map(|(name, at)| {
        let agent = run.record.tasks.iter().find(|task| task.site == *name).and_then(|task| task.crawler.as_deref());
        SiteMark { at: *at, agent, tooltip: format!("{name}, crawled by {}", agent.unwrap_or("nobody")) }
    });
    Some((agents, sites.collect(), explained))
}

const BARS_WIDTH: f64 = 1000.0;
const BARS_LEFT: f64 = 190.0;
const BARS_RIGHT: f64 = 150.0;
const ROW: f64 = 20.0;
const BARS_TOP: f64 = 26.0;
/// Maximum number of carriers by which bars are split. If there are more carriers, bars are not
/// split.
const MAX_CARRIERS: usize = 8;

struct Bar<'a> {
    agent: &'a str,
    parts: Vec<usize>,
    megabytes: f64,
    mean_ms: Option<f64>,
}

pub(super) fn sites_per_agent(run: &ReportInput<'_>) -> Markup {
    let carriers = carriers(run);
    let bars = bars(run, &carriers);
    let most = bars.iter().map(|bar| bar.parts.iter().sum::<usize>()).max().unwrap_or(0).max(1);
    let per_site = (BARS_WIDTH - BARS_LEFT - BARS_RIGHT) / float(most);
    let height = BARS_TOP + ROW * float(bars.len()) + 8.0;
    html! { figure {
        h2 { "Who crawls what" }
        figcaption {
            "Sites crawled by each agent" @if carriers.len() > 1 { ", coloured by the site's carrier" }
            "; beside each bar the megabytes, and the mean emulated round trip to its sites."
        }
        svg viewBox={ "0 0 " (BARS_WIDTH) " " (height) } role="img" aria-label="Sites crawled by each agent" {
            title { "Sites crawled by each agent" }
            @for tick in ticks(float(most)) {
                line.grid x1=(px(BARS_LEFT + tick * per_site)) x2=(px(BARS_LEFT + tick * per_site)) y1=(px(BARS_TOP - 6.0)) y2=(px(height)) {}
                text x=(px(BARS_LEFT + tick * per_site)) y="14" text-anchor="middle" { (label(tick)) }
            }
            @for (row, bar) in bars.iter().enumerate() {
                @let y = BARS_TOP + ROW * float(row);
                text x=(px(BARS_LEFT - 10.0)) y=(px(y + 13.0)) text-anchor="end" { (bar.agent) }
                @for (rank, (begin, count)) in starts(&bar.parts).enumerate() {
                    @if count > 0 {
                        rect x=(px(BARS_LEFT + float(begin) * per_site)) y=(px(y + 2.0)) width=(px(float(count) * per_site - 1.0))
                            height=(px(ROW - 5.0)) rx="2" fill=(colour(rank)) {
                            title { (bar.agent) ": " (count) " sites" @if carriers.len() > 1 { " on " (carriers[rank]) } }
                        }
                    }
                }
                @let end = BARS_LEFT + float(bar.parts.iter().sum::<usize>()) * per_site;
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

const SCATTER_SIDE: f64 = 560.0;
const SCATTER_LEFT: f64 = 56.0;
const SCATTER_BOTTOM: f64 = 44.0;
const SCATTER_RIGHT: f64 = 14.0;
/// Maximum relative error of the predictions inside the shaded band.
const BAND: f64 = 0.15;
/// The values of the tick marks on both axes, in milliseconds.
const MARKS: [f64; 13] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// The range of both axes, in milliseconds. Both axes have the same range, so that exact
/// predictions are on the diagonal.
struct Axes {
    low: f64,
    high: f64,
}

impl Axes {
    fn at(&self, millis: f64) -> f64 {
        (millis.clamp(self.low, self.high) / self.low).ln() / (self.high / self.low).ln()
    }

    fn x(&self, millis: f64) -> String {
        format!("{:.1}", SCATTER_LEFT + self.at(millis) * (SCATTER_SIDE - SCATTER_LEFT - SCATTER_RIGHT))
    }

    fn y(&self, millis: f64) -> String {
        format!(
            "{:.1}",
            SCATTER_SIDE - SCATTER_BOTTOM - self.at(millis) * (SCATTER_SIDE - SCATTER_BOTTOM - SCATTER_RIGHT)
        )
    }
}

pub(super) fn accuracy(run: &ReportInput<'_>) -> Markup {
    let predictions = &run.figures.predictions;
    if predictions.is_empty() {
        return html! {};
    }
    let values = || predictions.iter().flat_map(|one| [one.true_ms, one.predicted_ms]);
    let low = values().fold(f64::INFINITY, f64::min).max(1.0);
    let axes = Axes { low, high: values().fold(low * 2.0, f64::max) };
    let mut dots = String::new();
    for one in predictions {
        // Writing to a string never fails.
        let _ = write!(dots, "M{} {}h0", axes.x(one.true_ms), axes.y(one.predicted_ms));
    }
    let band = format!(
        "M{} {}L{} {}L{} {}L{} {}Z",
        axes.x(axes.low),
        axes.y(axes.low * (1.0 - BAND)),
        axes.x(axes.high),
        axes.y(axes.high * (1.0 - BAND)),
        axes.x(axes.high / (1.0 + BAND)),
        axes.y(axes.high),
        axes.x(axes.low),
        axes.y(axes.low * (1.0 + BAND))
    );
    let error =
        |share| run.figures.relative_error(share).map_or("–".to_owned(), |error| format!("{:.1} %", error * 100.0));
    html! { figure {
        h2 { "Predicted and true distance" }
        figcaption {
            "Each dot is a site and an agent that never measured it: " (predictions.len()) " pairs, landmarks left out. Half of the "
            "predictions are within " (error(0.5)) " of the emulated round trip, nine tenths within " (error(0.9))
            ". The band is ±15 %; both scales are logarithmic, in milliseconds."
        }
        svg viewBox={ "0 0 " (SCATTER_SIDE) " " (SCATTER_SIDE) } style="max-width:640px;margin:0 auto" role="img" aria-label="Predicted against true round trip" {
            title { "Predicted against true round trip, in milliseconds" }
            @for mark in MARKS.into_iter().filter(|mark| *mark >= axes.low && *mark <= axes.high) {
                line.grid x1=(axes.x(mark)) x2=(axes.x(mark)) y1=(SCATTER_RIGHT) y2=(SCATTER_SIDE - SCATTER_BOTTOM) {}
                line.grid x1=(SCATTER_LEFT) x2=(SCATTER_SIDE - SCATTER_RIGHT) y1=(axes.y(mark)) y2=(axes.y(mark)) {}
                text x=(axes.x(mark)) y=(SCATTER_SIDE - SCATTER_BOTTOM + 16.0) text-anchor="middle" { (label(mark)) }
                text x=(SCATTER_LEFT - 8.0) y=(axes.y(mark)) dy="4" text-anchor="end" { (label(mark)) }
            }
            path d=(band) fill="var(--accent)" fill-opacity="0.12" {}
            path d={ "M" (axes.x(axes.low)) " " (axes.y(axes.low)) "L" (axes.x(axes.high)) " " (axes.y(axes.high)) } stroke="var(--soft)" stroke-dasharray="4 4" fill="none" {}
            path d=(dots) stroke="var(--accent)" stroke-opacity="0.35" stroke-width="3.4" stroke-linecap="round" fill="none" {}
            text x=((SCATTER_LEFT + SCATTER_SIDE) / 2.0) y=(SCATTER_SIDE - 8.0) text-anchor="middle" { "emulated round trip" }
            text transform={ "translate(14 " ((SCATTER_SIDE - SCATTER_BOTTOM) / 2.0) ") rotate(-90)" } text-anchor="middle" { "predicted round trip" }
        }
    } }
}

const TIME_WIDTH: f64 = 1000.0;
const TIME_LEFT: f64 = 56.0;
const PLOT: f64 = 200.0;
const GAP: f64 = 46.0;
const TIME_TOP: f64 = 18.0;
/// Number of equal time slices, from the first crawl's start to the last crawl's end.
const SLICES: usize = 120;

/// A crawl. Times are in seconds since the first crawl began.
struct Crawl {
    begin_s: f64,
    end_s: f64,
    megabytes: f64,
}

pub(super) fn throughput(run: &ReportInput<'_>) -> Markup {
    let crawls = crawls(run);
    let total_s = crawls.iter().map(|crawl| crawl.end_s).fold(0.0, f64::max);
    if total_s <= 0.0 {
        return html! {};
    }
    let slice_s = total_s / float(SLICES);
    let (rate, active) = slices(&crawls, slice_s);
    let height = TIME_TOP + 2.0 * PLOT + GAP + 34.0;
    let x = |seconds: f64| TIME_LEFT + seconds / total_s * (TIME_WIDTH - TIME_LEFT - 10.0);
    html! { figure {
        h2 { "Throughput over time" }
        figcaption {
            "Megabytes a minute, and sites being crawled, from the first crawl's begin. Each crawl's bytes are spread evenly over its "
            "own duration; a slice is " (format!("{slice_s:.1}")) " s."
        }
        svg viewBox={ "0 0 " (TIME_WIDTH) " " (height) } role="img" aria-label="Throughput over time" {
            title { "Throughput and active crawls over time" }
            @for tick in ticks(total_s) {
                line.grid x1=(px(x(tick))) x2=(px(x(tick))) y1=(px(TIME_TOP)) y2=(px(height - 26.0)) {}
                text x=(px(x(tick))) y=(px(height - 10.0)) text-anchor="middle" { (label(tick)) " s" }
            }
            (area(&rate, TIME_TOP, "var(--c0)", "MB/min"))
            (area(&active, TIME_TOP + PLOT + GAP, "var(--c3)", "sites at once"))
        }
    } }
}

/// Draws a filled curve that has its own vertical scale.
fn area(values: &[f64], top: f64, colour: &str, unit: &str) -> Markup {
    let most = values.iter().copied().fold(0.0, f64::max).max(1e-9);
    let base = top + PLOT;
    let y = |value: f64| base - value / most * (PLOT - 12.0);
    let step = (TIME_WIDTH - TIME_LEFT - 10.0) / float(values.len());
    let mut line = String::new();
    for (index, value) in values.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        // Writing to a string never fails.
        let _ = write!(line, "{letter}{} {}", px(TIME_LEFT + step * (float(index) + 0.5)), px(y(*value)));
    }
    let closed = format!(
        "{line}L{} {}L{} {}Z",
        px(TIME_LEFT + step * (float(values.len()) - 0.5)),
        px(base),
        px(TIME_LEFT + step * 0.5),
        px(base)
    );
    html! {
        @for tick in ticks(most) {
            line.grid x1=(px(TIME_LEFT)) x2=(px(TIME_WIDTH - 10.0)) y1=(px(y(tick))) y2=(px(y(tick))) {}
            text x=(px(TIME_LEFT - 8.0)) y=(px(y(tick) + 4.0)) text-anchor="end" { (label(tick)) }
        }
        path d=(closed) fill=(colour) fill-opacity="0.18" {}
        path d=(line) fill="none" stroke=(colour) stroke-width="2" stroke-linejoin="round" {}
        text.strong x=(px(TIME_LEFT)) y=(px(top - 4.0)) { (unit) }
    }
}

fn crawls(run: &ReportInput<'_>) -> Vec<Crawl> {
    let begun = run.record.tasks.iter().filter_map(|task| task.started_at).min();
    let tasks = run.record.tasks.iter().filter_map(|task| Some((task, task.started_at?, begun?)));
    tasks
        .map(|(task, started, begun)| {
            let begin_s = (started - begun).to_std().unwrap_or_default().as_secs_f64();
            let took_s = f64::from(u32::try_from(task.duration_ms).unwrap_or(0)) / 1e3;
            let megabytes = f64::from(u32::try_from(task.bytes).unwrap_or(u32::MAX)) / 1e6;
            Crawl { begin_s, end_s: begin_s + took_s.max(1e-3), megabytes }
        })
        .collect()
}

/// The megabytes per minute and the mean number of concurrent crawls in each slice.
fn slices(crawls: &[Crawl], slice_s: f64) -> (Vec<f64>, Vec<f64>) {
    (0..SLICES)
        .map(|slice| {
            let (from, to) = (float(slice) * slice_s, float(slice + 1) * slice_s);
            let overlap = |crawl: &Crawl| (crawl.end_s.min(to) - crawl.begin_s.max(from)).max(0.0);
            let megabytes: f64 =
                crawls.iter().map(|crawl| crawl.megabytes * overlap(crawl) / (crawl.end_s - crawl.begin_s)).sum();
            (megabytes / slice_s * 60.0, crawls.iter().map(overlap).sum::<f64>() / slice_s)
        })
        .unzip()
}

/// About five tick values from 0 to `most`, in steps of 1, 2 or 5 times a power of ten.
fn ticks(most: f64) -> Vec<f64> {
    let rough = (most / 5.0).max(1e-9);
    let decade = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * decade).find(|step| *step >= rough).unwrap_or(rough);
    let mut values = vec![0.0];
    while values.last().is_some_and(|last| last + step <= most * 1.001) {
        values.push(values.last().map_or(0.0, |last| last + step));
    }
    values
}

/// Formats a number: with one decimal place if it is below 10 and not whole, and otherwise with
/// none.
fn label(value: f64) -> String {
    if value >= 10.0 || value.fract().abs() < 1e-9 { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_keep_every_byte() {
        let crawls =
            [Crawl { begin_s: 0.0, end_s: 12.0, megabytes: 6.0 }, Crawl { begin_s: 3.3, end_s: 3.4, megabytes: 1.0 }];
        let slice_s = 12.0 / float(SLICES);
        let (rate, active) = slices(&crawls, slice_s);
        let bytes: f64 = rate.iter().map(|rate| rate / 60.0 * slice_s).sum();
        assert!((bytes - 7.0).abs() < 1e-9, "{bytes}");
        let busy: f64 = active.iter().map(|active| active * slice_s).sum();
        assert!((busy - 12.1).abs() < 1e-9, "{busy}");
    }

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        assert_eq!(ticks(43.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(ticks(1.0).len(), 6);
        assert_eq!(ticks(0.0).len(), 1);
        assert_eq!((label(12.34), label(1.25), label(3.0)), ("12".to_owned(), "1.2".to_owned(), "3".to_owned()));
    }
}
