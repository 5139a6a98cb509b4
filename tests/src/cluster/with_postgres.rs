//! `lab with-postgres -- CMD...`: runs a command with `DATABASE_URL` set to a private Postgres of its own, which
//! writes nothing through to the disk.

use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

use anyhow::Context;
use landfall_scheduler::app::postgres::PrivatePostgres;
use landfall_scheduler::store::MIGRATOR;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::process::Command;

use crate::cluster::database::url;
use crate::cluster::process::interrupted;

/// What Postgres copies for each new database.
const TEMPLATE: &str = "template1";

/// Runs the command; ends with its code.
///
/// # Errors
/// When Postgres cannot be started, or the command cannot be run.
pub async fn with_postgres(words: &[String]) -> anyhow::Result<ExitCode> {
    let (program, arguments) = words.split_first().context("no command was given after --")?;
    // The private Postgres of root runs as another user, who must be able to pass.
    let directory = tempfile::Builder::new()
        .prefix("landfall-lab-")
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir_in("/tmp")
        .context("make a temporary directory")?;
    let postgres = PrivatePostgres::start_volatile(directory.path()).await?;
    prepare(postgres.options().database(TEMPLATE)).await?;
    let url = url(&postgres.options())?;
    let mut command = Command::new(program);
    command.args(arguments).env("DATABASE_URL", url).kill_on_drop(true);
    let ended = tokio::select! {
        status = command.status() => Some(status.with_context(|| format!("run {program}"))),
        // The command got the signal too, being in the same group.
        () = interrupted() => None,
    };
    postgres.stop().await?;
    let Some(status) = ended.transpose()? else { return Ok(ExitCode::from(130)) };
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Gives the schema to all databases to come: every test has one of its own, and would make it from the first migration on.
async fn prepare(template: PgConnectOptions) -> anyhow::Result<()> {
    let mut conn = PgConnection::connect_with(&template).await.context("connect to the template of new databases")?;
    MIGRATOR.run(&mut conn).await.context("give the schema to new databases")?;
    // Nothing is copied while somebody is connected.
    conn.close().await.context("leave the template of new databases")
}
