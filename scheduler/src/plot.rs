//! Renders HTML pages, and line plots, bar charts and maps as SVG. A page's style sheet defines the
//! colours.

mod charts_and_page;
pub mod map;

pub use charts_and_page::{Axis, Curve, STYLE, document, label, lines, px};
pub(crate) use charts_and_page::{Bar, bars};
