//! Shows what is known about one site, and explains why each of its tasks has its agent or waits.
//! Lists and reopens sites whose circuit is open.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use landfall_proto::v1;
use sqlx::PgConnection;
use tonic::Status;

use super::batches::cancel_retry_remove::{ChangeScope, extent};
use super::convert::{InvalidField, Places, TimeRange, count, duration, globe_position, rtt, timestamp};
use super::named::{self, Unknown};
use super::pages::Page;
use crate::Scheduler;
use crate::gnp::{Placement, SuspectedSite};
use crate::model::constraints::Constraints;
use crate::model::geo::Position;
use crate::model::site_name::SiteName;
use crate::model::{AssignmentId, BatchId, ChoiceCause, ChoiceReasons, Fallback, FormerAgent, SiteId};
use crate::store;
use crate::store::batches::constraints_and_quotas;
use crate::store::measurements::orders::{self, OpenOrder};
use crate::store::measurements::site_measurements::{self, ResolvedAddress};
use crate::store::reports::explain::{self as records, Task, TaskChoice};
use crate::store::sites::open_circuits::{self, CircuitFilter, OpenCircuit, Reopened};
use crate::store::sites::positions_and_verdicts::{self, Source};
use crate::store::sites::{self, Site, SiteMeasurement, SiteTask};
use crate::strategy::explain::{self, ExplainedCandidate, ExplainedWait, WaitDetail};

/// How long a call tries to close circuits that other transactions use, and the pause between two
/// tries. Most transactions take a few milliseconds.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn show(scheduler: &Scheduler, request: v1::ShowSiteRequest) -> Result<v1::ShowSiteResponse, Status> {
    let name = site_name(&request.site)?;
    let mut conn = scheduler.operators.read("show a site").await?;
    let site = named::site(&mut conn, &name).await?;
    let measurements = sites::measurements(&mut conn, &site).await?;
    let placement = sites::placement(&mut conn, &site).await?;
    let tasks = sites::tasks(&mut conn, &site).await?;
    let verdict = positions_and_verdicts::of_site(&mut conn, &site).await?;
    let resolved_addresses = site_measurements::resolved_addresses(&mut conn, &site).await?;
    let circuit_open = open_circuits::of_site(&mut conn, site.id).await?;
    let position = position_of(&mut conn, &site).await?;
    let awaited = orders::awaited(&mut conn, &site).await?;
    let shown = shown(site, measurements, placement, verdict, tasks);
    Ok(v1::ShowSiteResponse {
        resolved_addresses: resolved_addresses.into_iter().map(Into::into).collect(),
        order: awaited.map(Into::into),
        circuit_open_since: circuit_open.map(timestamp),
        position: position.map(globe_position),
        ..shown
    })
}

pub(super) fn site_name(site: &str) -> Result<SiteName, InvalidField> {
    site.parse().map_err(InvalidField::of("site"))
}

/// The position of a site or, for an alias, of the site to which the alias points.
async fn position_of(conn: &mut PgConnection, site: &Site) -> Result<Option<(Position, Source)>, store::Error> {
    let site = site.alias_of.as_ref().map_or(site.id, |(keeper, _)| *keeper);
    Ok(positions_and_verdicts::of_sites(conn, &[site]).await?.remove(&site))
}

/// The message with all stored facts about a site.
fn shown(
    site: Site,
    measurements: Vec<SiteMeasurement>,
    placement: Option<Placement>,
    verdict: Option<Option<SuspectedSite>>,
    tasks: Vec<SiteTask>,
) -> v1::ShowSiteResponse {
    v1::ShowSiteResponse {
        site_id: site.id.get(),
        name: site.name,
        origin: site.origin.unwrap_or_default(),
        alias_of: site.alias_of.map(|(_, name)| name).unwrap_or_default(),
        measurements: measurements.into_iter().map(Into::into).collect(),
        placement: placement.map(Into::into),
        tasks: tasks.into_iter().map(Into::into).collect(),
        verdict: verdict.map(verdict_message),
        ..v1::ShowSiteResponse::default()
    }
}

impl From<ResolvedAddress> for v1::ResolvedAddress {
    fn from(ResolvedAddress { prober, address, postponed, requests }: ResolvedAddress) -> Self {
        Self { prober, address, postponed, requests }
    }
}

impl From<OpenOrder> for v1::SiteOrder {
    fn from(OpenOrder { prober, address, other }: OpenOrder) -> Self {
        Self { prober, address: address.unwrap_or_default(), site: other.unwrap_or_default() }
    }
}

fn verdict_message(suspicion: Option<SuspectedSite>) -> v1::SiteVerdict {
    suspicion.map_or_else(v1::SiteVerdict::default, |SuspectedSite { confidence, evidence }| v1::SiteVerdict {
        suspect: true,
        confidence,
        evidence,
    })
}

impl From<SiteMeasurement> for v1::SiteMeasurement {
    fn from(measurement: SiteMeasurement) -> Self {
        Self {
            prober: measurement.prober,
            rtt: rtt(measurement.rtt),
            min: rtt(measurement.min),
            median: rtt(measurement.median),
            spread: measurement.spread.map(|spread| duration(spread.0)),
            count: measurement.answered,
            lost: measurement.lost,
            address: measurement.address.unwrap_or_default(),
            failure: measurement.failure.unwrap_or_default(),
            shared_from: measurement.shared_from.unwrap_or_default(),
            requests: measurement.requests,
            measured_at: Some(timestamp(measurement.measured_at)),
            confirming: measurement.confirming,
        }
    }
}

impl From<Placement> for v1::SitePlacement {
    fn from(placement: Placement) -> Self {
        Self { epoch: placement.epoch.get(), coordinate: placement.coordinate, fit_error: placement.fit_error }
    }
}

impl From<SiteTask> for v1::SiteTask {
    fn from(task: SiteTask) -> Self {
        let progress = task.progress.map(|progress| v1::CrawlProgress {
            pages: progress.pages,
            state_bytes: progress.state_bytes,
            saved_at: Some(timestamp(progress.saved_at)),
            interval: progress.rate_state.interval.map(duration),
            paused_until: progress.paused_until.map(timestamp),
            turned_away: progress.rate_state.turned_away,
            failed_in_a_row: progress.rate_state.failed_in_a_row,
            recent_requests: progress.rate_state.recent_requests,
            recent_errors: progress.rate_state.recent_errors,
            last_error: progress.rate_state.last_error,
        });
        let outcome = task.outcome.as_ref();
        Self {
            batch: task.batch,
            round: task.round,
            state: task.state.name().to_owned(),
            reason: explain::reason(task.reason, task.waits.as_ref(), Some(&task.why), task.message),
            agent: task.agent.clone().unwrap_or_default(),
            strategy: task.strategy.map_or_else(String::new, String::from),
            candidates: task.candidates.into_iter().map(Into::into).collect(),
            outcome: outcome.map_or("", |outcome| outcome.kind.name()).to_owned(),
            pages: outcome.map_or(0, |outcome| outcome.pages),
            bytes: outcome.map_or(0, |outcome| outcome.bytes),
            note: explain::note(&task.why).unwrap_or_default(),
            refetched: outcome.map_or(0, |outcome| outcome.refetched),
            trapped: outcome.map_or(0, |outcome| outcome.trapped),
            progress,
            recrawl_at: task.recrawl_at.map(timestamp),
            wait: task.waits.as_ref().map(Into::into),
            why: task.agent.as_ref().map(|_| (&task.why).into()),
        }
    }
}

impl From<ExplainedCandidate> for v1::Candidate {
    fn from(candidate: ExplainedCandidate) -> Self {
        Self { agent: candidate.agent, predicted: rtt(candidate.predicted), measured: rtt(candidate.measured) }
    }
}

pub(super) async fn explain(scheduler: &Scheduler, request: v1::ExplainRequest) -> Result<v1::ExplainResponse, Status> {
    let v1::ExplainRequest { site, batch, assignment_id } = request;
    let name = site_name(&site)?;
    let mut conn = scheduler.operators.read("explain a site").await?;
    let site = named::site(&mut conn, &name).await?;
    let batch = if batch.is_empty() { None } else { Some(named::batch(&mut conn, &batch).await?) };
    let at = assignment_id.map(AssignmentId::new);
    let of_batch = batch.as_ref().map(|batch| batch.id);
    let tasks = records::tasks(&mut conn, &site, of_batch, at).await?;
    match (tasks.is_empty(), batch, assignment_id) {
        (true, _, Some(number)) => return Err(Unknown::Choice { site: site.name, number }.into()),
        (true, Some(batch), None) => {
            return Err(Unknown::InBatch { batch: batch.name, site: site.name }.into());
        }
        _ => {}
    }
    let choices = records::choices(&mut conn, &tasks, at).await?;
    let batches: Vec<BatchId> = tasks.iter().map(|task| task.batch).collect();
    let asked = constraints_and_quotas::of_batches(&mut conn, &batches).await?;
    let position = position_of(&mut conn, &site).await?;
    Ok(v1::ExplainResponse {
        site_id: site.id.get(),
        site: site.name,
        position: position.map(globe_position),
        tasks: messages(tasks, &choices, &asked),
    })
}

/// The messages for a site's tasks with their choices, newest first.
fn messages(tasks: Vec<Task>, choices: &[TaskChoice], asked: &HashMap<BatchId, Constraints>) -> Vec<v1::ExplainedTask> {
    let one = |task: Task| {
        let constraints = asked.get(&task.batch).cloned().unwrap_or_default();
        let of_task = choices.iter().filter(|choice| choice.task == task.id);
        v1::ExplainedTask {
            waits: task
                .waits
                .as_ref()
                .map(|wait| format!("no agent yet: {}", explain::waits(wait)))
                .unwrap_or_default(),
            wait: task.waits.as_ref().map(Into::into),
            choices: of_task.map(|choice| explained(choice, &constraints)).collect(),
            batch: task.batch_name,
            round: task.round,
            state: task.state.name().to_owned(),
            reason: task.reason.unwrap_or_default(),
        }
    };
    tasks.into_iter().map(one).collect()
}

fn explained(choice: &TaskChoice, constraints: &Constraints) -> v1::ExplainedChoice {
    let recorded = &choice.recorded;
    let candidates = recorded.candidates.iter().map(|one| v1::ExplainedCandidate {
        agent: one.agent.clone(),
        predicted: rtt(one.predicted),
        measured: rtt(one.measured),
        load_level: one.level,
    });
    let excluded = choice.excluded.iter().map(|(exclusion, agents)| v1::ExcludedAgents {
        constraint: exclusion.to_string(),
        why: explain::exclusion(constraints, exclusion),
        agents: agents.clone(),
    });
    v1::ExplainedChoice {
        assignment_id: choice.id.get(),
        chosen_at: Some(timestamp(choice.at)),
        newest: choice.newest,
        agent: recorded.agent.clone(),
        strategy: recorded.strategy.to_string(),
        seed: recorded.seed,
        because: explain::because(recorded),
        candidates: candidates.collect(),
        available: recorded.available,
        excluded: excluded.collect(),
        fallback: recorded.why.fallback.as_ref().map(explain::fallback).unwrap_or_default(),
        note: explain::note(&recorded.why).unwrap_or_default(),
        why: Some((&recorded.why).into()),
    }
}

impl From<&ExplainedWait> for v1::Wait {
    fn from(wait: &ExplainedWait) -> Self {
        let cause = v1::WaitCause::from(wait.cause).into();
        let mut message = Self { cause, about: wait.about.text(), ..Self::default() };
        if let WaitDetail::Constraints(_, nobody) = &wait.about {
            message.unmet = v1::UnmetCause::from(nobody.cause).into();
            message.fleet = count(nobody.excluded.fleet);
            let by = nobody.excluded.by.iter();
            let by = by.map(|(one, agents)| v1::ExcludedCount { constraint: one.to_string(), agents: count(*agents) });
            message.excluded = by.collect();
        }
        message
    }
}

impl From<&ChoiceReasons> for v1::Why {
    fn from(why: &ChoiceReasons) -> Self {
        let mut message = Self::default();
        if let Some(Fallback { cause, said }) = &why.fallback {
            message.fallback = v1::FallbackCause::from(*cause).into();
            message.fallback_said.clone_from(said);
        }
        if let Some(FormerAgent { agent, how }) = &why.parted {
            message.parted = v1::Parting::from(*how).into();
            message.parted_agent.clone_from(agent);
        }
        let cause = match &why.cause {
            ChoiceCause::Strategy { full, of } => {
                (message.full, message.of) = (*full, *of);
                v1::ChoiceCause::Strategy
            }
            ChoiceCause::Explores => v1::ChoiceCause::Explores,
            ChoiceCause::Spread { confidence, near } => {
                (message.confidence, message.near) = (*confidence, *near);
                v1::ChoiceCause::Spread
            }
            ChoiceCause::NextCandidate => v1::ChoiceCause::NextCandidate,
            ChoiceCause::Rebalanced { from, gain } => {
                message.from.clone_from(from);
                message.gain = v1::Gain::from(*gain).into();
                v1::ChoiceCause::Rebalanced
            }
            ChoiceCause::TakenBack { from, remaining_ms, takes_ms } => {
                message.from.clone_from(from);
                message.remaining = Some(duration(Duration::from_millis(*remaining_ms)));
                message.takes = takes_ms.map(|takes| duration(Duration::from_millis(takes)));
                v1::ChoiceCause::TakenBack
            }
        };
        message.cause = cause.into();
        message
    }
}

/// Lists sites whose circuit is open.
pub(super) async fn list_open_circuits(
    scheduler: &Scheduler,
    request: v1::ListOpenCircuitsRequest,
) -> Result<v1::ListOpenCircuitsResponse, Status> {
    let page = Page::of(&request)?;
    let v1::ListOpenCircuitsRequest { agent, batch, cities, carriers, countries, since, until, .. } = request;
    let places = Places::new(&cities, &carriers, &countries);
    let TimeRange { since, until } = TimeRange::new(since, until)?;
    let mut conn = scheduler.operators.read("list open circuits").await?;
    let batch = if batch.is_empty() { None } else { Some(named::batch(&mut conn, &batch).await?.id) };
    let agents = named::agents_at(&mut conn, &agent, &places).await?;
    let filter = CircuitFilter { batch, agents, since, until };
    let after = page.after.map(|(since, site)| (since, SiteId::new(site)));
    let (listed, all) = open_circuits::list(&mut conn, &filter, after, page.most()).await?;
    let (more, next_page_token) = page.rest(&listed, all, |circuit| (circuit.since, circuit.id.get()));
    let circuits = listed.into_iter().map(Into::into).collect();
    Ok(v1::ListOpenCircuitsResponse { circuits, more, next_page_token })
}

/// Closes the circuits of the named sites, or of all sites.
pub(super) async fn reopen(
    scheduler: &Scheduler,
    v1::ReopenSitesRequest { sites: names, all }: v1::ReopenSitesRequest,
) -> Result<v1::ReopenSitesResponse, Status> {
    let extent = extent(&names, all, "all")?;
    let meant = match extent {
        ChangeScope::All => None,
        ChangeScope::Sites(names) => {
            let mut conn = scheduler.operators.read("find the sites to reopen").await?;
            Some(known_sites(&mut conn, &names).await?)
        }
    };
    let begun = Instant::now();
    let mut reopened = reopen_once(scheduler, meant.as_deref()).await?;
    while reopened.busy > 0 && begun.elapsed() < BUSY_PATIENCE {
        tokio::time::sleep(BUSY_PAUSE).await;
        let again = reopen_once(scheduler, meant.as_deref()).await?;
        (reopened.sites, reopened.tasks) = (reopened.sites + again.sites, reopened.tasks + again.tasks);
        reopened.busy = again.busy;
    }
    let v1::ReopenSitesResponse { sites, tasks, busy } = reopened;
    tracing::info!(sites, tasks, busy, "sites were reopened");
    Ok(reopened)
}

/// Closes the circuits of these sites, or of all sites, piece by piece, except those that other
/// transactions use.
async fn reopen_once(scheduler: &Scheduler, meant: Option<&[SiteId]>) -> Result<v1::ReopenSitesResponse, Status> {
    let (mut reopened, mut after) = (v1::ReopenSitesResponse::default(), SiteId::new(0));
    loop {
        let piece = scheduler.operators.tx("reopen sites", |tx| open_circuits::reopen(tx, meant, after).boxed());
        let Reopened { sites, tasks, busy, next } = piece.await?;
        reopened.sites += sites;
        reopened.tasks += tasks;
        reopened.busy += busy;
        if tasks > 0 {
            scheduler.wakes.assign.notify_one();
        }
        match next {
            Some(site) => after = site,
            None => return Ok(reopened),
        }
    }
}

/// Finds the sites with these names. For an alias, returns the site to which the alias points.
async fn known_sites(conn: &mut PgConnection, names: &[SiteName]) -> Result<Vec<SiteId>, Status> {
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let site = named::exact_site(conn, name).await?;
        found.push(site.alias_of.map_or(site.id, |(keeper, _)| keeper));
    }
    Ok(found)
}

impl From<OpenCircuit> for v1::OpenCircuit {
    fn from(circuit: OpenCircuit) -> Self {
        let OpenCircuit { id: _, site, since, agent, message, waiting } = circuit;
        Self { site, since: Some(timestamp(since)), agent, message, waiting }
    }
}

#[cfg(test)]
mod tests {
    use crate::model::constraints::{Exclusion, NoEligibleAgent};
    use crate::model::{FallbackCause, Gain, Parting, WaitCause};

    use super::*;

    #[test]
    fn every_cause_is_the_same_after_it_was_sent_and_printed_as_it_is_recorded() {
        let parted = Some(FormerAgent { agent: "a".into(), how: Parting::Drained });
        let fallback = Some(Fallback { cause: FallbackCause::Unmeasured, said: "connect: refused".into() });
        let others = ChoiceReasons { cause: ChoiceCause::NextCandidate, parted, fallback };
        let causes = [
            ChoiceCause::Strategy { full: 1, of: 3 },
            ChoiceCause::Explores,
            ChoiceCause::Spread { confidence: 0.9, near: 4 },
            ChoiceCause::Rebalanced { from: "b".into(), gain: Gain::Nearer },
            ChoiceCause::TakenBack { from: "b".into(), remaining_ms: 83_600, takes_ms: Some(4_260) },
        ];
        let causes = causes.into_iter().map(|cause| ChoiceReasons { cause, ..ChoiceReasons::default() });
        for why in causes.chain([others, ChoiceReasons::default()]) {
            let (printed, recorded) = (serde_json::to_value(v1::Why::from(&why)), serde_json::to_value(why));
            assert_eq!(printed.unwrap(), recorded.unwrap());
        }
        let unsaid = serde_json::to_value(v1::Why::default()).unwrap();
        assert!(unsaid.is_null(), "an older scheduler does not say");
        let newer = v1::Why { cause: v1::ChoiceCause::Rebalanced.into(), gain: 99, ..v1::Why::default() };
        assert!(serde_json::to_value(newer).unwrap().is_null(), "a newer scheduler knows more gains");
        for cause in WaitCause::ALL {
            let wait = v1::Wait::from(&ExplainedWait::from(*cause));
            assert_eq!(WaitCause::try_from(wait.cause()), Ok(*cause));
        }
        let asked = Constraints { countries: vec!["JP".into()], ..Constraints::default() };
        let nobody = NoEligibleAgent::of(3, &[Exclusion::Country, Exclusion::Country]);
        let unmet =
            v1::Wait::from(&ExplainedWait { cause: WaitCause::Unmet, about: WaitDetail::Constraints(asked, nobody) });
        assert_eq!((unmet.unmet(), unmet.fleet), (v1::UnmetCause::TakeNoWork, 3));
        assert_eq!(unmet.excluded, [v1::ExcludedCount { constraint: "country".to_owned(), agents: 2 }]);
        for how in Parting::ALL {
            assert_eq!(Parting::try_from(v1::Parting::from(*how)), Ok(*how));
        }
    }
}
