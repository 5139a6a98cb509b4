//! The chart of the embedding's accuracy: predicted round trips plotted against true round trips,
//! on logarithmic scales.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::axis_ticks::label;
use super::report_input::ReportInput;

const SIDE: f64 = 560.0;
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 44.0;
const RIGHT: f64 = 14.0;
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
        format!("{:.1}", LEFT + self.at(millis) * (SIDE - LEFT - RIGHT))
    }

    fn y(&self, millis: f64) -> String {
        format!("{:.1}", SIDE - BOTTOM - self.at(millis) * (SIDE - BOTTOM - RIGHT))
    }
}

pub(super) fn figure(run: &ReportInput<'_>) -> Markup {
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
        svg viewBox={ "0 0 " (SIDE) " " (SIDE) } style="max-width:640px;margin:0 auto" role="img" aria-label="Predicted against true round trip" {
            title { "Predicted against true round trip, in milliseconds" }
            @for mark in MARKS.into_iter().filter(|mark| *mark >= axes.low && *mark <= axes.high) {
                line.grid x1=(axes.x(mark)) x2=(axes.x(mark)) y1=(RIGHT) y2=(SIDE - BOTTOM) {}
                line.grid x1=(LEFT) x2=(SIDE - RIGHT) y1=(axes.y(mark)) y2=(axes.y(mark)) {}
                text x=(axes.x(mark)) y=(SIDE - BOTTOM + 16.0) text-anchor="middle" { (label(mark)) }
                text x=(LEFT - 8.0) y=(axes.y(mark)) dy="4" text-anchor="end" { (label(mark)) }
            }
            path d=(band) fill="var(--accent)" fill-opacity="0.12" {}
            path d={ "M" (axes.x(axes.low)) " " (axes.y(axes.low)) "L" (axes.x(axes.high)) " " (axes.y(axes.high)) } stroke="var(--soft)" stroke-dasharray="4 4" fill="none" {}
            path d=(dots) stroke="var(--accent)" stroke-opacity="0.35" stroke-width="3.4" stroke-linecap="round" fill="none" {}
            text x=((LEFT + SIDE) / 2.0) y=(SIDE - 8.0) text-anchor="middle" { "emulated round trip" }
            text transform={ "translate(14 " ((SIDE - BOTTOM) / 2.0) ") rotate(-90)" } text-anchor="middle" { "predicted round trip" }
        }
    } }
}
