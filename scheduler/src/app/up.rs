//! `landfall up` and `landfall serve`: prepare everything that [`crate::run()`] needs.
//!
//! The order of the steps matters. Cheap steps that often fail come first (configuration, data
//! directory, port), then Postgres, then the operator's token. The file `client.toml`, which tells
//! commands how to reach the scheduler, is written once the scheduler can answer. At shutdown, the
//! scheduler ends its services and jobs before Postgres stops.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use sqlx::postgres::PgConnectOptions;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Scheduler;
use crate::app::address::{AdvertisedAddress, bind, local};
use crate::app::client_file::{self, ClientFile, Defaults};
use crate::app::data_dir::DataDir;
use crate::app::exit::{self, print};
use crate::app::greeting::greeting;
use crate::app::operator_token::{self, Precedence};
use crate::app::own_postgres::{database_options, reach};
use crate::app::postgres::PrivatePostgres;
use crate::app::start_options::{Configuration, Options, configuration};
use crate::app::tls::{self, ServerTls};
use crate::config::Config;
use crate::grpc::Identity;
use crate::jobs::geoip::GeoIp;
use crate::machine::clock::now;
use crate::machine::disk::DiskWatch;
use crate::store::schema::backup_and_restore;
use crate::store::{self, schedulers};

/// Runs a scheduler until SIGINT or SIGTERM.
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
    let listener = bind(config.listen).await?;
    let (connect, postgres) = match &config.database_url {
        Some(url) => (database_options(url)?, None),
        None => {
            let postgres = tokio::select! {
                started = PrivatePostgres::start(data_dir.path()) => started?,
                () = shutdown.cancelled() => return Ok(()),
            };
            (postgres.options(), Some(postgres))
        }
    };
    let served = serve(&options, (config, geoip), &data_dir, connect, listener, shutdown);
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
    connect: PgConnectOptions,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let address = listener.local_addr().context("read the listening address")?;
    if config.database_url.is_some() {
        reach(&connect).await?;
    }
    let precedence = match (options.replace_secrets, &config.database_url) {
        (true, _) => Precedence::Operator,
        (false, None) => Precedence::DataDir,
        (false, Some(_)) => Precedence::Database,
    };
    let pool = store::open(connect).await.context("open the database")?;
    let token = operator_token::token(&pool, data_dir, precedence).await?;
    let tls = match address.ip().is_loopback() {
        true => None,
        false => {
            Some(tls::prepare(data_dir.path(), &tls::certificate_names(address, options.advertise.as_ref()), now())?)
        }
    };
    let identity = identity(address, options.advertise.as_ref(), tls.as_ref());
    if address.ip().is_unspecified() && options.advertise.is_none() {
        let dialled = &identity.scheduler_url;
        tracing::warn!(
            "agents will connect to {dialled}; if that name is unknown to them, start with --advertise \
             HOST:PORT"
        );
    }
    if let Some(tls) = &tls {
        tls.warning().iter().for_each(|warning| tracing::warn!("{warning}"));
        tls::claim_authority(&pool, data_dir, &tls.ca_fingerprint, precedence).await?;
    }
    let client = client_file(address, tls.as_ref(), token);
    let others = schedulers::others(&mut *pool.acquire().await?, &identity.scheduler_url).await?;
    client.with(&others).write(data_dir.path())?;
    let has_contact =
        config.contact_url.is_some() || store::settings::contact_url(&mut *pool.acquire().await?).await?.is_some();
    let private = config.database_url.is_none();
    let restored = backup_and_restore::take_untold(&mut *pool.acquire().await?).await?;
    print(&greeting(private, has_contact, data_dir, &identity, address, (&others, restored.as_ref()))?)?;

    let scheduler = Scheduler {
        geoip,
        disk: Some(DiskWatch::of(data_dir.path().to_owned())),
        ..Scheduler::new(pool.clone(), config)
    };
    let wakes = Arc::clone(&scheduler.wakes);
    let served = tokio::select! {
        served = crate::run(scheduler, listener, tls, identity, shutdown) => served,
        never = client_file::keep_client_file(&wakes, &client, data_dir) => match never {},
    };
    pool.close().await;
    served
}

fn identity(address: SocketAddr, advertise: Option<&AdvertisedAddress>, tls: Option<&ServerTls>) -> Identity {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let dialled = AdvertisedAddress::of(address, advertise);
    Identity { scheduler_url: dialled.url(scheme), ca_fingerprint: tls.map(|tls| tls.ca_fingerprint.clone()) }
}

fn client_file(address: SocketAddr, tls: Option<&ServerTls>, token: String) -> ClientFile {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let scheduler = vec![format!("{scheme}://{}", local(address))];
    ClientFile { scheduler, ca: tls.map(|tls| tls.ca_path.clone()), token, defaults: Defaults::default() }
}
