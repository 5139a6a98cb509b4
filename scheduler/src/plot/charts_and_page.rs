//! Renders HTML pages with their style sheet, and as SVG line plots and bar charts, with their axes
//! and numbers.

use std::fmt::Write as _;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::model::stats::count;

/// The default style sheet of pages, for light and dark screens.
pub const STYLE: &str = include_str!("style.css");

/// Renders an HTML page as a single file.
pub fn document(title: &str, style: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(style)) }
            }
            body { main { (body) } }
        }
    };
    page.into_string()
}

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 52.0;

/// One line of a plot. The style sheet defines the colour and dashes of each class of lines.
pub struct Curve {
    pub name: String,
    pub class: String,
    pub points: Vec<(f64, f64)>,
    /// Whether the points of the line are marked.
    pub marked: bool,
}

/// Plots lines over two axes, with a legend.
pub fn lines(title: &str, across: &Axis, up: &Axis, curves: &[Curve]) -> Markup {
    let x = |value: f64| LEFT + across.place(value) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - up.place(value) * (HEIGHT - TOP - BOTTOM);
    let (floor, middle) = (HEIGHT - BOTTOM, TOP + (HEIGHT - TOP - BOTTOM) / 2.0);
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(title) {
            title { (title) }
            @for tick in &across.ticks {
                line.grid x1=(px(x(*tick))) x2=(px(x(*tick))) y1=(px(TOP)) y2=(px(floor)) {}
                text x=(px(x(*tick))) y=(px(floor + 17.0)) text-anchor="middle" { (label(*tick)) }
            }
            @for tick in &up.ticks {
                line.grid x1=(px(LEFT)) x2=(px(WIDTH - RIGHT)) y1=(px(y(*tick))) y2=(px(y(*tick))) {}
                text x=(px(LEFT - 8.0)) y=(px(y(*tick) + 4.0)) text-anchor="end" { (label(*tick)) }
            }
            text.strong x=(px(LEFT + (WIDTH - LEFT - RIGHT) / 2.0)) y=(px(HEIGHT - 10.0)) text-anchor="middle" { (across.label) }
            text.strong transform={ "translate(16 " (px(middle)) ") rotate(-90)" } text-anchor="middle" { (up.label) }
            @for curve in curves {
                path class={ "curve " (curve.class) } d=(path(curve, &x, &y)) { title { (curve.name) } }
                @if curve.marked { @for (across, up) in &curve.points {
                    circle class={ "mark " (curve.class) } cx=(px(x(*across))) cy=(px(y(*up))) r="3.5" {}
                } }
            }
        }
        ul.legend { @for curve in curves { li {
            svg.key viewBox="0 0 30 10" aria-hidden="true" { line class={ "curve " (curve.class) } x1="1" x2="29" y1="5" y2="5" {} }
            (curve.name)
        } } }
    }
}

fn path(curve: &Curve, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) -> String {
    let mut path = String::new();
    for (index, (across, up)) in curve.points.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        // Writing to a string cannot fail.
        let _ = write!(path, "{letter}{} {}", px(x(*across)), px(y(*up)));
    }
    path
}

/// Height of a bar, including the gap to the next bar.
const BAR: f64 = 28.0;
/// Width of the space for the names of bars.
const NAMES: f64 = 180.0;
/// Maximum number of characters of a bar's name that are drawn, because more would not fit. The
/// tooltip contains the whole name.
const NAME: usize = 24;
/// Width of the space for the values at the ends of bars.
const FIGURES: f64 = 90.0;

pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) class: String,
    /// The length of the bar; `None` if the value is unknown.
    pub(crate) value: Option<f64>,
}

/// Plots horizontal bars, each with its name and its value.
pub(crate) fn bars(title: &str, axis: &Axis, bars: &[Bar]) -> Markup {
    let x = |value: f64| NAMES + axis.place(value) * (WIDTH - NAMES - FIGURES);
    let floor = TOP + BAR * count(bars.len());
    let height = floor + BOTTOM;
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (px(height)) } role="img" aria-label=(title) {
            title { (title) }
            @for tick in &axis.ticks {
                line.grid x1=(px(x(*tick))) x2=(px(x(*tick))) y1=(px(TOP)) y2=(px(floor)) {}
                text x=(px(x(*tick))) y=(px(floor + 17.0)) text-anchor="middle" { (label(*tick)) }
            }
            @for (index, bar) in bars.iter().enumerate() {
                @let top = TOP + BAR * count(index);
                text.strong x=(px(NAMES - 10.0)) y=(px(top + BAR / 2.0 + 4.0)) text-anchor="end" { title { (bar.name) } (shortened(&bar.name)) }
                @if let Some(value) = bar.value {
                    rect class={ "bar " (bar.class) } x=(px(NAMES)) y=(px(top + 4.0)) width=(px((x(value) - NAMES).max(0.0))) height=(px(BAR - 8.0)) rx="2" {}
                    text x=(px(x(value) + 6.0)) y=(px(top + BAR / 2.0 + 4.0)) { (format!("{value:.1}")) }
                } @else {
                    text x=(px(NAMES + 6.0)) y=(px(top + BAR / 2.0 + 4.0)) { "–" }
                }
            }
            text.strong x=(px(NAMES + (WIDTH - NAMES - FIGURES) / 2.0)) y=(px(height - 10.0)) text-anchor="middle" { (axis.label) }
        }
    }
}

/// Shortens a name so that it fits beside its bar.
fn shortened(name: &str) -> String {
    let cut: String = name.chars().take(NAME - 1).collect();
    if name.chars().count() > NAME { cut + "…" } else { name.to_owned() }
}

pub struct Axis {
    /// The quantity, with its unit.
    pub(super) label: String,
    /// The least and the greatest value on the axis.
    pub range: (f64, f64),
    pub ticks: Vec<f64>,
    /// Whether the scale is logarithmic.
    ratios: bool,
}

impl Axis {
    /// An axis from 0 to `most`, which is rounded up to a round value.
    pub fn linear(label: impl Into<String>, most: f64) -> Self {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let rough = most / 5.0;
        let decade = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
        let step = steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
        let count = (most / step - 1e-9).ceil().max(1.0);
        let ticks =
            (0..=20).map(|tick| f64::from(tick) * step).take_while(|tick| *tick <= step * (count + 0.5)).collect();
        Self { label: label.into(), range: (0.0, step * count), ticks, ratios: false }
    }

    /// An axis with whole numbers from 1 to `most`.
    pub(crate) fn counted(label: impl Into<String>, most: usize) -> Self {
        let step = most.div_ceil(20).max(1);
        let ticks = (1..=most).step_by(step).map(count).collect();
        Self { label: label.into(), range: (1.0, count(most.max(2))), ticks, ratios: false }
    }

    /// A logarithmic axis that contains `least` and `most`.
    pub fn ratios(label: impl Into<String>, least: f64, most: f64) -> Self {
        let least = if least.is_finite() && least > 0.0 { least } else { 1.0 };
        let most = if most.is_finite() && most > least { most } else { least * 10.0 };
        let decades = (-6..=7).map(|decade| 10_f64.powi(decade));
        let all: Vec<f64> = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|factor| factor * decade)).collect();
        let from = all.iter().copied().rfind(|tick| *tick <= least).unwrap_or(least);
        let to = all.iter().copied().find(|tick| *tick >= most).unwrap_or(most);
        let ticks = all.into_iter().filter(|tick| (from..=to).contains(tick)).collect();
        Self { label: label.into(), range: (from, to), ticks, ratios: true }
    }

    /// The position of a value on the axis, from 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        let (from, to) = self.range;
        let place = match self.ratios {
            true => (value.max(f64::MIN_POSITIVE) / from).ln() / (to / from).ln(),
            false => (value - from) / (to - from),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// Formats a number for display, without trailing zeros.
pub fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a coordinate or length in a drawing.
pub fn px(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_round_and_hold_what_they_show() {
        let linear = Axis::linear("ms", 43.0);
        assert_eq!((linear.range, linear.ticks.len()), ((0.0, 50.0), 6));
        assert_eq!(Axis::linear("", 100.0).range, (0.0, 100.0));
        assert_eq!((Axis::linear("", 0.0).range, Axis::linear("", f64::NAN).range), ((0.0, 1.0), (0.0, 1.0)));
        let ratios = Axis::ratios("ms", 3.0, 320.0);
        assert_eq!(
            (ratios.range, ratios.ticks.as_slice()),
            ((2.0, 500.0), &[2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0][..])
        );
        assert!((ratios.place(1000.0_f64.sqrt()) - 0.5).abs() < 1e-9);
        for odd in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert!((0.0..=1.0).contains(&ratios.place(odd)) && (0.0..=1.0).contains(&linear.place(odd)));
            assert!(Axis::ratios("", odd, odd).ticks.len() > 1);
        }
        assert_eq!(Axis::counted("crawl", 5).ticks, [1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn labels_end_without_zeros() {
        assert_eq!((label(0.2), label(50.0), label(1.0)), ("0.2".to_owned(), "50".to_owned(), "1".to_owned()));
    }
}
