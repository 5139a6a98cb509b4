//! One scheduler: its services and its background tasks, supervised.
//!
//! A task that panics or returns before the shutdown ends the process with an error that names it: better a restart
//! than a scheduler that quietly no longer reaps.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Scheduler;
use crate::grpc::{self, Identity};
use crate::store;
use crate::store::terms::Duty;
use crate::tasks::{
    Period, assign::Assign, balance::Balance, confirm::Confirm, duty::Terms, fit::Fit, landmarks::Landmarks,
    locate::Locate, measure::Measure, prune::Prune, reap::Reap, recrawl::Recrawl, run_periodic, trust,
};
use crate::tls::{self, ServerTls};

/// How often each task looks without being woken.
const MEASURE_PERIOD: Period = Period::Relaxed(Duration::from_secs(2));
const FIT_PERIOD: Period = Period::Relaxed(Duration::from_secs(5));
const LANDMARKS_PERIOD: Period = Period::Relaxed(Duration::from_secs(5));
const LOCATE_PERIOD: Period = Period::Relaxed(Duration::from_secs(2));
const CONFIRM_PERIOD: Period = Period::Relaxed(Duration::from_secs(2));
const ASSIGN_PERIOD: Period = Period::Relaxed(Duration::from_secs(2));
/// Twice a second: a task a slot is laid ready ahead, so that only crawls shorter than this leave an agent idle between two.
const BALANCE_PERIOD: Period = Period::Relaxed(Duration::from_millis(500));
/// An empty look by index, of an interval of an hour or more.
const RECRAWL_PERIOD: Period = Period::Relaxed(Duration::from_secs(2));
/// Seconds of a log that is kept for days matter to nobody.
const PRUNE_PERIOD: Period = Period::Relaxed(Duration::from_secs(60));
/// The reaper's period is this part of the grace, so that an expiry is seen soon after it is due.
const REAPS_PER_GRACE: u32 = 5;

/// Runs a scheduler until `shutdown`, or until something it cannot do without fails.
///
/// # Errors
/// When the database cannot be used at start, the server fails, or a background task dies.
pub async fn run(
    scheduler: Scheduler,
    listener: TcpListener,
    tls: Option<ServerTls>,
    identity: Identity,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    prepare(&scheduler).await?;
    let stop = shutdown.child_token();
    let mut parts = Parts::new();
    let terms = Terms::new(&scheduler, &identity.scheduler_url);
    spawn_tasks(&mut parts, &scheduler, &terms, &stop);
    let config = tls.as_ref().map(|tls| Arc::clone(&tls.config));
    if let Some(ServerTls { leaf, .. }) = tls {
        let leaf = leaf.keep(crate::up::now, tls::RENEWAL_PERIOD, stop.clone());
        parts.spawn(async move {
            leaf.await;
            ("certificate", Ok(()))
        });
    }
    let server = grpc::serve(scheduler, listener, config, identity, stop.clone());
    parts.spawn(async move { ("grpc", server.await) });

    let mut outcome = Ok(());
    while let Some(joined) = parts.join_next().await {
        let (part, ended) = joined.context("a background task panicked")?;
        if !shutdown.is_cancelled() && outcome.is_ok() {
            outcome = match ended {
                Ok(()) => Err(anyhow::anyhow!("{part} ended before the shutdown")),
                Err(error) => Err(error.context(format!("{part} failed"))),
            };
            stop.cancel();
        } else if let Err(error) = ended {
            tracing::error!(part, error = format!("{error:#}"), "failed while shutting down");
        }
    }
    outcome
}

async fn prepare(scheduler: &Scheduler) -> anyhow::Result<()> {
    let mut tx = store::begin(&scheduler.pool).await.context("reach the database")?;
    if let Some(contact_url) = &scheduler.config.contact_url {
        store::settings::set_contact_url(&mut tx, contact_url).await.context("store the contact URL")?;
    }
    tx.commit().await.context("commit")
}

/// What `JoinSet` yields: which part ended, and how.
type Parts = JoinSet<(&'static str, anyhow::Result<()>)>;

fn spawn_tasks(parts: &mut Parts, scheduler: &Scheduler, terms: &Terms, stop: &CancellationToken) {
    let reap_period = scheduler.config.lease.grace / REAPS_PER_GRACE;
    let wakes = || Arc::clone(&scheduler.wakes);
    let [reaping, fitting, planning] = [Duty::Reap, Duty::Fit, Duty::Plan].map(|duty| terms.on(duty, scheduler));
    let (measure, locate) = (Measure::new(planning.clone()), Locate::new(planning.clone()));
    let (confirm, assign) = (Confirm::new(planning.clone()), Assign::new(planning.clone()));
    let (recrawl, balance) = (Recrawl::new(planning.clone()), Balance::new(planning));
    let (fit, landmarks) = (Fit::new(fitting.clone()), Landmarks::new(fitting.clone()));
    let (reap, prune, judge) = (Reap::new(reaping.clone()), Prune::new(reaping), trust::Trust::new(fitting));
    let (options, w, s) = (scheduler.pool.connect_options(), wakes(), stop.clone());
    parts.spawn(async move {
        w.database.watch((*options).clone(), s).await;
        ("database", Ok(()))
    });
    spawn_keepers(parts, scheduler, terms, stop);
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("landmarks", LANDMARKS_PERIOD, w.landmarks.here(), &w, s, || landmarks.run_once()).await;
        ("landmarks", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("measure", MEASURE_PERIOD, w.measure.here(), &w, s, || measure.run_once()).await;
        ("measure", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("fit", FIT_PERIOD, w.fit.here(), &w, s, || fit.run_once()).await;
        ("fit", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("locate", LOCATE_PERIOD, w.locate.here(), &w, s, || locate.run_once()).await;
        ("locate", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("confirm", CONFIRM_PERIOD, w.confirm.here(), &w, s, || confirm.run_once()).await;
        ("confirm", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("assign", ASSIGN_PERIOD, w.assign.here(), &w, s, || assign.run_once()).await;
        ("assign", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("reap", Period::Steady(reap_period), w.reap.here(), &w, s, || reap.run_once()).await;
        ("reap", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("balance", BALANCE_PERIOD, &Notify::new(), &w, s, || balance.run_once()).await;
        ("balance", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("recrawl", RECRAWL_PERIOD, &Notify::new(), &w, s, || recrawl.run_once()).await;
        ("recrawl", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        run_periodic("prune", PRUNE_PERIOD, &Notify::new(), &w, s, || prune.run_once()).await;
        ("prune", Ok(()))
    });
    let (w, s) = (wakes(), stop.clone());
    parts.spawn(async move {
        // Whoever needs a verdict at once asks for a review itself.
        run_periodic("trust", Period::Relaxed(trust::PERIOD), &Notify::new(), &w, s, || judge.run_once()).await;
        ("trust", Ok(()))
    });
}

/// What keeps this scheduler among the others: its duties, and the word between them.
fn spawn_keepers(parts: &mut Parts, scheduler: &Scheduler, terms: &Terms, stop: &CancellationToken) {
    let (terms, w, s) = (terms.clone(), Arc::clone(&scheduler.wakes), stop.clone());
    parts.spawn(async move {
        terms.keep(&w, s).await;
        ("terms", Ok(()))
    });
    let (options, w, s) = (scheduler.pool.connect_options(), Arc::clone(&scheduler.wakes), stop.clone());
    parts.spawn(async move {
        w.tell_others((*options).clone(), s).await;
        ("telling others", Ok(()))
    });
    let (options, w, s) = (scheduler.pool.connect_options(), Arc::clone(&scheduler.wakes), stop.clone());
    parts.spawn(async move {
        w.hear_others((*options).clone(), s).await;
        ("hearing others", Ok(()))
    });
}
