//! An open transaction. Its commit ends even if the caller is dropped.

use std::ops::{Deref, DerefMut};

use sqlx::{Connection as _, PgConnection, Postgres, Transaction};
use tokio::sync::OwnedSemaphorePermit;

/// An open transaction, or a savepoint in one. `'env` is what its work may borrow.
#[derive(Debug)]
pub struct Tx<'env>(Open<'env>);

#[derive(Debug)]
enum Open<'env> {
    /// On a connection of the pool.
    Pooled(Transaction<'static, Postgres>, OwnedSemaphorePermit),
    /// On the caller's connection, or in the caller's transaction.
    Lent(Transaction<'env, Postgres>),
}

impl<'env> Tx<'env> {
    /// A transaction that was begun on a connection of the pool, which it has a place for.
    pub(super) const fn pooled(tx: Transaction<'static, Postgres>, place: OwnedSemaphorePermit) -> Self {
        Self(Open::Pooled(tx, place))
    }

    /// Begins a transaction on a connection that no other caller gets. If the caller is dropped, it
    /// must drop the connection too.
    pub async fn on(conn: &'env mut PgConnection) -> Result<Self, sqlx::Error> {
        Ok(Self(Open::Lent(conn.begin().await?)))
    }

    /// Begins a savepoint in this transaction.
    pub(super) async fn savepoint(&mut self) -> Result<Tx<'_>, sqlx::Error> {
        Tx::on(self).await
    }

    pub async fn commit(self) -> Result<(), sqlx::Error> {
        match self.0 {
            Open::Pooled(tx, place) => {
                finish(async move {
                    let committed = tx.commit().await;
                    drop(place);
                    committed
                })
                .await
            }
            Open::Lent(tx) => tx.commit().await,
        }
    }

    pub(super) async fn rollback(self) -> Result<(), sqlx::Error> {
        match self.0 {
            Open::Pooled(tx, _) => tx.rollback().await,
            Open::Lent(tx) => tx.rollback().await,
        }
    }
}

impl Deref for Tx<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match &self.0 {
            Open::Pooled(tx, _) | Open::Lent(tx) => tx,
        }
    }
}

impl DerefMut for Tx<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match &mut self.0 {
            Open::Pooled(tx, _) => tx,
            Open::Lent(tx) => tx,
        }
    }
}

/// Runs work in a task of its own, so that the work ends even if the caller is dropped.
pub(super) async fn finish<T: Send + 'static>(
    work: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
) -> Result<T, sqlx::Error> {
    // The task fails only if it panics or the runtime stops.
    tokio::spawn(work).await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}
