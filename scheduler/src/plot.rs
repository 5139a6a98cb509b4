//! Renders HTML pages, and line plots, bar charts and maps as SVG. A page's style sheet defines the
//! colours.

mod axis;
mod bars;
mod document;
mod lines;
pub mod map;
mod numbers;

pub use axis::Axis;
pub(crate) use bars::{Bar, bars};
pub use document::{STYLE, document};
pub use lines::{Curve, lines};
pub use numbers::{label, px};
