//! `landfall sites show` and `landfall explain`: show everything known about one site, and why it
//! has its agent, or why it has none.

use std::fmt::Write;

use clap::Args;
use landfall_proto::json;
use landfall_proto::v1::{
    Candidate, CrawlProgress, ExcludedAgents, ExplainRequest, ExplainResponse, ExplainedCandidate, ExplainedChoice,
    ExplainedTask, GlobePosition, ResolvedAddress, ShowSiteRequest, ShowSiteResponse, SiteMeasurement, SiteOrder,
    SitePlacement, SiteTask, SiteVerdict,
};

use crate::cli::ConnectionArgs;
use crate::cli::connection::Client;
use crate::cli::output::{self, Column, Row, ShowFormatArgs, View, counted, level_cell};

#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    /// A host, or scheme://host:port
    #[arg(value_name = "HOST")]
    site: String,
    #[command(flatten)]
    format: ShowFormatArgs<SiteMeasurement>,
}

impl ShowArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let Self { site, format } = self;
        let client = Client::connect(connection).await?;
        format.print(&client.answer(client.sites().show_site(ShowSiteRequest { site }).await)?, text)
    }
}

/// Formats a position on the globe, with its source.
pub(crate) fn globe_cell(position: Option<&GlobePosition>) -> String {
    let said = |GlobePosition { latitude, longitude, source }: &GlobePosition| match source.as_str() {
        "geoip" => format!("{latitude}, {longitude} (by its address)"),
        source => format!("{latitude}, {longitude} ({source})"),
    };
    position.map_or_else(|| "unknown".to_owned(), said)
}

impl Row for SiteMeasurement {
    const COLUMNS: &'static [Column<Self>] = &[
        ("prober", |row, _| row.prober.clone()),
        (">rtt ms", |row, _| output::millis_cell(row.rtt)),
        (">spread ms", |row, _| output::millis_cell(row.spread)),
        (">answered", |row, _| output::count_cell(row.count)),
        (">lost", |row, _| output::count_cell(row.lost)),
        ("measured", |row, view| view.when(row.measured_at)),
        ("address", |row, _| output::text_cell(&row.address)),
        ("~failure", |row, _| output::text_cell(&row.failure)),
        ("+>min ms", |row, _| output::millis_cell(row.min)),
        ("+>median ms", |row, _| output::millis_cell(row.median)),
        ("+confirms", |row, _| output::yes_cell(row.confirming)),
        ("+>requests", |row, _| output::count_cell(row.requests)),
        ("+shared from", |row, _| output::text_cell(&row.shared_from)),
    ];
}

impl Row for Candidate {
    const COLUMNS: &'static [Column<Self>] = &[
        ("candidate", |row, _| row.agent.clone()),
        (">predicted ms", |row, _| output::millis_cell(row.predicted)),
        (">measured ms", |row, _| output::millis_cell(row.measured)),
    ];
}

pub(in crate::cli) fn text(site: &ShowSiteResponse, view: &View) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "{} (site {})", site.name, site.site_id)?;
    if !site.alias_of.is_empty() {
        writeln!(text, "  the same site as {}", site.alias_of)?;
    }
    writeln!(text, "  origin     {}", if site.origin.is_empty() { "not known yet" } else { &site.origin })?;
    if site.circuit_open_since.is_some() {
        let since = view.when(site.circuit_open_since);
        writeln!(text, "  circuit open {since}; not crawled until `landfall sites reopen {}`", site.name)?;
    }
    writeln!(text, "  position   {}", globe_cell(site.position.as_ref()))?;
    match &site.placement {
        Some(SitePlacement { epoch, coordinate, fit_error }) => {
            let coordinate: Vec<String> = coordinate.iter().map(|ms| format!("{ms:.1}")).collect();
            let coordinate = coordinate.join(", ");
            writeln!(text, "  placement  [{coordinate}] ms, fit error {fit_error:.3}, map {epoch}")?;
        }
        None => writeln!(text, "  placement  none")?,
    }
    match &site.verdict {
        Some(SiteVerdict { suspect: true, confidence, evidence }) => {
            writeln!(text, "  places     several (confidence {confidence:.2}): {evidence}")?;
        }
        Some(_) => writeln!(text, "  places     one")?,
        None => writeln!(text, "  places     not decided yet")?,
    }
    if let Some(order) = &site.order {
        writeln!(text, "  waits for  {}", order_line(order))?;
    }
    if !site.measurements.is_empty() {
        write!(text, "\n{}", output::table(&site.measurements, view))?;
        writeln!(text, "{}", cost(&site.measurements))?;
    }
    for resolved_address in &site.resolved_addresses {
        writeln!(text, "{}", resolved_address_line(resolved_address))?;
    }
    for task in &site.tasks {
        writeln!(text, "\n{}", task_line(task, view))?;
        if !task.candidates.is_empty() {
            text.push_str(&output::table(&task.candidates, view));
        }
    }
    Ok(view.fold(&text))
}

/// Describes how many probes and requests the measurements of a site took. The probes of a shared
/// measurement are counted only at the site for which it was made.
fn cost(measurements: &[SiteMeasurement]) -> String {
    let probes = |row: &SiteMeasurement| match row.shared_from.is_empty() {
        true => u64::from(row.count) + u64::from(row.lost),
        false => 0,
    };
    let all: u64 = measurements.iter().map(probes).sum();
    let mut text = format!("{all} probes of this site");
    let confirming = measurements.iter().filter(|row| row.confirming);
    let agents = confirming.clone().count();
    if agents > 0 {
        let spent: u64 = confirming.map(probes).sum();
        text.push_str(&format!(", {spent} of them by {agents} confirming agents"));
    }
    let shared = measurements.iter().filter(|row| !row.shared_from.is_empty()).count();
    if shared > 0 {
        text.push_str(&format!("; {shared} of {} measurements are shared from another site", measurements.len()));
    }
    let requests: u64 = measurements.iter().map(|row| row.requests).sum();
    text.push_str(&format!("; {requests} requests so far, including warm-ups and former measurements"));
    text
}

/// Describes the open measurement order of a site.
fn order_line(SiteOrder { prober, address, site }: &SiteOrder) -> String {
    match (address.as_str(), site.as_str()) {
        ("", _) => format!("{prober}, which is resolving its address"),
        (address, "") => format!("{prober}, which holds the address lock of {address}"),
        (address, site) => format!("the address lock of {address}, where {prober} is measuring {site}"),
    }
}

/// Describes the address to which the site's name resolves at a prober. Also states how many
/// measurement orders were postponed, and how many requests belong to no measurement.
fn resolved_address_line(ResolvedAddress { prober, address, postponed, requests }: &ResolvedAddress) -> String {
    let mut text = format!("{prober} resolves it to {address}");
    if *postponed > 0 {
        text.push_str(&format!("; {postponed} orders in a row postponed"));
    }
    if *requests > 0 {
        text.push_str(&format!("; {requests} more requests, not counted above"));
    }
    text
}

fn task_line(task: &SiteTask, view: &View) -> String {
    let mut parts = vec![format!("batch {} round {}: {}", task.batch, task.round, task.state)];
    if !task.outcome.is_empty() {
        parts.push(format!("{}{}", task.outcome, output::fetched(task.pages.into(), task.bytes)));
    }
    if task.refetched > 0 {
        parts.push(format!("{} fetched again after a change of agent", counted(task.refetched.into(), "page")));
    }
    if task.trapped > 0 {
        parts.push(format!("{} skipped as traps", counted(task.trapped.into(), "link")));
    }
    if let Some(progress) = &task.progress {
        parts.push(progress_line(progress, view));
    }
    if task.recrawl_at.is_some() {
        parts.push(format!("crawled again {}", view.when(task.recrawl_at)));
    }
    if !task.agent.is_empty() {
        parts.push(format!("agent {} by {}", task.agent, task.strategy));
    }
    if !task.note.is_empty() {
        parts.push(task.note.clone());
    }
    if !task.reason.is_empty() {
        parts.push(task.reason.clone());
    }
    parts.join("; ")
}

fn progress_line(progress: &CrawlProgress, view: &View) -> String {
    let told = view.when(progress.saved_at);
    let bytes = output::bytes_cell(progress.state_bytes);
    let mut text = format!(
        "{} so far; another agent would resume at a checkpoint of {bytes}, saved {told}",
        counted(progress.pages.into(), "page")
    );
    if let Some(interval) = json::milliseconds(progress.interval) {
        text.push_str(&format!("; at most one request every {interval:.0} ms"));
    }
    if progress.recent_requests > 0 {
        text.push_str(&format!(
            "; {} of {} requests failed in the last minute",
            progress.recent_errors, progress.recent_requests
        ));
    }
    if progress.turned_away > 0 {
        let times =
            if progress.turned_away == 1 { "once".to_owned() } else { format!("{} times", progress.turned_away) };
        text.push_str(&format!("; the site asked for a pause {times}"));
    }
    if progress.paused_until.is_some() {
        text.push_str(&format!("; continues {}", view.when(progress.paused_until)));
    }
    if progress.failed_in_a_row > 0 {
        text.push_str(&format!("; failed requests in a row: {} (50 end the crawl)", progress.failed_in_a_row));
    }
    if !progress.last_error.is_empty() {
        text.push_str(&format!("; the last error: {}", progress.last_error));
    }
    text
}

/// Maximum number of agents named for each constraint that excludes them.
const NAMED_AT_MOST: usize = 10;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall explain www.example.cn
  landfall explain www.example.cn --batch autumn --at 1017 --format json")]
pub(in crate::cli) struct ExplainArgs {
    /// A host, or scheme://host:port
    #[arg(value_name = "HOST")]
    site: String,
    /// Only the choices of this batch
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only the choice with this number
    #[arg(long, value_name = "ASSIGNMENT-ID", value_parser = clap::value_parser!(i64).range(1..))]
    at: Option<i64>,
    #[command(flatten)]
    format: ShowFormatArgs<CandidateRow>,
}

impl ExplainArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        let client = Client::connect(connection).await?;
        let request = ExplainRequest { site: self.site, batch: self.batch.unwrap_or_default(), assignment_id: self.at };
        self.format.print(&client.answer(client.sites().explain(request).await)?, explanation_text)
    }
}

/// A candidate with its rank, as a row of the table.
#[derive(Debug, Default)]
struct CandidateRow {
    rank: u32,
    chosen: bool,
    candidate: ExplainedCandidate,
}

impl Row for CandidateRow {
    const COLUMNS: &'static [Column<Self>] = &[
        (">rank", |row, _| row.rank.to_string()),
        ("candidate", |row, _| row.candidate.agent.clone()),
        (">predicted ms", |row, _| output::millis_cell(row.candidate.predicted)),
        (">measured ms", |row, _| output::millis_cell(row.candidate.measured)),
        (">load level", |row, _| level_cell(row.candidate.load_level)),
        ("chosen", |row, _| output::yes_cell(row.chosen)),
    ];
}

pub(in crate::cli) fn explanation_text(explained: &ExplainResponse, view: &View) -> anyhow::Result<String> {
    let ExplainResponse { site, site_id, position, tasks } = explained;
    let mut text = format!("{site} (site {site_id}), position: {}\n", globe_cell(position.as_ref()));
    for task in tasks {
        write_task(task, &mut text, view)?;
    }
    Ok(view.fold(&text))
}

fn write_task(task: &ExplainedTask, text: &mut String, view: &View) -> std::fmt::Result {
    let ExplainedTask { batch, round, state, reason, waits, choices, .. } = task;
    let ended = if waits.is_empty() && !reason.is_empty() { format!(" ({reason})") } else { String::new() };
    writeln!(text, "\nbatch {batch} round {round}: {state}{ended}")?;
    if !waits.is_empty() {
        writeln!(text, "{waits}")?;
    } else if choices.is_empty() {
        writeln!(text, "no agent has been chosen")?;
    }
    choices.iter().try_for_each(|choice| write_choice(choice, text, view))
}

fn write_choice(choice: &ExplainedChoice, text: &mut String, view: &View) -> std::fmt::Result {
    let ExplainedChoice { assignment_id, chosen_at, agent, strategy, seed, because, .. } = choice;
    let at = view.when(*chosen_at);
    writeln!(text, "\nchoice {assignment_id}, {at}: {agent} by {strategy}, seed {seed}\n{agent} was {because}")?;
    let ranked = (1..).zip(choice.candidates.clone());
    let ranked = ranked.map(|(rank, one)| CandidateRow { rank, chosen: one.agent == *agent, candidate: one });
    let candidates: Vec<CandidateRow> = ranked.collect();
    if !candidates.is_empty() {
        text.push_str(&output::table(&candidates, view));
    }
    for ExcludedAgents { why, agents, .. } in &choice.excluded {
        let named = agents.iter().take(NAMED_AT_MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = agents.len().saturating_sub(NAMED_AT_MOST);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        writeln!(text, "excluded: {named}{more}: each {why}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_says_what_it_waits_for() {
        let order = |address: &str, site: &str| {
            order_line(&SiteOrder { prober: "a1".to_owned(), address: address.to_owned(), site: site.to_owned() })
        };
        assert_eq!(order("", ""), "a1, which is resolving its address");
        assert_eq!(order("192.0.2.1", ""), "a1, which holds the address lock of 192.0.2.1");
        assert_eq!(order("192.0.2.1", "b.cn"), "the address lock of 192.0.2.1, where a1 is measuring b.cn");
    }

    #[test]
    fn a_resolved_address_says_what_no_measurement_says() {
        let resolved_address = |postponed, requests| {
            let (prober, address) = ("a1".to_owned(), "192.0.2.1".to_owned());
            resolved_address_line(&ResolvedAddress { prober, address, postponed, requests })
        };
        assert_eq!(resolved_address(0, 0), "a1 resolves it to 192.0.2.1");
        assert_eq!(
            resolved_address(2, 3),
            "a1 resolves it to 192.0.2.1; 2 orders in a row postponed; 3 more requests, not counted above"
        );
    }

    #[test]
    fn a_choice_reads_as_sentences_with_its_candidates() {
        let candidate =
            |agent: &str, load_level| ExplainedCandidate { agent: agent.into(), load_level, ..Default::default() };
        let choice = ExplainedChoice {
            assignment_id: 7,
            agent: "b".into(),
            strategy: "gnp-top3".into(),
            seed: u64::MAX,
            because: "chosen because it is near".into(),
            candidates: vec![candidate("a", Some(3)), candidate("b", Some(-2))],
            excluded: vec![ExcludedAgents {
                constraint: "country".into(),
                why: "is not in CN".into(),
                agents: (0..12).map(|number| format!("x{number}")).collect(),
            }],
            ..ExplainedChoice::default()
        };
        let task = ExplainedTask {
            batch: "autumn".into(),
            round: 1,
            state: "done".into(),
            choices: vec![choice],
            ..Default::default()
        };
        let waiting = ExplainedTask {
            batch: "winter".into(),
            round: 2,
            state: "located".into(),
            waits: "no agent yet: x".into(),
            ..Default::default()
        };
        let response = ExplainResponse { site: "a.cn".into(), tasks: vec![waiting, task], ..Default::default() };
        let text = explanation_text(&response, &View::plain()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a.cn (site 0), position: unknown");
        assert_eq!(lines[2..4], ["batch winter round 2: located", "no agent yet: x"]);
        assert_eq!(lines[5], "batch autumn round 1: done");
        assert_eq!(lines[7], "choice 7, -: b by gnp-top3, seed 18446744073709551615");
        assert_eq!(lines[8], "b was chosen because it is near");
        assert!(lines[11].contains('b') && lines[11].contains("-2") && lines[11].ends_with("yes"), "{text}");
        assert_eq!(lines[12], "excluded: x0, x1, x2, x3, x4, x5, x6, x7, x8, x9 and 2 more: each is not in CN");
    }
}
