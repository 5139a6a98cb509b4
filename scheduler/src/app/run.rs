//! Runs `landfall up` and `landfall serve`: prepares the database, the secrets and the addresses,
//! greets the operator, starts the services and background jobs, and supervises them.
//!
//! If a service or a job panics or returns before the shutdown, the process ends with an error. A
//! restart is better than a scheduler in which, for example, the job `reap` has silently stopped.

use std::convert::identity;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt as _;
use sqlx::postgres::PgConnectOptions;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Scheduler;
use crate::app::address::{AdvertisedAddress, bind, local};
use crate::app::certificate_authority::claim_authority;
use crate::app::data_dir::DataDir;
use crate::app::exit::{self, print, quoted};
use crate::app::postgres::PrivatePostgres;
use crate::app::server_certificate::{RENEWAL_PERIOD, ServerTls, certificate_names, prepare as prepare_tls};
use crate::app::start_options::{Configuration, Options, configuration, database_servers, reach};
use crate::app::token_and_client_file::{self, ClientFile, Defaults, Precedence};
use crate::config::Config;
use crate::grpc::{self, Identity};
use crate::jobs::assign::balance::Balance;
use crate::jobs::assign::{Assign, confirmation};
use crate::jobs::fit::{Fit, landmarks, trust};
use crate::jobs::geoip::GeoIp;
use crate::jobs::leadership::HeldTerms;
use crate::jobs::locate::Locate;
use crate::jobs::measure::Measure;
use crate::jobs::period::{Period, run_periodic};
use crate::jobs::{changes, prune, reap, recrawl, totals, traces};
use crate::machine::clock::now;
use crate::machine::disk::DiskWatch;
use crate::store::schedulers::Role;
use crate::store::schema::backup_and_restore::{self, RestoreResult};
use crate::store::servers::Servers;
use crate::store::{self, Db, Share, schedulers};
use crate::wake::Task;
use crate::web::{self, Web};

/// Runs a scheduler until SIGINT or SIGTERM.
///
/// The order of the steps matters. Cheap steps that often fail come first (configuration, data
/// directory, port), then Postgres, then the operator's token. The file `client.toml`, which tells
/// commands how to reach the scheduler, is written once the scheduler can answer. At shutdown, the
/// scheduler ends its services and jobs before Postgres stops.
pub async fn up(options: Options) -> anyhow::Result<()> {
    // The signal handlers are installed before Postgres is spawned, so that a signal that arrives
    // while Postgres starts does not leave it running.
    let shutdown = exit::on_signal()?;
    let Configuration { config, exposed } = configuration(&options)?;
    if let Some(file) = exposed.as_deref().map(Path::display) {
        tracing::warn!("every user of this machine can read the database_url in {file}: run chmod o= {file}");
    }
    let geoip = config.geoip.as_deref().map(GeoIp::open).transpose()?.map(Arc::new);
    let data_dir = match &options.data_dir {
        Some(path) => path.clone(),
        None => DataDir::default_to_run()?,
    };
    let data_dir = DataDir::lock(&data_dir)?;
    let listener = bind(config.listen)?;
    let (servers, postgres) = match &config.database_url {
        Some(url) => (database_servers(url)?, None),
        None => {
            let postgres = tokio::select! {
                started = PrivatePostgres::start(data_dir.path()) => started?,
                () = shutdown.cancelled() => return Ok(()),
            };
            (Servers::from(postgres.options()), Some(postgres))
        }
    };
    let served = serve(&options, (config, geoip), &data_dir, servers, listener, shutdown);
    let Some(postgres) = postgres else { return served.await };
    let served = tokio::select! {
        served = served => served,
        error = postgres.ended() => return Err(error),
    };
    let stopped = postgres.stop().await;
    served.and(stopped)
}

async fn serve(
    options: &Options,
    (config, geoip): (Config, Option<Arc<GeoIp>>),
    data_dir: &DataDir,
    servers: Servers,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let address = listener.local_addr().context("read the listening address")?;
    let connect = match config.database_url {
        Some(_) => reach(&servers).await?.server,
        None => servers.first().clone(),
    };
    let precedence = match (options.replace_secrets, &config.database_url) {
        (true, _) => Precedence::Operator,
        (false, None) => Precedence::DataDir,
        (false, Some(_)) => Precedence::Database,
    };
    store::prepare(&connect).await.context("open the database")?;
    let share = |share| Db::open(connect.clone(), share);
    let (db, operators) = (share(Share::Fleet).await?, share(Share::Operators).await?);
    let readiness = share(Share::Readiness).await?;
    let token = token_and_client_file::token(&db, data_dir, precedence).await?;
    let tls = match address.ip().is_loopback() {
        true => None,
        false => Some(prepare_tls(data_dir.path(), &certificate_names(address, options.advertise.as_ref()), now())?),
    };
    let identity = own_identity(address, options.advertise.as_ref(), tls.as_ref());
    if address.ip().is_unspecified() && options.advertise.is_none() {
        let dialled = &identity.scheduler_url;
        tracing::warn!(
            "agents will connect to {dialled}; if that name is unknown to them, start with --advertise \
             HOST:PORT"
        );
    }
    if let Some(tls) = &tls {
        tls.warning().iter().for_each(|warning| tracing::warn!("{warning}"));
        claim_authority(&db, data_dir, &tls.ca_fingerprint, precedence).await?;
    }
    let client = client_file(address, tls.as_ref(), token);
    let mut conn = db.read("greet the operator").await?;
    let others = schedulers::others(&mut conn, &identity.scheduler_url).await?;
    client.with(&others).write(data_dir.path())?;
    let has_contact = config.contact_url.is_some() || store::settings::contact_url(&mut conn).await?.is_some();
    drop(conn);
    let private = config.database_url.is_none();
    let restored = db.tx("tell of a restore", |tx| backup_and_restore::take_untold(tx).boxed()).await?;
    print(&greeting(private, has_contact, data_dir, &identity, address, (&others, restored.as_ref()))?)?;

    let scheduler = Scheduler {
        geoip,
        disk: Some(DiskWatch::of(data_dir.path().to_owned())),
        operators: operators.clone(),
        readiness: readiness.clone(),
        ..Scheduler::new(db.clone(), servers, config)
    };
    let wakes = Arc::clone(&scheduler.wakes);
    let served = tokio::select! {
        served = run(scheduler, listener, tls, identity, shutdown) => served,
        never = token_and_client_file::keep_client_file(&wakes, &client, data_dir) => match never {},
    };
    tokio::join!(db.close(), operators.close(), readiness.close());
    served
}

fn own_identity(address: SocketAddr, advertise: Option<&AdvertisedAddress>, tls: Option<&ServerTls>) -> Identity {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let dialled = AdvertisedAddress::of(address, advertise);
    Identity { scheduler_url: dialled.url(scheme), ca_fingerprint: tls.map(|tls| tls.ca_fingerprint.clone()) }
}

fn client_file(address: SocketAddr, tls: Option<&ServerTls>, token: String) -> ClientFile {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let scheduler = vec![format!("{scheme}://{}", local(address))];
    ClientFile { scheduler, ca: tls.map(|tls| tls.ca_path.clone()), token, defaults: Defaults::default() }
}

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
    let register = scheduler.db.tx("register a scheduler", |tx| terms.register(tx).boxed());
    register.await.context("register this scheduler")?;
    spawn_keepers(&mut parts, &scheduler, &terms, &stop);
    spawn_jobs(&mut parts, &scheduler, &terms, &stop);
    let traces = traces::run(scheduler.clone(), terms, identity.scheduler_url.clone(), stop.clone());
    parts.spawn(async move {
        traces.await;
        ("traces", Ok(()))
    });
    let config = tls.as_ref().map(|tls| Arc::clone(&tls.config));
    if let Some(ServerTls { leaf, .. }) = tls {
        let leaf = leaf.keep(now, RENEWAL_PERIOD, stop.clone());
        parts.spawn(async move {
            leaf.await;
            ("certificate", Ok(()))
        });
    }
    let (dashboard, over_tls, pages_end) = (scheduler.clone(), config.is_some(), stop.child_token());
    let pages = move |services| web::router(Web::new(dashboard, services, over_tls, pages_end));
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
    if let Some(contact_url) = &scheduler.config.contact_url {
        let set = scheduler.db.tx("set contact URL", |tx| store::settings::set_contact_url(tx, contact_url).boxed());
        set.await.context("store the contact URL")?;
    }
    Ok(())
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
        // A change also proceeds without a signal: when a lock is released, or after a restart.
        Job::Woken(Task::Changes), relaxed(1_000), identity, changes::run_once;
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
    let of_each = || (scheduler.servers.clone(), Arc::clone(&scheduler.wakes), stop.clone());
    let (servers, wakes, stop) = of_each();
    let Scheduler { db, operators, readiness, .. } = scheduler.clone();
    parts.spawn(async move {
        let moved = |server: &PgConnectOptions| {
            [&db, &operators, &readiness].into_iter().for_each(|db| db.move_to(server));
        };
        wakes.database.watch(servers, moved, stop).await;
        ("database", Ok(()))
    });
    let (terms, (_, wakes, stop)) = (terms.clone(), of_each());
    parts.spawn(async move {
        terms.keep(&wakes, stop).await;
        ("terms", Ok(()))
    });
    let (servers, wakes, stop) = of_each();
    parts.spawn(async move {
        wakes.tell_others(servers, stop).await;
        ("notifying other schedulers", Ok(()))
    });
    let (servers, wakes, stop) = of_each();
    parts.spawn(async move {
        wakes.hear_others(servers, stop).await;
        ("listening to other schedulers", Ok(()))
    });
}

/// The text that the scheduler prints when it starts.
fn greeting(
    private: bool,
    has_contact: bool,
    data_dir: &DataDir,
    identity: &Identity,
    address: SocketAddr,
    (others, restored): (&[String], Option<&RestoreResult>),
) -> anyhow::Result<String> {
    let scheme = if identity.ca_fingerprint.is_some() { "https" } else { "http" };
    let mut text = String::new();
    writeln!(text, "landfall {} is listening on {scheme}://{address}", crate::VERSION)?;
    writeln!(text, "  data directory  {}", data_dir.path().display())?;
    let database = if private { "a private Postgres" } else { "the configured server" };
    writeln!(text, "  database        {database}")?;
    let dashboard = format!("{scheme}://{}", local(address));
    writeln!(text, "  dashboard       {dashboard}  (sign in with the token in operator-token in that directory)")?;
    if let Some(fingerprint) = &identity.ca_fingerprint {
        writeln!(text, "  agents dial     {}", identity.scheduler_url)?;
        writeln!(text, "  CA fingerprint  {fingerprint}")?;
    } else {
        writeln!(
            text,
            "  reach           this machine only; for agents on other machines give --listen ADDR:PORT (uses TLS)"
        )?;
    }
    if !others.is_empty() {
        writeln!(text, "  also running    {}", others.join(", "))?;
    }
    if let Some(restored) = restored {
        writeln!(text, "  database        {}", restored.sentence())?;
    }
    // For the default directory, commands do not need `--data-dir`.
    let elsewhere = match data_dir.path() {
        dir if DataDir::default_path().ok().as_deref() == Some(dir) => String::new(),
        dir => format!(" --data-dir {}", quoted(&dir.to_string_lossy())),
    };
    writeln!(text, "next, in another terminal:")?;
    if !has_contact {
        writeln!(text, "  landfall{elsewhere} contact set URL    (agents send no request to a site without one)")?;
    }
    writeln!(text, "  landfall{elsewhere} agents enrol --city CITY --carrier CARRIER")?;
    writeln!(text, "  landfall{elsewhere} sites submit FILE --batch NAME --watch")?;
    Ok(text)
}
