//! `lab with-postgres -- CMD...`: runs a command with `DATABASE_URL` set to a private Postgres of its own.

use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use landfall_scheduler::postgres::PrivatePostgres;
use sqlx::postgres::PgConnectOptions;
use tokio::process::Command;

use crate::process::interrupted;

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
    let postgres = PrivatePostgres::start(directory.path()).await?;
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

fn url(options: &PgConnectOptions) -> anyhow::Result<String> {
    let socket = options.get_socket().context("the private Postgres has no socket")?;
    let folder = socket.to_str().context("the socket's path is not text")?;
    ensure!(folder.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)), "odd path {folder}");
    let database = options.get_database().context("the private Postgres has no database")?;
    Ok(format!("postgres://{}@localhost:{}/{database}?host={folder}", options.get_username(), options.get_port()))
}
