//! Combines the options of `landfall up` and `landfall serve` with the configuration file, refuses
//! combinations that cannot work, and reaches the operator's own Postgres server.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use landfall_proto::traces::Collector;

use crate::app::address::AdvertisedAddress;
use crate::app::exit::usage;
use crate::config::Config;
use crate::model::contact_url::ContactUrl;
use crate::store::servers::{self, Reached, Servers, UrlError};

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

/// Parses the URL of a database.
pub(crate) fn database_servers(url: &str) -> anyhow::Result<Servers> {
    url.parse().map_err(|error: UrlError| usage(error.to_string()))
}

/// Connects once to the operator's own server, to get the exact error. The connection pool would
/// retry, and then report only that it gave up.
pub(crate) async fn reach(servers: &Servers) -> anyhow::Result<Reached> {
    let mut reached = match servers.connect().await {
        Ok(reached) => reached,
        Err(error) if error.is_refused_beginning() => {
            bail!(
                "{error}: if pgbouncer answers there, set ignore_startup_parameters = extra_float_digits in its configuration"
            )
        }
        Err(error) => return Err(error.into()),
    };
    let shared = servers::shares_connections(&mut reached).await.context("look for a pooler before the database")?;
    ensure!(
        !shared,
        "a pooler before the database gives each transaction another connection, but the scheduler needs connections \
         of its own for LISTEN, prepared statements and time-outs: set pool_mode = session in pgbouncer's configuration"
    );
    Ok(reached)
}
