//! The chart of throughput and of concurrent crawls over time.

use std::fmt::Write as _;

use landfall_scheduler::plot::px;
use maud::{Markup, html};

use super::axis_ticks::{label, ticks};
use super::report_input::ReportInput;
use crate::evidence::figures::float;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 56.0;
const PLOT: f64 = 200.0;
const GAP: f64 = 46.0;
const TOP: f64 = 18.0;
/// Number of equal time slices, from the first crawl's start to the last crawl's end.
const SLICES: usize = 120;

/// A crawl. Times are in seconds since the first crawl began.
struct Crawl {
    begin_s: f64,
    end_s: f64,
    megabytes: f64,
}

pub(super) fn figure(run: &ReportInput<'_>) -> Markup {
    let crawls = crawls(run);
    let total_s = crawls.iter().map(|crawl| crawl.end_s).fold(0.0, f64::max);
    if total_s <= 0.0 {
        return html! {};
    }
    let slice_s = total_s / float(SLICES);
    let (rate, active) = slices(&crawls, slice_s);
    let height = TOP + 2.0 * PLOT + GAP + 34.0;
    let x = |seconds: f64| LEFT + seconds / total_s * (WIDTH - LEFT - 10.0);
    html! { figure {
        h2 { "Throughput over time" }
        figcaption {
            "Megabytes a minute, and sites being crawled, from the first crawl's begin. Each crawl's bytes are spread evenly over its "
            "own duration; a slice is " (format!("{slice_s:.1}")) " s."
        }
        svg viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label="Throughput over time" {
            title { "Throughput and active crawls over time" }
            @for tick in ticks(total_s) {
                line.grid x1=(px(x(tick))) x2=(px(x(tick))) y1=(px(TOP)) y2=(px(height - 26.0)) {}
                text x=(px(x(tick))) y=(px(height - 10.0)) text-anchor="middle" { (label(tick)) " s" }
            }
            (area(&rate, TOP, "var(--c0)", "MB/min"))
            (area(&active, TOP + PLOT + GAP, "var(--c3)", "sites at once"))
        }
    } }
}

/// Draws a filled curve that has its own vertical scale.
fn area(values: &[f64], top: f64, colour: &str, unit: &str) -> Markup {
    let most = values.iter().copied().fold(0.0, f64::max).max(1e-9);
    let base = top + PLOT;
    let y = |value: f64| base - value / most * (PLOT - 12.0);
    let step = (WIDTH - LEFT - 10.0) / float(values.len());
    let mut line = String::new();
    for (index, value) in values.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        // Writing to a string never fails.
        let _ = write!(line, "{letter}{} {}", px(LEFT + step * (float(index) + 0.5)), px(y(*value)));
    }
    let closed = format!(
        "{line}L{} {}L{} {}Z",
        px(LEFT + step * (float(values.len()) - 0.5)),
        px(base),
        px(LEFT + step * 0.5),
        px(base)
    );
    html! {
        @for tick in ticks(most) {
            line.grid x1=(px(LEFT)) x2=(px(WIDTH - 10.0)) y1=(px(y(tick))) y2=(px(y(tick))) {}
            text x=(px(LEFT - 8.0)) y=(px(y(tick) + 4.0)) text-anchor="end" { (label(tick)) }
        }
        path d=(closed) fill=(colour) fill-opacity="0.18" {}
        path d=(line) fill="none" stroke=(colour) stroke-width="2" stroke-linejoin="round" {}
        text.strong x=(px(LEFT)) y=(px(top - 4.0)) { (unit) }
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
}
