//! `landfall up` and `landfall serve`: declares their flags, some of which `landfall doctor` has
//! too.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::app::address::AdvertisedAddress;
use crate::app::run::up;
use crate::app::start_options::Options;
use crate::cli::connection::ConnectionArgs;
use crate::model::contact_url::ContactUrl;
use crate::telemetry::TelemetryArgs;

/// The flags that `up`, `serve` and `doctor` have in common.
#[derive(Debug, Args)]
pub(super) struct SchedulerArgs {
    /// The address to listen on [default: listen in the configuration, else 127.0.0.1:7171]
    #[arg(long, env = "LANDFALL_LISTEN", value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// The URL at which site owners can contact you; http:, https: or mailto:. Every request
    /// carries it
    #[arg(long, env = "LANDFALL_CONTACT_URL", value_name = "URL")]
    contact_url: Option<ContactUrl>,
    /// A city database in MaxMind DB format: supplies, by address, the positions of sites that no
    /// site list gives
    #[arg(long, env = "LANDFALL_GEOIP", value_name = "FILE.mmdb")]
    geoip: Option<PathBuf>,
    /// The address at which agents reach this scheduler, if it differs from the one it listens on
    #[arg(long, env = "LANDFALL_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<AdvertisedAddress>,
    /// The configuration file (TOML)
    #[arg(long, env = "LANDFALL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The Postgres server to use [default: database_url in the configuration; without one, `up`
    /// starts a private Postgres]. Every user of the machine can read command lines, so put a
    /// password in LANDFALL_DATABASE_URL, the configuration, PGPASSWORD or ~/.pgpass instead
    #[arg(long, env = "LANDFALL_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
}

impl SchedulerArgs {
    pub(super) fn options(self, connection: &ConnectionArgs) -> Options {
        let Self { listen, contact_url, geoip, advertise, config, database_url } = self;
        let data_dir = connection.data_dir.clone();
        Options { data_dir, listen, config, database_url, contact_url, geoip, advertise, ..Options::default() }
    }
}

/// The flags that `up` and `serve` have in common.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    scheduler: SchedulerArgs,
    #[command(flatten)]
    pub(super) telemetry: TelemetryArgs,
    /// Replace the secrets of a shared database with those of this data directory, because the
    /// shared database's own secrets are lost
    #[arg(long)]
    replace_secrets: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall up                                                   for agents on this machine
  landfall up --listen 0.0.0.0:7171 --advertise s.example.org:7171 --contact-url https://example.org/crawler

On loopback the scheduler uses plaintext. On any other address it uses TLS with a private certificate authority, which it
creates at the first start, and prints the authority's fingerprint.")]
pub(super) struct UpArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  landfall serve --database-url postgres://u@localhost/landfall --data-dir one
  landfall serve --database-url postgres://u@localhost/landfall --data-dir two --listen 127.0.0.1:7172

Several schedulers may use one database, on one machine or several: each serves every agent and operator. Before the
second one starts, copy the first one's secrets: cp -r one/operator-token one/tls two/ (without tls if the first one listens
only on loopback).")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    pub(super) run: RunArgs,
}

impl UpArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        up(self.run.options(connection, false)?).await
    }
}

impl ServeArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> anyhow::Result<()> {
        up(self.run.options(connection, true)?).await
    }
}

impl RunArgs {
    fn options(self, connection: &ConnectionArgs, own_database: bool) -> anyhow::Result<Options> {
        connection.refuse("this command runs its own")?;
        let Self { scheduler, telemetry, replace_secrets } = self;
        Ok(Options { own_database, replace_secrets, otlp: telemetry.otlp, ..scheduler.options(connection) })
    }
}
