//! Writes log lines as JSON, one object per line, for programs that collect logs.

use std::fmt::{self, Debug};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::error_causes::causes;

/// Shortens the text of a field, given the field's name and text. The field is omitted if the
/// result is `None`.
pub type Shorten = fn(&str, &str) -> Option<String>;

/// Formats an event as an object with `timestamp`, `level`, `target` and `message`. The event's
/// other fields are in `fields`.
#[derive(Debug, Clone, Copy)]
pub struct JsonLines {
    shorten: Shorten,
}

impl JsonLines {
    /// `shorten` receives the name and the value of each field whose value is text.
    pub fn new(shorten: Shorten) -> Self {
        Self { shorten }
    }
}

impl Default for JsonLines {
    fn default() -> Self {
        Self::new(|_, text| Some(text.to_owned()))
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut visited = Fields { shorten: self.shorten, message: String::new(), fields: Map::new() };
        event.record(&mut visited);
        let metadata = event.metadata();
        let line = json!({
            "timestamp": timestamp,
            "level": metadata.level().as_str(),
            "target": metadata.target(),
            "message": visited.message,
            "fields": visited.fields,
        });
        writeln!(writer, "{line}")
    }
}

struct Fields {
    shorten: Shorten,
    message: String,
    fields: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, text: &str) {
        if field.name() == "message" {
            text.clone_into(&mut self.message);
        } else if let Some(text) = (self.shorten)(field.name(), text) {
            self.put(field, text.into());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_error(&mut self, field: &Field, error: &(dyn std::error::Error + 'static)) {
        let chain: Vec<String> = causes(error).map(ToString::to_string).collect();
        self.record_str(field, &chain.join(": "));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
}
