//! Writes metrics in Prometheus' text format (0.0.4).

use std::fmt::{Display, Write as _};

use crate::json::Word;

/// The value of the HTTP header `Content-Type` for Prometheus' text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The numbers of all enum values in the wire contract are below this number.
const MOST_NUMBER: i32 = 100;

/// Builds Prometheus' text format. Adds the prefix `landfall_` to every metric's name.
#[derive(Debug, Default)]
pub struct MetricsText(String);

impl MetricsText {
    /// Adds a gauge with one value per label, such as `{state="away"}`. A label may be empty.
    pub fn gauge<V: Display>(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, V)>) {
        self.family("gauge", name, help, values);
    }

    /// Adds a counter with one value per label. A counter only grows while the process runs.
    pub fn counter<V: Display>(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, V)>) {
        self.family("counter", name, help, values);
    }

    /// Adds a gauge without labels.
    pub fn one(&mut self, name: &str, help: &str, value: impl Display) {
        self.gauge(name, help, [(String::new(), value)]);
    }

    fn family<V: Display>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        // Writing into a string cannot fail.
        let _ = write!(self.0, "# HELP landfall_{name} {help}\n# TYPE landfall_{name} {kind}\n");
        for (label, value) in values {
            let _ = writeln!(self.0, "landfall_{name}{label} {value}");
        }
    }

    pub fn into_string(self) -> String {
        self.0
    }
}

/// Makes a label. The word must not contain characters that need escaping.
pub fn label(name: &str, word: &str) -> String {
    format!("{{{name}=\"{word}\"}}")
}

/// All values of an enum that have a word, each with its word.
pub fn words<W: Word>() -> impl Iterator<Item = (W, &'static str)> {
    let known = (1..MOST_NUMBER).filter_map(|number| W::try_from(number).ok());
    known.map(|value| (value, value.word())).filter(|(_, word)| !word.is_empty())
}
