//! `lab with-postgres -- CMD...`: runs a command with `DATABASE_URL` set to a private Postgres,
//! which does not sync its writes to disk.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use landfall_scheduler::app::postgres::PrivatePostgres;
use landfall_scheduler::store::MIGRATOR;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::process::Command;

use crate::cluster::database::{accessible_folder, url};
use crate::cluster::process::interrupted;

/// The database that Postgres copies for `create database`.
const TEMPLATE: &str = "template1";

/// Arguments of `lab with-postgres`.
#[derive(Debug, Clone, Args)]
pub struct WithPostgresArgs {
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs the command and returns its exit code.
pub async fn with_postgres(args: &WithPostgresArgs) -> anyhow::Result<ExitCode> {
    let (program, arguments) = args.command.split_first().context("no command was given after --")?;
    let directory = accessible_folder("landfall-lab-")?;
    let postgres = PrivatePostgres::start_volatile(directory.path()).await?;
    prepare(postgres.options().database(TEMPLATE)).await?;
    let url = url(&postgres.options())?;
    let mut command = Command::new(program);
    command.args(arguments).env("DATABASE_URL", url).kill_on_drop(true);
    let ended = tokio::select! {
        status = command.status() => Some(status.with_context(|| format!("run {program}"))),
        // The lab does not forward SIGINT, because the command is in the same process group and
        // receives SIGINT itself.
        () = interrupted() => None,
    };
    postgres.stop().await?;
    let Some(status) = ended.transpose()? else { return Ok(ExitCode::from(130)) };
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Installs the schema in the template database, so that databases created for tests need no
/// migrations.
async fn prepare(template: PgConnectOptions) -> anyhow::Result<()> {
    let mut conn = PgConnection::connect_with(&template).await.context("connect to the template of new databases")?;
    MIGRATOR.run(&mut conn).await.context("give the schema to new databases")?;
    // Postgres does not copy a template while a connection to it is open.
    conn.close().await.context("leave the template of new databases")
}
