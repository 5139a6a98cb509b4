//! `landfall sites submit|watch`: reads a list, reports invalid lines, submits the sites exactly
//! once, and follows the batch to its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use landfall_proto::v1::submit_request::Part;
use landfall_proto::v1::{ListedPosition, SubmitChunk, SubmitHeader, SubmitRequest, SubmitResponse};
use tonic::{Code, Status};

use crate::app::exit::{self, print, usage};
use crate::cli::ConnectionArgs;
use crate::cli::batches::show_and_policy::PolicyArgs;
use crate::cli::batches::wait_and_progress::{tell, to_end};
use crate::cli::connection::Client;
use crate::cli::files::{open, shown};
use crate::cli::output::number;
use crate::cli::output::progress_bar::Bar;
use crate::machine::secret::Secret;
use crate::model::Strategy;
use crate::model::constraints::ConstraintsRequest;
use crate::model::site_list::{self, ListError, SiteList};

/// Number of sites in one message. Even with long names, such a message is far below the size
/// limit.
const CHUNK: usize = 5_000;
/// Maximum number of attempts to submit a list, including the first.
const ATTEMPTS: u32 = 3;
/// The pause before the second attempt. The pause doubles with each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Submits a list, and then follows the batch if requested.
pub(in crate::cli) async fn submit(args: SubmitArgs, connection: &ConnectionArgs) -> anyhow::Result<()> {
    let (batch, watch) = (args.batch.clone(), args.watch);
    let sent = Arc::new(AtomicBool::new(false));
    let client = exit::unless_interrupted(submit_list(args, connection, &sent), || interrupted(&batch, &sent)).await?;
    if watch { follow_batch(&client, &batch).await } else { Ok(()) }
}

/// Describes the state after Ctrl-C. A list is submitted as a whole or not at all.
fn interrupted(batch: &str, sent: &AtomicBool) -> String {
    match sent.load(Ordering::Relaxed) {
        false => "nothing was submitted".to_owned(),
        true => format!(
            "the list was sent, but no answer came: `landfall batches show {batch}` shows whether it was submitted; \
             submitting it again is harmless"
        ),
    }
}

async fn submit_list(args: SubmitArgs, connection: &ConnectionArgs, sent: &Arc<AtomicBool>) -> anyhow::Result<Client> {
    let (policy, constraints) = args.policy.asked(args.constraints)?;
    let path = args.list.clone();
    // Reading standard input may block forever, so it is done on its own thread, while
    // Ctrl-C is handled.
    let list = tokio::task::spawn_blocking(move || read(&path)).await.context("read the list")??;
    report_rejected(&args.list, &list);
    if !list.rejected.is_empty() && !args.skip_invalid {
        let (count, s) = counted(list.rejected.len() + list.unsaid);
        return Err(usage(format!(
            "{}: {count} line{s} name{} no site; nothing was submitted: correct the list, or give --skip-invalid",
            shown(&args.list),
            if s.is_empty() { "s" } else { "" }
        )));
    }
    if list.sites.is_empty() {
        return Err(usage(format!("{}: the list contains no sites; nothing was submitted", shown(&args.list))));
    }
    let mut client = Client::connect(connection).await?;
    let header = SubmitHeader {
        batch: args.batch.clone(),
        strategy: args.strategy.map(|strategy| strategy.to_string()).unwrap_or_default(),
        idempotency_key: Secret::generate().context("make an idempotency key")?.reveal().to_owned(),
        policy: Some(policy.into()),
        constraints: Some(constraints.into()),
        dry_run: args.dry_run,
    };
    let bar = Bar::counted(list.sites.len() as u64, "sites sent");
    let list = Arc::new(list);
    let answer = send(&mut client, &header, &list, sent, &bar).await?;
    drop(bar);
    for warning in &answer.warnings {
        eprintln!("warning: {warning}: these sites wait for such an agent, or fail if the batch's constraints say so");
    }
    print(&summary(&args.batch, &answer, &list))?;
    if args.dry_run {
        print("this was a dry run: nothing was changed\n")?;
    }
    Ok(client)
}

fn read(path: &Path) -> anyhow::Result<SiteList> {
    match site_list::read(open(path)?) {
        Ok(list) => Ok(list),
        Err(ListError::Read(error)) => Err(error).with_context(|| format!("read {}", shown(path))),
        Err(error) => Err(usage(format!("{}: {error}; nothing was submitted", shown(path)))),
    }
}

fn report_rejected(path: &Path, list: &SiteList) {
    for rejected in &list.rejected {
        let text = if rejected.text.is_empty() { String::new() } else { format!(": '{}'", rejected.text) };
        eprintln!("{}:{}: {}{text}", shown(path), rejected.line, rejected.reason);
    }
    if list.unsaid > 0 {
        eprintln!("{}: and {} more such lines", shown(path), list.unsaid);
    }
}

/// The messages of a submission. Each is made when it is sent, so that only a few are in memory.
fn messages(header: SubmitHeader, list: Arc<SiteList>) -> impl Iterator<Item = SubmitRequest> + Send {
    let chunks = (0..list.sites.len()).step_by(CHUNK).map(move |start| {
        let sites = list.sites.iter().skip(start).take(CHUNK);
        let listed = |(index, site)| {
            let position = list.positions.get(site)?;
            Some(ListedPosition { index, latitude: position.latitude(), longitude: position.longitude() })
        };
        let positions = (0..).zip(sites.clone()).filter_map(listed).collect();
        let sites = sites.map(|site| site.as_str().to_owned()).collect();
        SubmitRequest { part: Some(Part::Chunk(SubmitChunk { sites, positions })) }
    });
    std::iter::once(SubmitRequest { part: Some(Part::Header(header)) }).chain(chunks)
}

async fn send(
    client: &mut Client,
    header: &SubmitHeader,
    list: &Arc<SiteList>,
    sent: &Arc<AtomicBool>,
    bar: &ProgressBar,
) -> anyhow::Result<SubmitResponse> {
    let mut pause = FIRST_PAUSE;
    let mut attempt = 1;
    loop {
        let (sent, counter) = (Arc::clone(sent), bar.clone());
        let last = std::iter::from_fn(move || {
            sent.store(true, Ordering::Relaxed);
            None
        });
        bar.set_position(0);
        let parts =
            messages(header.clone(), Arc::clone(list)).chain(last).inspect(move |part| counter.inc(sites_in(part)));
        let status = match client.sites().submit(tokio_stream::iter(parts)).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => status,
        };
        if attempt == ATTEMPTS || !may_have_been_lost(&status) {
            return Err(client.refusal(&status));
        }
        tracing::debug!(attempt, code = ?status.code(), "the answer was lost: repeating the submission");
        tokio::time::sleep(pause).await;
        client.move_on().await;
        pause *= 2;
        attempt += 1;
    }
}

fn sites_in(message: &SubmitRequest) -> u64 {
    match &message.part {
        Some(Part::Chunk(chunk)) => chunk.sites.len() as u64,
        _ => 0,
    }
}

fn may_have_been_lost(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::DeadlineExceeded | Code::Cancelled)
}

fn summary(batch: &str, answer: &SubmitResponse, list: &SiteList) -> String {
    let SubmitResponse { added, already_present, batch_total, .. } = answer;
    let mut text = if *added == 0 {
        let sites = if *already_present == 1 {
            "this site".to_owned()
        } else {
            format!("all {} sites", number(*already_present))
        };
        format!("batch {batch} already has {sites}: nothing changed")
    } else {
        let present = if *already_present == 0 {
            String::new()
        } else {
            format!(", {} already present", number(*already_present))
        };
        format!("batch {batch}: {} added{present}, {} in all", number(*added), number(*batch_total))
    };
    // The sum of two counts: lines that this program dropped as duplicates, and sites that the
    // scheduler found in two spellings.
    let duplicates = u64::try_from(list.duplicates).unwrap_or(u64::MAX).saturating_add(answer.duplicates);
    if duplicates > 0 {
        let s = if duplicates == 1 { "" } else { "s" };
        text.push_str(&format!("; {duplicates} duplicate{s} collapsed"));
    }
    if !list.rejected.is_empty() {
        let (count, s) = counted(list.rejected.len() + list.unsaid);
        text.push_str(&format!("; {count} line{s} skipped that name{} no site", if s.is_empty() { "s" } else { "" }));
    }
    text.push('\n');
    text
}

fn counted(count: usize) -> (usize, &'static str) {
    (count, if count == 1 { "" } else { "s" })
}

#[derive(Debug, Args)]
#[command(after_help = "\
A list has one site per line: a host, or a URL whose path is ignored; its position may follow: HOST,LATITUDE,LONGITUDE. A
first line such as site,latitude,longitude names the columns. Blank lines and # comments are skipped.

Examples:
  landfall sites submit list.txt --batch autumn --watch
  grep '\\.cn$' list.txt | landfall sites submit - --batch china --strategy gnp-top1
  landfall sites submit list.txt --batch news --policy policy.toml --include /news/ --exclude '/*.pdf$'
  landfall sites submit list.txt --batch inland --country CN --tag fast --bytes-per-day 2000000000")]
pub(in crate::cli) struct SubmitArgs {
    /// The site list; - is standard input
    #[arg(value_name = "FILE")]
    list: PathBuf,
    /// The batch; it is created if it does not exist
    #[arg(long, value_name = "NAME")]
    batch: String,
    /// How agents are chosen; docs/choosing.md describes every strategy [default: the batch's, or
    /// gnp-top3 for a new batch]
    #[arg(long)]
    strategy: Option<Strategy>,
    /// Follow the batch until every site has ended
    #[arg(long)]
    watch: bool,
    /// Report what the submission would do, and change nothing
    #[arg(long, conflicts_with = "watch")]
    dry_run: bool,
    /// Submit the valid lines of a list that also has invalid lines
    #[arg(long)]
    skip_invalid: bool,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten, next_help_heading = "Which agents may crawl the sites")]
    constraints: ConstraintsRequest,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct WatchArgs {
    /// The batch
    #[arg(long, value_name = "NAME")]
    batch: String,
}

impl WatchArgs {
    pub(in crate::cli) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        follow_batch(&Client::connect(connection).await?, &self.batch).await
    }
}

/// Follows a batch to its end, and reports failed sites.
async fn follow_batch(client: &Client, batch: &str) -> anyhow::Result<()> {
    let mut last = None;
    let goes_on = || format!("the batch continues: `landfall sites watch --batch {batch}` follows it");
    exit::unless_interrupted(to_end(client, batch, &mut last), goes_on).await?;
    tell(&[(batch.to_owned(), last.unwrap_or_default())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_that_changes_nothing_says_so() {
        let answer =
            SubmitResponse { added: 0, already_present: 203, duplicates: 0, batch_total: 203, warnings: Vec::new() };
        let list = site_list::read(&b"a.cn\n"[..]).unwrap();
        assert_eq!(summary("autumn", &answer, &list), "batch autumn already has all 203 sites: nothing changed\n");
    }

    #[test]
    fn what_was_collapsed_and_skipped_is_said() {
        let answer =
            SubmitResponse { added: 2, already_present: 1, duplicates: 0, batch_total: 3, warnings: Vec::new() };
        let list = site_list::read(&b"a.cn\nA.cn.\n???\n"[..]).unwrap();
        assert_eq!(
            summary("b", &answer, &list),
            "batch b: 2 added, 1 already present, 3 in all; 1 duplicate collapsed; 1 line skipped that names no site\n"
        );
    }

    #[test]
    fn long_lists_go_in_chunks_after_one_header() {
        let mut text: String = (0..CHUNK + 1).map(|n| format!("s{n}.example.org\n")).collect();
        text.insert_str(0, "far.example.org,-45.5,170\n");
        let list = site_list::read(text.as_bytes()).unwrap();
        let sent: Vec<SubmitRequest> = messages(SubmitHeader::default(), Arc::new(list)).collect();
        assert_eq!(sent.len(), 3);
        assert!(matches!(sent[0].part, Some(Part::Header(_))));
        assert!(
            matches!(&sent[2].part, Some(Part::Chunk(chunk)) if chunk.sites.len() == 2 && chunk.positions.is_empty())
        );
        let far = ListedPosition { index: 0, latitude: -45.5, longitude: 170.0 };
        assert!(matches!(&sent[1].part, Some(Part::Chunk(chunk)) if chunk.positions == [far]));
    }
}
