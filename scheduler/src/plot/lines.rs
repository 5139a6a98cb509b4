//! Plots lines over two axes, with a legend.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::axis::Axis;
use super::numbers::{label, px};

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
