//! `landfall up` and `landfall serve`: prepare everything that [`crate::run()`] needs.
//!
//! The order of the steps matters. Cheap steps that often fail come first (configuration, data
//! directory, port), then Postgres, then the operator's token. The file `client.toml`, which tells
//! commands how to reach the scheduler, is written once the scheduler can answer. At shutdown, the
//! scheduler ends its services and jobs before Postgres stops.

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use landfall_proto::traces::Collector;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Scheduler;
use crate::app::address::{AdvertisedAddress, bind, local};
use crate::app::client_file::{self, ClientFile, Defaults};
use crate::app::data_dir::DataDir;
use crate::app::exit::{self, print, usage};
use crate::app::operator_token::{self, Precedence};
use crate::app::postgres::PrivatePostgres;
use crate::app::tls::{self, ServerTls};
use crate::config::Config;
use crate::grpc::Identity;
use crate::jobs::locate::geoip::GeoIp;
use crate::machine::clock::now;
use crate::machine::disk::DiskWatch;
use crate::model::contact_url::ContactUrl;
use crate::store::schema::restores::{self, RestoreResult};
use crate::store::{self, schedulers};

/// The options of `landfall up` and `landfall serve`.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The folder with all files of this scheduler; [`DataDir::default_path`] if `None`.
    pub data_dir: Option<PathBuf>,
    /// The gRPC address; the configured address if `None`.
    pub listen: Option<SocketAddr>,
    /// The configuration file; the defaults are used if `None`.
    pub config: Option<PathBuf>,
    /// The URL of the operator's own Postgres server. If `None`, the server in the configuration is
    /// used. If the configuration names none either, a private server is used.
    pub database_url: Option<String>,
    /// Whether the operator must provide the Postgres server, so that no private one is started.
    pub own_database: bool,
    /// The contact URL, sent in the User-Agent header; the configured URL if `None`.
    pub contact_url: Option<ContactUrl>,
    /// The file that maps addresses to positions; the configured file if `None`.
    pub geoip: Option<PathBuf>,
    /// The collector of traces; the configured collector if `None`.
    pub otlp: Option<Collector>,
    /// The address to which agents connect; derived from the listening address if `None`.
    pub advertise: Option<AdvertisedAddress>,
    /// Whether the data directory's secrets replace those known to the database.
    pub replace_secrets: bool,
}

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
        false => Some(tls::prepare(data_dir.path(), &tls::certificate_names(address, options.advertise.as_ref()), now())?),
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
    let restored = restores::take_untold(&mut *pool.acquire().await?).await?;
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

#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) config: Config,
    /// The configuration file, but only if every user of this machine can read the database URL in
    /// it. The URL may contain a password.
    pub(crate) exposed: Option<PathBuf>,
}

/// Reads the configuration. Options of the command line override it.
pub(crate) fn configuration(options: &Options) -> anyhow::Result<Configuration> {
    let mut config = match &options.config {
        Some(path) => Config::load(path)?,
        None => Config::default(),
    };
    let of_database = options.config.as_deref().filter(|_| config.database_url.is_some());
    let exposed = of_database.filter(|file| exposed(file)).map(Path::to_owned);
    if options.database_url.is_some() {
        config.database_url.clone_from(&options.database_url);
    }
    if options.own_database && config.database_url.is_none() {
        return Err(usage(
            "no Postgres server is given: set --database-url URL, LANDFALL_DATABASE_URL or database_url in the \
             configuration (--config FILE), or run `landfall up`, which starts a private one",
        ));
    }
    if let Some(listen) = options.listen {
        config.listen = listen;
    }
    if let Some(contact_url) = &options.contact_url {
        config.contact_url = Some(contact_url.to_string());
    }
    if options.geoip.is_some() {
        config.geoip.clone_from(&options.geoip);
    }
    if options.otlp.is_some() {
        config.otlp.clone_from(&options.otlp);
    }
    if options.advertise.is_some() && config.listen.ip().is_loopback() {
        let listen = config.listen;
        return Err(usage(format!("--advertise needs --listen: other machines cannot reach {listen}")));
    }
    config.validate()?;
    Ok(Configuration { config, exposed })
}

/// Whether the file's mode gives every user of this machine access. The file's folder may still
/// deny access.
pub(crate) fn exposed(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o007 != 0)
}

/// Parses the URL of a database. Errors do not repeat it, because it may contain a password.
pub(crate) fn database_options(url: &str) -> anyhow::Result<PgConnectOptions> {
    let postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let options = if postgres { url.parse().ok() } else { None };
    options.ok_or_else(|| usage("the database URL is not a Postgres URL (postgres://USER:PASSWORD@HOST:PORT/DATABASE)"))
}

/// Connects once to the operator's own server, to get the exact error. The connection pool would
/// retry, and then report only that it gave up.
pub(crate) async fn reach(connect: &PgConnectOptions) -> anyhow::Result<PgConnection> {
    let at = match connect.get_socket() {
        Some(directory) => directory.display().to_string(),
        None => format!("{}:{}", connect.get_host(), connect.get_port()),
    };
    match connect.connect().await {
        Ok(connection) => Ok(connection),
        // sqlx's own message would also contain a line number of Postgres' source.
        Err(sqlx::Error::Database(said)) => bail!("reach the database at {at}: {}", said.message()),
        Err(error) => Err(anyhow::Error::new(error).context(format!("reach the database at {at}"))),
    }
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

/// Quotes a word for a shell if needed.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=@%+,[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_postgres_url_names_a_database() {
        assert!(database_options("postgres://u@db.example.org/landfall").is_ok());
        assert!(database_options("postgresql:///landfall?host=/run/postgresql").is_ok());
        for url in ["mysql://u@db.example.org/landfall", "landfall", "postgres://u@db:port/x", ""] {
            assert!(database_options(url).is_err(), "{url}");
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/var/lib/landfall"), "/var/lib/landfall");
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
        assert_eq!(quoted(""), "''");
    }
}
