//! Notices: schedulers wake each other by Postgres' NOTIFY and LISTEN. A notice is a hint and may
//! be lost.

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Executor as _, PgConnection};

use crate::store::Error;
use crate::store::rows::Rows;

const CHANNEL: &str = "landfall";

/// Notifies all listeners. The statement's commit does not wait for the disk, because a notice
/// stores nothing.
pub async fn notify(conn: &mut PgConnection, payload: &str) -> Result<(), Error> {
    sqlx::query!(
        r#"select set_config('synchronous_commit', 'off', false) as off, pg_notify($1, $2) as "told: ()""#,
        CHANNEL,
        payload,
    )
    .one(conn)
    .await?;
    Ok(())
}

#[derive(Debug)]
pub struct Listener(PgListener);

impl Listener {
    pub async fn connect(options: PgConnectOptions) -> Result<Self, Error> {
        let pool = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let mut listener = PgListener::connect_with(&pool.connect_with(options).await?).await?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        Ok(Self(listener))
    }

    /// Waits for the next notice; `None` if the connection is lost. Cancelling the call loses no
    /// notice.
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        Ok(self.0.try_recv().await?.map(|notice| notice.payload().to_owned()))
    }

    pub async fn ping(&mut self) -> Result<(), Error> {
        self.0.execute("").await?;
        Ok(())
    }
}
