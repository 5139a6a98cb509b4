//! Runs one scheduler: starts its services and background jobs, and supervises them.
//!
//! If a service or a job panics or returns before the shutdown, the process ends with an error. A
//! restart is better than a scheduler in which, for example, the job `reap` has silently stopped.

use std::convert::identity;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::app::tls::{self, ServerTls};
use crate::grpc::{self, Identity};
use crate::jobs::assign::balance::Balance;
use crate::jobs::assign::{Assign, confirmation};
use crate::jobs::fit::{Fit, landmarks, trust};
use crate::jobs::leadership::HeldTerms;
use crate::jobs::locate::Locate;
use crate::jobs::measure::Measure;
use crate::jobs::period::{Period, run_periodic};
use crate::jobs::{prune, reap, recrawl, totals, traces};
use crate::machine::clock::now;
use crate::store::schedulers::Role;
use crate::wake::Task;
use crate::web::{self, Web};
use crate::{Scheduler, store};

/// Number of passes of the job `reap` within the time `lease.grace`. With this number, an expired
/// session is detected within about a fifth of `lease.grace`.
const REAPS_PER_GRACE: u32 = 5;

/// Runs a scheduler until `shutdown`, or until an essential part fails.
pub async fn run(
    scheduler: Scheduler,
    listener: TcpListener,
    tls: Option<ServerTls>,
    identity: Identity,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    prepare(&scheduler).await?;
    let stop = shutdown.child_token();
    let mut parts = ProcessParts::new();
    let terms = HeldTerms::new(&scheduler, &identity.scheduler_url);
    let mut conn = store::acquire(&scheduler.pool).await.context("reach the database")?;
    terms.register(&mut conn).await.context("register this scheduler")?;
    drop(conn);
    spawn_keepers(&mut parts, &scheduler, &terms, &stop);
    spawn_jobs(&mut parts, &scheduler, &terms, &stop);
    let traces = traces::run(scheduler.clone(), terms, identity.scheduler_url.clone(), stop.clone());
    parts.spawn(async move {
        traces.await;
        ("traces", Ok(()))
    });
    let config = tls.as_ref().map(|tls| Arc::clone(&tls.config));
    if let Some(ServerTls { leaf, .. }) = tls {
        let leaf = leaf.keep(now, tls::RENEWAL_PERIOD, stop.clone());
        parts.spawn(async move {
            leaf.await;
            ("certificate", Ok(()))
        });
    }
    let (dashboard, over_tls, pages_end) = (scheduler.clone(), config.is_some(), stop.child_token());
    let pages = move |desks| web::router(Web::new(dashboard, desks, over_tls, pages_end));
    let server = grpc::serve(scheduler, listener, config, identity, pages, stop.clone());
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

/// The parts of the process. Each part returns its name and the result with which it ended.
type ProcessParts = JoinSet<(&'static str, anyhow::Result<()>)>;

/// The trigger of a background job, which also gives the job's name and role.
#[derive(Debug, Clone, Copy)]
enum Job {
    /// The job runs when its signal comes, and after its period.
    Woken(Task),
    /// The job runs only after its period.
    Timed(&'static str, Role),
}

impl Job {
    const fn name(self) -> &'static str {
        match self {
            Self::Woken(task) => task.name(),
            Self::Timed(name, _) => name,
        }
    }

    const fn role(self) -> Role {
        match self {
            Self::Woken(task) => task.role(),
            Self::Timed(_, role) => role,
        }
    }
}

/// Spawns background jobs. Each line gives the trigger, the period after which a pass runs even
/// without a signal, the constructor of the state that is kept between passes, and the function
/// that runs a pass.
macro_rules! jobs {
    (($parts:ident, $scheduler:ident, $terms:ident, $stop:ident); $($job:expr, $period:expr, $new:path, $pass:path;)+) => {$(
        let kept = $new($terms.on($job.role(), $scheduler));
        let (wakes, stop) = (Arc::clone(&$scheduler.wakes), $stop.clone());
        $parts.spawn(async move {
            let never = Notify::new();
            let wake = match $job {
                Job::Woken(task) => wakes.signal(task).here(),
                Job::Timed(..) => &never,
            };
            run_periodic($job.name(), $period, wake, &wakes, stop, || $pass(&kept)).await;
            ($job.name(), Ok(()))
        });
    )+};
}

fn spawn_jobs(parts: &mut ProcessParts, scheduler: &Scheduler, terms: &HeldTerms, stop: &CancellationToken) {
    let relaxed = |millis| Period::Relaxed(Duration::from_millis(millis));
    let reap = Period::Steady(scheduler.config.lease.grace / REAPS_PER_GRACE);
    jobs! { (parts, scheduler, terms, stop);
        Job::Woken(Task::Landmarks), relaxed(5_000), identity, landmarks::run_once;
        Job::Woken(Task::Measure), relaxed(2_000), Measure::new, Measure::run_once;
        Job::Woken(Task::Fit), relaxed(5_000), Fit::new, Fit::run_once;
        Job::Woken(Task::Locate), relaxed(2_000), Locate::new, Locate::run_once;
        Job::Woken(Task::Confirm), relaxed(2_000), identity, confirmation::run_once;
        Job::Woken(Task::Assign), relaxed(2_000), Assign::new, Assign::run_once;
        Job::Woken(Task::Reap), reap, identity, reap::run_once;
        // The job `balance` tries to keep one waiting task for each slot. Therefore, a slot can
        // become idle between two passes only if its crawl is shorter than this period.
        Job::Timed("balance", Role::Plan), relaxed(500), Balance::new, Balance::run_once;
        // A query for a batch's totals itself adds the changes that the job `totals` has not added
        // yet. Therefore, a longer period makes these queries slower, but not wrong.
        Job::Timed("totals", Role::Reap), relaxed(1_000), identity, totals::run_once;
        // A pass of the job `recrawl` is a cheap query that usually finds nothing, because the
        // recrawl interval of a batch is an hour or more.
        Job::Timed("recrawl", Role::Plan), relaxed(2_000), identity, recrawl::run_once;
        // Rows are kept for days, so it does not matter if they are deleted minutes late.
        Job::Timed("prune", Role::Reap), relaxed(60_000), identity, prune::run_once;
        // Each fit of the map also reviews the trust in agents, so this period matters only while
        // no fit is made.
        Job::Timed("trust", Role::Fit), relaxed(60_000), identity, trust::run_once;
    }
}

/// Spawns the parts that keep this scheduler's roles, exchange signals with the other schedulers,
/// and watch the database.
fn spawn_keepers(parts: &mut ProcessParts, scheduler: &Scheduler, terms: &HeldTerms, stop: &CancellationToken) {
    let of_each = || (scheduler.pool.connect_options().as_ref().clone(), Arc::clone(&scheduler.wakes), stop.clone());
    let (options, wakes, stop) = of_each();
    parts.spawn(async move {
        wakes.database.watch(options, stop).await;
        ("database", Ok(()))
    });
    let (terms, (_, wakes, stop)) = (terms.clone(), of_each());
    parts.spawn(async move {
        terms.keep(&wakes, stop).await;
        ("terms", Ok(()))
    });
    let (options, wakes, stop) = of_each();
    parts.spawn(async move {
        wakes.tell_others(options, stop).await;
        ("notifying other schedulers", Ok(()))
    });
    let (options, wakes, stop) = of_each();
    parts.spawn(async move {
        wakes.hear_others(options, stop).await;
        ("listening to other schedulers", Ok(()))
    });
}
