//! Reaches the operator's own Postgres server, and says why it cannot be reached.

use anyhow::bail;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};

use crate::app::exit::usage;

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
}
