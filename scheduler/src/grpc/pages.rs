//! A report of tasks, read page by page as fast as its reader takes it: the next page is read while one is sent. No connection is held
//! meanwhile, and no more than two pages are in memory.

use futures::{Stream, StreamExt, stream};
use landfall_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::Scheduler;
use crate::store;
use crate::store::reports::{self, Key, Wanted};

use super::convert::whole;

/// Rows of the first page, that something is there at once, and of every other.
const FIRST_PAGE: u64 = 100;
const PAGE: u64 = 1_000;

/// The rows that are asked for, at most `limit`; the last says how many more there are, where that cuts them.
pub(super) fn messages(
    scheduler: Scheduler,
    wanted: Wanted,
    limit: Option<u64>,
) -> impl Stream<Item = Result<v1::AssignmentRow, Status>> + Send {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(error) = read(&scheduler, &wanted, limit, &sender).await {
            // Nobody is left to tell when the reader has gone.
            drop(sender.send(Err(error.into())).await);
        }
    });
    ReceiverStream::new(receiver).flat_map(|page: Result<Vec<v1::AssignmentRow>, Status>| {
        let rows = match page {
            Ok(rows) => rows.into_iter().map(Ok).collect(),
            Err(status) => vec![Err(status)],
        };
        stream::iter(rows)
    })
}

async fn read(
    scheduler: &Scheduler,
    wanted: &Wanted,
    limit: Option<u64>,
    sender: &mpsc::Sender<Result<Vec<v1::AssignmentRow>, Status>>,
) -> Result<(), store::Error> {
    let (mut after, mut size, mut left) = (Key::default(), FIRST_PAGE, limit.unwrap_or(u64::MAX));
    loop {
        size = size.min(left);
        let mut conn = scheduler.pool.acquire().await?;
        let rows = reports::assignments(&mut conn, wanted, after, i64::try_from(size).unwrap_or(i64::MAX)).await?;
        let read = whole(rows.len());
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.key;
        left -= read;
        let mut page: Vec<v1::AssignmentRow> = rows.into_iter().map(Into::into).collect();
        if left == 0
            && let Some(last) = page.last_mut()
        {
            last.more = reports::count_behind(&mut conn, wanted, after).await?;
        }
        drop(conn);
        if sender.send(Ok(page)).await.is_err() || read < size || left == 0 {
            return Ok(());
        }
        size = PAGE;
    }
}
