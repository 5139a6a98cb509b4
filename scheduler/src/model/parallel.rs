//! Parallel work whose results are in order and do not depend on the number of threads.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs `work` for each index below `count`, on several threads. The work is started in the order
/// of the indices.
pub(crate) fn in_order<T: Send>(count: usize, threads: NonZeroUsize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    in_order_while(count, threads, |piece| Some(work(piece)))
}

/// Does the same as [`in_order`], except that a thread stops when `work` returns `None`. Other
/// threads continue.
pub(crate) fn in_order_while<T: Send>(
    count: usize,
    threads: NonZeroUsize,
    work: impl Fn(usize) -> Option<T> + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= count {
                return done;
            }
            let Some(result) = work(piece) else { return done };
            done.push((piece, result));
        }
    };
    let mut done = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.get().min(count)).map(|_| scope.spawn(worker)).collect();
        let joined = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.flatten().collect::<Vec<_>>()
    });
    done.sort_by_key(|(piece, _)| *piece);
    done.into_iter().map(|(_, result)| result).collect()
}
