//! Writes log lines to standard error, as text or JSON, filtered by `LANDFALL_LOG` or `RUST_LOG`
//! (default: `info` and above). Standard output contains only the command's result.

use std::fmt;

use clap::{Args, ValueEnum};
use landfall_proto::log::JsonLines;
use landfall_proto::traces::Collector;
use sha2::{Digest, Sha256};
use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::prelude::*;

use crate::machine::secret::hex;

/// The field of sqlx's log lines that contains the SQL statement.
const STATEMENT: &str = "db.statement";
/// The default log filter. It hides the notices of Postgres, which concern Postgres' own commands
/// ("relation exists, skipping") and do not help the operator. It also hides the pool's lines about
/// connections that broke, because callers and the watcher of the database report what follows.
const DEFAULT: &str = "info,sqlx::postgres::notice=warn,sqlx_core::pool::inner=off";

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// How a program that runs for long tells what it does.
#[derive(Debug, Clone, Default, Args)]
pub struct TelemetryArgs {
    /// The format of log lines on standard error: for people, or one JSON object per line
    #[arg(long, env = "LANDFALL_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Send traces to the OTLP collector at this URL, such as http://127.0.0.1:4318 [default: otlp
    /// in the configuration]
    #[arg(long, env = "LANDFALL_OTLP", value_name = "URL")]
    pub otlp: Option<Collector>,
}

/// The environment variables for the log filter. The first one with a value is used.
pub const VARIABLES: [&str; 2] = ["LANDFALL_LOG", "RUST_LOG"];

/// Starts logging. An invalid filter is reported and replaced by the default.
pub fn start(args: &TelemetryArgs) {
    let asked = |variable: &'static str| {
        std::env::var(variable).ok().filter(|text| !text.is_empty()).map(|text| (variable, text))
    };
    let (targets, refused) = match VARIABLES.into_iter().find_map(asked) {
        Some((variable, text)) => match parse(&text) {
            Ok(targets) => (Some(targets), None),
            Err(error) => (None, Some(format!("{variable}='{text}' is not a valid log filter ({error})"))),
        },
        None => (None, None),
    };
    let targets = targets.unwrap_or_else(|| DEFAULT.parse().expect("the default filter can be read"));
    let registry = tracing_subscriber::registry().with(targets);
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(NamedStatements)
        .with_writer(std::io::stderr)
        .with_ansi(console::colors_enabled_stderr());
    let started = match args.log_format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.event_format(JsonLines::new(named_statement))).try_init(),
    };
    if let (Ok(()), Some(refused)) = (started, refused) {
        tracing::warn!("{refused}: the default filter is used");
    }
}

/// Parses a log filter. Empty parts, such as after a trailing comma, are skipped, because `Targets`
/// would read them as the level `error`.
fn parse(text: &str) -> Result<Targets, ParseError> {
    text.split(',').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",").parse()
}

/// Formats fields as usual, but replaces the text of an SQL statement with the statement's name, so
/// that a slow statement is logged on a single line.
struct NamedStatements;

impl<'writer> FormatFields<'writer> for NamedStatements {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut named = StatementNames(DefaultVisitor::new(writer, true));
        fields.record(&mut named);
        named.0.finish()
    }
}

/// Returns the text to print for a field, with an SQL statement replaced by its name. `None` if
/// there is nothing to print.
fn named_statement(field: &str, text: &str) -> Option<String> {
    if field != STATEMENT {
        return Some(text.to_owned());
    }
    // sqlx puts empty lines around the text, and omits the text if the summary contains all of it.
    let text = text.strip_prefix("\n\n").and_then(|text| text.strip_suffix('\n')).unwrap_or(text);
    (!text.is_empty()).then(|| name(text))
}

struct StatementNames<'writer>(DefaultVisitor<'writer>);

impl Visit for StatementNames<'_> {
    fn record_str(&mut self, field: &Field, text: &str) {
        match named_statement(field.name(), text) {
            Some(name) if field.name() == STATEMENT => self.0.record_debug(field, &format_args!("{name}")),
            Some(text) => self.0.record_str(field, &text),
            None => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, value);
    }
}

/// The name of a statement: `query-` and the start of the SHA-256 of its text. The name of the
/// statement's file in `.sqlx` begins the same way.
fn name(statement: &str) -> String {
    format!("query-{}", hex(&Sha256::digest(statement.as_bytes())[..6]))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing::level_filters::LevelFilter;
    use tracing_subscriber::fmt::SubscriberBuilder;
    use tracing_subscriber::fmt::format::Format;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    const SQL: &str = "\n        select id\n        from tasks\n        ";

    impl Lines {
        fn subscriber(&self) -> SubscriberBuilder<NamedStatements, Format, LevelFilter, impl Fn() -> Self + use<>> {
            let written = self.clone();
            tracing_subscriber::fmt().fmt_fields(NamedStatements).with_writer(move || written.clone()).with_ansi(false)
        }

        /// Logs a slow statement and returns its log line.
        fn of(&self, subscriber: impl Into<tracing::Dispatch>) -> String {
            tracing::dispatcher::with_default(&subscriber.into(), || {
                let text = format!("\n\n{SQL}\n");
                let summary = "select id from tasks …";
                tracing::warn!(summary, db.statement = text, rows_returned = 7, "slow statement");
            });
            let line = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            assert_eq!(line.lines().count(), 1, "{line}");
            line
        }
    }

    #[test]
    fn a_slow_statement_is_one_line_that_names_it() {
        let lines = Lines::default();
        let line = lines.of(lines.subscriber().finish());
        let named = format!(r#"slow statement summary="select id from tasks …" db.statement={}"#, name(SQL));
        assert!(line.contains(&named) && line.ends_with("rows_returned=7\n"), "{line}");
    }

    #[test]
    fn a_line_of_json_names_a_slow_statement_too() {
        let lines = Lines::default();
        let subscriber = lines.subscriber().event_format(JsonLines::new(named_statement)).finish();
        let line: serde_json::Value = serde_json::from_str(&lines.of(subscriber)).unwrap();
        let fields = serde_json::json!({
            "summary": "select id from tasks …", "db.statement": name(SQL), "rows_returned": 7,
        });
        assert_eq!((&line["message"], &line["fields"]), (&"slow statement".into(), &fields));
        assert_eq!((&line["level"], &line["target"]), (&"WARN".into(), &module_path!().into()));
        assert!(chrono::DateTime::parse_from_rfc3339(line["timestamp"].as_str().unwrap()).is_ok(), "{line}");
    }

    #[test]
    fn a_statement_is_named_as_its_file_is() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../.sqlx");
        let first = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap();
        let described: serde_json::Value = serde_json::from_slice(&std::fs::read(first.path()).unwrap()).unwrap();
        let file = first.file_name().into_string().unwrap();
        assert!(file.starts_with(&name(described["query"].as_str().unwrap())), "{file}");
    }
}
