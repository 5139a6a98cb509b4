//! Limits the rows of a list, and streams the rows of a report that is read from the database page
//! by page.

use std::future::Future;

use futures_util::{Stream, StreamExt, stream};
use sqlx::PgConnection;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::Scheduler;
use crate::store;
use crate::store::reports::hosts::HostPages;
use crate::store::reports::{AssignmentPages, AssignmentRow, hosts};

use super::convert::whole;

/// Number of rows of the first page, which is small so that output appears at once. Further pages
/// have [`PAGE`] rows.
const FIRST_PAGE: u32 = 100;
const PAGE: u32 = 4_000;

/// Returns the first `limit` rows (all if `limit` is 0) and the number of omitted rows.
pub(super) fn first<T>(mut rows: Vec<T>, limit: u64) -> (Vec<T>, u64) {
    let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let more = whole(rows.len().saturating_sub(limit));
    rows.truncate(limit);
    (rows, more)
}

/// A report that is read page by page.
pub(super) trait Pages: Send + 'static {
    type Row: Send + 'static;

    /// At most `limit` further rows; empty after the last row.
    fn next(
        &mut self,
        conn: &mut PgConnection,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Self::Row>, store::Error>> + Send;

    /// Number of rows that have not been read yet.
    fn behind(&self, conn: &mut PgConnection) -> impl Future<Output = Result<u64, store::Error>> + Send;
}

impl Pages for AssignmentPages {
    type Row = AssignmentRow;

    async fn next(&mut self, conn: &mut PgConnection, limit: u32) -> Result<Vec<AssignmentRow>, store::Error> {
        self.next(conn, limit).await
    }

    async fn behind(&self, conn: &mut PgConnection) -> Result<u64, store::Error> {
        self.behind(conn).await
    }
}

impl Pages for HostPages {
    type Row = hosts::HostRow;

    async fn next(&mut self, conn: &mut PgConnection, limit: u32) -> Result<Vec<hosts::HostRow>, store::Error> {
        self.next(conn, limit).await
    }

    async fn behind(&self, conn: &mut PgConnection) -> Result<u64, store::Error> {
        self.behind(conn).await
    }
}

/// Some rows, and the number of rows that the limit omits after them.
type Page<R> = (Vec<R>, u64);

/// The rows as messages, at most `limit`; 0 means all. `message` converts a row and the number of
/// rows that the limit omits after it, which is 0 except for the last row. At most three pages are
/// in memory: one is sent, one waits in the channel, and one is read. No database connection is
/// kept between two pages.
pub(super) fn messages<P: Pages, M: Send + 'static>(
    scheduler: Scheduler,
    pages: P,
    limit: u64,
    message: fn(P::Row, u64) -> M,
) -> impl Stream<Item = Result<M, Status>> + Send {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(error) = read(&scheduler, pages, limit, &sender).await {
            // The client may be gone, so a failure to send is ignored.
            drop(sender.send(Err(error.into())).await);
        }
    });
    // Each row becomes a message only when it is sent, so that a page is not in memory twice.
    ReceiverStream::new(receiver).flat_map(move |page: Result<Page<P::Row>, Status>| {
        let (rows, more, failed) = match page {
            Ok((rows, more)) => (rows, more, None),
            Err(status) => (Vec::new(), 0, Some(Err(status))),
        };
        let last = rows.len().saturating_sub(1);
        let messages = rows.into_iter().enumerate();
        let messages = messages.map(move |(index, row)| Ok(message(row, if index == last { more } else { 0 })));
        stream::iter(messages.chain(failed))
    })
}

async fn read<P: Pages>(
    scheduler: &Scheduler,
    mut pages: P,
    limit: u64,
    sender: &mpsc::Sender<Result<Page<P::Row>, Status>>,
) -> Result<(), store::Error> {
    let (mut size, mut left) = (FIRST_PAGE, if limit == 0 { u64::MAX } else { limit });
    loop {
        let mut conn = scheduler.pool.acquire().await?;
        let rows = pages.next(&mut conn, size.min(u32::try_from(left).unwrap_or(u32::MAX))).await?;
        left -= whole(rows.len());
        let more = if left == 0 { pages.behind(&mut conn).await? } else { 0 };
        drop(conn);
        if rows.is_empty() || sender.send(Ok((rows, more))).await.is_err() || left == 0 {
            return Ok(());
        }
        size = PAGE;
    }
}
