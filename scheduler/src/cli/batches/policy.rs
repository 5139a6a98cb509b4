//! Reads a batch's crawl policy from flags and from a TOML file. Flags override the file. The file
//! may also contain the batch's constraints.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use toml::de::{DeTable, Deserializer, Error, ValueDeserializer};

use crate::app::exit::usage;
use crate::model::constraints::ConstraintsRequest;
use crate::model::{OutOfBounds, PolicyRequest};

/// How far each site is crawled. Absent values are those of the batch, or for a new batch of the
/// scheduler's configuration.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "How far each site is crawled")]
pub(in crate::cli) struct PolicyArgs {
    /// A TOML file with these settings, named like the flags (max_pages = 100); flags override the
    /// file
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    #[command(flatten)]
    flags: PolicyRequest,
}

impl PolicyArgs {
    /// Returns the policy and the constraints that the flags and the file request together.
    pub(in crate::cli) fn asked(
        self,
        agents: ConstraintsRequest,
    ) -> anyhow::Result<(PolicyRequest, ConstraintsRequest)> {
        let (policy, constraints) = self.policy.as_deref().map(read).transpose()?.unwrap_or_default();
        let flags = self.flags.checked().map_err(|error| flag(&error))?;
        Ok((flags.before(policy), agents.checked().map_err(|error| flag(&error))?.before(constraints)))
    }
}

/// Converts an out-of-bounds value to an error that names the flag.
fn flag(error: &OutOfBounds) -> anyhow::Error {
    usage(format!("--{}: {}", error.field.replace('_', "-"), error.problem))
}

/// Reads a policy file. Error messages name the file, the line and the field.
fn read(path: &Path) -> anyhow::Result<(PolicyRequest, ConstraintsRequest)> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| usage(format!("read {shown}: {error}")))?;
    parse(&text).map_err(|(at, problem)| {
        let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        usage(format!("{shown}: line {line}: {problem}"))
    })
}

/// Parses a policy file. An error consists of a byte offset and a message.
fn parse(text: &str) -> Result<(PolicyRequest, ConstraintsRequest), (usize, String)> {
    let unread = |error: Error| {
        let at = error.span().map_or(0, |span| span.start);
        (at, error.message().lines().collect::<Vec<_>>().join(", "))
    };
    let mut fields = DeTable::parse(text).map_err(unread)?;
    let places: Vec<_> = fields
        .get_ref()
        .iter()
        .map(|(key, value)| (key.get_ref().to_string(), key.span().start, value.span()))
        .collect();
    // Parse errors have only an offset, and errors about bounds have only the field's name.
    // `places` has the name and the offsets of every field.
    let misread = |error: Error| {
        let (at, problem) = unread(error);
        let field = places.iter().find(|(_, _, value)| value.contains(&at));
        (at, field.map_or_else(|| problem.clone(), |(key, ..)| format!("{key}: {problem}")))
    };
    let beyond = |field: &str, problem: String| {
        let at = places.iter().find(|(key, ..)| key == field).map_or(0, |(_, at, _)| *at);
        (at, format!("{field}: {problem}"))
    };
    let constraints = match fields.get_mut().remove("constraints") {
        None => ConstraintsRequest::default(),
        Some(table) => ConstraintsRequest::deserialize(ValueDeserializer::from(table))
            .map_err(|error| {
                let (at, problem) = unread(error);
                (at, format!("constraints: {problem}"))
            })?
            .checked()
            .map_err(|error| beyond("constraints", error.to_string()))?,
    };
    let policy = PolicyRequest::deserialize(Deserializer::from(fields)).map_err(misread)?;
    let policy = policy.checked().map_err(|error| beyond(error.field, error.problem))?;
    Ok((policy, constraints))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::constraints::UnmetAction;

    fn asked(
        text: &str,
        flags: PolicyRequest,
        agents: ConstraintsRequest,
    ) -> Result<(PolicyRequest, ConstraintsRequest), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        std::fs::write(&path, text).unwrap();
        PolicyArgs { policy: Some(path), flags }.asked(agents).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_nobody_says_of_the_policy_is_left_to_the_scheduler() {
        let nothing = (PolicyRequest::default(), ConstraintsRequest::default());
        assert_eq!(PolicyArgs::default().asked(nothing.1.clone()).unwrap(), nothing);
        assert_eq!(asked("", nothing.0.clone(), nothing.1.clone()), Ok(nothing));
    }

    #[test]
    fn flags_go_before_the_file() {
        let text = "max_pages = 5\nmax_bytes = 6\nmax_depth = 7\nmax_hosts = 8\nmax_duration = '8s'\nrequest_interval = '9s'\n\
            shortest_interval = '1s'\nsitemaps = false\nstore = false\ninclude = ['/a']\nexclude = []\n\
            contact_url = 'https://example.org/study'\nuser_agent = 'StudyBot'\nrecrawl_interval = '7d'\n\
            [constraints]\ncountry = ['jp', 'CN']\ncarrier = 'CERNET'\nbytes_per_day = 7\nunmet = 'fail'\n";
        let flags = PolicyRequest { max_pages: Some(50), include: Some(vec!["/b".into()]), ..PolicyRequest::default() };
        let seconds = Duration::from_secs;
        let expected = PolicyRequest {
            max_pages: Some(50),
            max_bytes: Some(6),
            max_depth: Some(7),
            max_hosts: Some(8),
            max_duration: Some(seconds(8)),
            request_interval: Some(seconds(9)),
            shortest_interval: Some(seconds(1)),
            sitemaps: Some(false),
            store: Some(false),
            include: Some(vec!["/b".into()]),
            exclude: Some(Vec::new()),
            contact_url: Some("https://example.org/study".into()),
            user_agent: Some("StudyBot".into()),
            recrawl_interval: Some(seconds(7 * 86_400)),
        };
        let list = |text: &str| vec![text.to_owned()];
        let agents = ConstraintsRequest { countries: list("kr"), tags: list("Fast"), ..ConstraintsRequest::default() };
        let constraints = ConstraintsRequest {
            countries: list("KR"),
            carriers: list("CERNET"),
            tags: list("fast"),
            bytes_per_day: Some(7),
            unmet: Some(UnmetAction::Fail),
        };
        assert_eq!(asked(text, flags, agents), Ok((expected, constraints)));
    }

    #[test]
    fn mistakes_name_the_file_the_line_and_the_field() {
        for (text, expected) in [
            ("max_pages = 0", "line 1: max_pages: must be 1 or more"),
            ("\n\nmax_pages = -1", "line 3: max_pages: invalid value: integer `-1`, expected u32"),
            ("max_hosts = 1001", "line 1: max_hosts: must be 0 to 1000"),
            ("max_bytes = 'much'", "line 1: max_bytes: not a number of bytes: give one such as 64MB"),
            ("sitemaps = true\nmax_page = 3", "line 2: unknown field `max_page`, expected one of `max_pages`"),
            (
                "request_interval = 1",
                "line 1: request_interval: invalid type: integer `1`, expected a duration such as 10s or 1h 30m",
            ),
            (
                "max_duration = 'soon'",
                "line 1: max_duration: invalid value: string \"soon\", expected a duration such as 10s or 1h 30m",
            ),
            ("store = true\nmax_duration = '31days'", "line 2: max_duration: must be 1s to 30d"),
            ("recrawl_interval = '59m'", "line 1: recrawl_interval: must be 1h to 365d"),
            ("store = 'yes'", "line 1: store: invalid type: string \"yes\", expected a boolean"),
            ("include = '/a'", "line 1: include: invalid type: string \"/a\", expected a sequence"),
            ("exclude = ['a']", "line 1: exclude: the pattern \"a\" does not begin with"),
            ("contact_url = 'nobody'", "line 1: contact_url: 'nobody' is not a contact URL"),
            ("user_agent = 'Study Bot'", "line 1: user_agent: 'Study Bot' is not NAME or NAME/VERSION"),
            ("store = true\nstore = false", "line 2: duplicate key"),
            (
                "store = true\n\n[constraints]\ncountry = 'CHN'",
                "line 3: constraints: country: 'CHN' is not a two-letter country code",
            ),
            ("constraints = 3", "line 1: constraints: invalid type: integer `3`, expected struct"),
            ("[constraints]\ncountries = ['CN']", "line 2: constraints: unknown field `countries`, expected one of"),
            ("[constraints]\ntag = 3", "line 2: constraints: neither a string nor a list of strings"),
            (
                "[constraints]\nbytes_per_day = -1",
                "line 2: constraints: neither a number of bytes nor a size such as '64MB'",
            ),
            ("[constraints]\nbytes_per_day = 0", "line 1: constraints: bytes_per_day: must be 1 to"),
            ("[constraints]\nunmet = 'perhaps'", "line 2: constraints: unknown variant `perhaps`, expected `wait`"),
        ] {
            let error = asked(text, PolicyRequest::default(), ConstraintsRequest::default()).unwrap_err();
            assert!(error.contains(&format!("policy.toml: {expected}")), "{error}");
        }
        let flags = PolicyRequest { exclude: Some(vec!["a".into()]), ..PolicyRequest::default() };
        let error = PolicyArgs { policy: None, flags }.asked(ConstraintsRequest::default()).unwrap_err().to_string();
        assert!(error.starts_with("--exclude: the pattern"), "{error}");
        let agents = ConstraintsRequest { bytes_per_day: Some(0), ..ConstraintsRequest::default() };
        let error = PolicyArgs::default().asked(agents).unwrap_err().to_string();
        assert!(error.starts_with("--bytes-per-day: must be 1"), "{error}");
    }
}
