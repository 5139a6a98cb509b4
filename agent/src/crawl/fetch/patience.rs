//! Waits a moment before a crawl makes another connection, since the one it had is about to be free.
//!
//! The library's pool has a connection back once a task of the library has seen the end of the last body. A request that follows at
//! once may come before that: then a second connection is begun while the first one is waited for, whichever comes first is taken,
//! and the second is finished in any case, a handshake for nothing, and takes the first one's place in the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tower::{BoxError, Layer, Service};

/// How long. The pool has a connection back within a tenth of a millisecond, or some when the machine is busy. Where a site closes its
/// connections, or a crawl goes on at the site's other origin (from http to https), a request is late by this: a small part of the
/// handshake that it then needs, but at sites a few milliseconds away.
const PATIENCE: Duration = Duration::from_millis(5);

/// Makes a crawl's connector wait once the crawl has had an answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience {
    pub(super) answered: Arc<AtomicBool>,
}

impl<S> Layer<S> for Patience {
    type Service = Patient<S>;

    fn layer(&self, connector: S) -> Patient<S> {
        Patient { connector, answered: Arc::clone(&self.answered) }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Patient<S> {
    connector: S,
    answered: Arc<AtomicBool>,
}

impl<S, R> Service<R> for Patient<S>
where
    S: Service<R, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let unready = self.connector.clone();
        let mut connector = std::mem::replace(&mut self.connector, unready);
        let waits = self.answered.load(Ordering::Relaxed);
        async move {
            if waits {
                // The pool finishes a connection that nobody waits for any more in a task of its own. A crawl stays in one task.
                let asker = tokio::task::try_id();
                tokio::time::sleep(PATIENCE).await;
                if tokio::task::try_id() != asker {
                    return Err("the connection before was free".into());
                }
            }
            connector.call(request).await
        }
        .boxed()
    }
}
