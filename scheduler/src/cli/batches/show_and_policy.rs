//! `landfall batches show`: shows a batch's policy and progress, and why its sites failed. Reads the
//! policy of a new batch from flags and from a TOML file.
//!
//! Flags override the file. The file may also contain the batch's constraints.

use std::fmt::Write;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use humantime::format_duration;
use landfall_proto::json::Word as _;
use landfall_proto::v1::{BatchProgress, Ending, ShowBatchRequest, ShowBatchResponse};
use serde::{Deserialize, Serialize};
use toml::de::{DeTable, Deserializer, Error, ValueDeserializer};

use super::wait_and_progress::{left, states};
use crate::app::exit::usage;
use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::{self, ShowFormatArgs, View};
use crate::cli::watch_flag::WatchFlag;
use crate::model::constraints::{Constraints, ConstraintsRequest, UnmetAction};
use crate::model::{CrawlPolicy, OutOfBounds, PolicyRequest, ReasonKind};

/// Maximum length of a policy file, in bytes. A policy with a hundred patterns takes 10,000.
const MAX_FILE: u64 = 1 << 20;
/// Maximum number of kinds of reasons for failed sites that are shown without --wide.
const KINDS: usize = 6;

#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    /// The batch
    #[arg(value_name = "NAME")]
    batch: String,
    #[command(flatten)]
    format: ShowFormatArgs,
    #[command(flatten)]
    watch: WatchFlag,
}

impl ShowArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { batch, format, watch } = self;
        let ask = async |client: &Client| {
            let request = ShowBatchRequest { batch: batch.clone() };
            ShownBatch::try_from(client.answer(client.sites().show_batch(request).await)?)
        };
        watch.print(connection, &format, ask, |shown, view| format.text(shown, text, view)).await
    }
}

/// A batch, as printed in JSON.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct ShownBatch {
    name: String,
    strategy: String,
    #[serde(flatten)]
    policy: CrawlPolicy,
    #[serde(flatten)]
    progress: BatchProgress,
    /// Whether the scheduler's answer contained the progress.
    #[serde(skip)]
    has_progress: bool,
    endings: Vec<Ending>,
    constraints: Constraints,
}

impl TryFrom<ShowBatchResponse> for ShownBatch {
    type Error = anyhow::Error;

    fn try_from(shown: ShowBatchResponse) -> anyhow::Result<Self> {
        let ShowBatchResponse { name, strategy, policy, progress, endings, constraints } = shown;
        let policy = PolicyRequest::try_from(policy.unwrap_or_default())?.or(&CrawlPolicy::default());
        let constraints = ConstraintsRequest::try_from(constraints.unwrap_or_default())?.whole();
        let (has_progress, progress) = (progress.is_some(), progress.unwrap_or_default());
        Ok(Self { name, strategy, policy, progress, has_progress, endings, constraints })
    }
}

pub(in crate::cli) fn text(shown: &ShownBatch, view: &View) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "batch {} ({})", shown.name, shown.strategy)?;
    let ShownBatch { policy, progress, .. } = shown;
    writeln!(
        text,
        "  each site  at most {} pages, {}, depth {}, {}; a request every {}",
        policy.max_pages,
        output::bytes_cell(policy.max_bytes),
        policy.max_depth,
        format_duration(policy.max_duration),
        format_duration(policy.request_interval),
    )?;
    write_rest(&mut text, policy)?;
    let agents = agents_line(&shown.constraints);
    if !agents.is_empty() {
        writeln!(text, "  agents     {agents}")?;
    }
    if shown.has_progress {
        writeln!(text, "  sites      {}", states(progress))?;
    }
    if let Some(change) = &progress.change {
        let (read, sites) = (output::number(change.read), output::number(change.sites));
        writeln!(text, "  change     {}: {read} of {sites} sites so far", change.kind().word())?;
    }
    // The estimate changes with every answer, so it is left out if only changed answers are
    // printed.
    if let Some(estimate) = progress.estimate.as_ref().filter(|_| !view.timeless) {
        writeln!(text, "  remaining  {}", left(estimate))?;
    }
    if progress.next_recrawl.is_some() {
        writeln!(text, "  next       recrawl due {}", view.when(progress.next_recrawl))?;
    }
    write_endings(&mut text, &shown.endings, if view.wide { usize::MAX } else { KINDS })?;
    Ok(view.fold(&text))
}

/// Writes why sites failed or were cancelled: at most `kinds` kinds of reasons, each with one
/// site's reason as an example.
fn write_endings(text: &mut String, endings: &[Ending], kinds: usize) -> std::fmt::Result {
    for (index, ending) in endings.iter().take(kinds).enumerate() {
        let head = if index == 0 { "because" } else { "" };
        let (kind, count) = (ReasonKind::try_from(ending.kind()), output::number(ending.tasks));
        match kind {
            Ok(kind) => {
                writeln!(text, "  {head:<9}  {count} {} ({})", kind.words(), kind.name())?;
                let one = if ending.tasks == 1 { "" } else { "for example " };
                writeln!(text, "               {one}{}: {}", ending.site, ending.reason)?;
            }
            // An older scheduler sends no kind, and a newer scheduler may send a kind that
            // this program does not know.
            Err(_) => writeln!(text, "  {head:<9}  {count} {}", ending.reason)?,
        }
    }
    match endings.len().saturating_sub(kinds) {
        0 => Ok(()),
        1 => writeln!(text, "             and 1 more kind: --wide"),
        more => writeln!(text, "             and {more} more kinds: --wide"),
    }
}

/// Writes the less common values of a policy, if they differ from the defaults.
fn write_rest(text: &mut String, policy: &CrawlPolicy) -> std::fmt::Result {
    if policy.shortest_interval != policy.request_interval {
        writeln!(text, "             for a large site every {}", format_duration(policy.shortest_interval))?;
    }
    for (head, patterns) in [("include", &policy.include), ("exclude", &policy.exclude)] {
        if !patterns.is_empty() {
            writeln!(text, "  {head:<9}  {}", patterns.join(" "))?;
        }
    }
    if policy.max_hosts != CrawlPolicy::default().max_hosts {
        writeln!(text, "  hosts      at most {} stored", policy.max_hosts)?;
    }
    if !policy.sitemaps {
        writeln!(text, "  sitemaps   not read")?;
    }
    if !policy.store {
        writeln!(text, "  store      not stored")?;
    }
    if let Some(contact_url) = &policy.contact_url {
        writeln!(text, "  contact    {contact_url}")?;
    }
    if let Some(user_agent) = &policy.user_agent {
        writeln!(text, "  crawls as  {user_agent}")?;
    }
    if let Some(recrawl_interval) = policy.recrawl_interval {
        writeln!(text, "  recrawl    {} after each crawl", format_duration(recrawl_interval))?;
    }
    Ok(())
}

/// Describes which agents may crawl for a batch; empty if all agents may.
fn agents_line(asked: &Constraints) -> String {
    let mut parts = Vec::new();
    let lists =
        [("in ", &asked.countries, " or "), ("of ", &asked.carriers, " or "), ("tagged ", &asked.tags, " and ")];
    for (what, values, between) in lists {
        if !values.is_empty() {
            parts.push(format!("{what}{}", values.join(between)));
        }
    }
    if let Some(bytes) = asked.bytes_per_day {
        parts.push(format!("at most {} a day each", output::bytes_cell(bytes)));
    }
    if asked.unmet == UnmetAction::Fail {
        parts.push("else sites fail".to_owned());
    }
    parts.join(", ")
}

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
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    let length = read.map_err(|error| usage(format!("read {shown}: {error}")))?;
    if u64::try_from(length).is_ok_and(|length| length > MAX_FILE) {
        return Err(usage(format!("{shown}: longer than {MAX_FILE} bytes")));
    }
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

    use landfall_proto::v1;

    use super::*;

    #[test]
    fn a_batch_says_its_policy() {
        let policy: PolicyRequest = toml::from_str(
            "max_pages = 5\nmax_bytes = 1048576\nmax_depth = 2\nmax_hosts = 7\nmax_duration = '1m'\nrequest_interval = '2s'\n\
             shortest_interval = '1s'\nsitemaps = false\nstore = false\ninclude = ['/a', '/x']\nexclude = ['/b', '/x']\n\
             contact_url = 'https://example.org/study'\nuser_agent = 'StudyBot/1.2'\nrecrawl_interval = '7d'",
        )
        .unwrap();
        let shown = ShowBatchResponse { name: "b".into(), policy: Some(policy.into()), ..ShowBatchResponse::default() };
        let shown = ShownBatch::try_from(shown).unwrap();
        let text = text(&shown, &View::plain()).unwrap();
        let said = "a request every 2s\n             for a large site every 1s\n  include    /a /x\n  exclude    /b /x\n  \
                    hosts      at most 7 stored\n  sitemaps   not read\n  store      not stored\n  contact    https://example.org/study\n  \
                    crawls as  StudyBot/1.2\n  recrawl    7days after each crawl\n";
        assert!(text.ends_with(said), "{text}");
        let json = serde_json::to_value(shown).unwrap();
        assert_eq!(
            (&json["max_pages"], &json["max_duration_ms"], &json["store"]),
            (&5.into(), &60_000.into(), &false.into())
        );
        assert_eq!(
            (&json["recrawl_interval_ms"], &json["constraints"]["unmet"]),
            (&604_800_000.into(), &"wait".into())
        );
    }

    #[test]
    fn a_batch_says_how_far_it_is_and_why_sites_failed() {
        let ending = |kind: v1::ReasonKind, tasks| Ending {
            kind: kind.into(),
            tasks,
            site: "a.cn".to_owned(),
            reason: "failed: so".to_owned(),
        };
        let shown = ShowBatchResponse {
            name: "autumn".to_owned(),
            strategy: "gnp-top3".to_owned(),
            progress: Some(BatchProgress { complete: 2, failed: 3, ..BatchProgress::default() }),
            endings: vec![ending(v1::ReasonKind::NoConnection, 2), ending(v1::ReasonKind::Poison, 1)],
            ..ShowBatchResponse::default()
        };
        let said = "batch autumn (gnp-top3)\n  each site  at most 200 pages, 67.1 MB, depth 8, 15m; a request every 1s\n  sites      2 complete, 3 failed\n  \
                    because    2 the connection failed (no-connection)\n               for example a.cn: failed: so\n             \
                    1 crashed too often (poison)\n               a.cn: failed: so\n";
        let mut shown = ShownBatch::try_from(shown).unwrap();
        assert_eq!(text(&shown, &View::plain()).unwrap(), said);
        // An older scheduler sends only the reason, without a kind.
        shown.endings = vec![ending(v1::ReasonKind::Unspecified, 12_345)];
        assert!(text(&shown, &View::plain()).unwrap().ends_with("\n  because    12,345 failed: so\n"));
        shown.endings = vec![ending(v1::ReasonKind::Tls, 1); KINDS + 2];
        let cut = text(&shown, &View::plain()).unwrap();
        assert!(cut.ends_with("\n             and 2 more kinds: --wide\n"), "{cut}");
        let wide = text(&shown, &View { wide: true, ..View::plain() }).unwrap();
        assert_eq!(wide.matches("TLS failed (tls)").count(), KINDS + 2);
    }

    #[test]
    fn constraints_are_said_in_a_line() {
        let asked = Constraints {
            countries: vec!["CN".into(), "JP".into()],
            carriers: vec!["CERNET".into()],
            tags: vec!["fast".into()],
            bytes_per_day: Some(7),
            unmet: UnmetAction::Fail,
        };
        assert_eq!(agents_line(&asked), "in CN or JP, of CERNET, tagged fast, at most 7 B a day each, else sites fail");
        assert_eq!(agents_line(&Constraints::default()), "");
    }

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
