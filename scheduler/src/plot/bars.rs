//! Plots horizontal bars, each with its name and its value.

use maud::{Markup, html};

use crate::model::stats::count;

use super::axis::Axis;
use super::numbers::{label, px};

const WIDTH: f64 = 1000.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 52.0;
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
