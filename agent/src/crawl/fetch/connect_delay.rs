//! Delays a crawl's new connection by a few milliseconds. The previous connection is usually free
//! before the delay ends, and the new connection is then not made.
//!
//! The HTTP library returns a connection to its pool only after a background task of the library
//! has seen the end of the last body. A request that is sent earlier finds no free connection, so
//! the request starts a new connection, and uses the new or the previous connection, whichever is
//! ready first. The pool completes the new connection in any case, which wastes a handshake, and
//! the new connection replaces the previous one in the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tower::{BoxError, Layer, Service};

/// The delay of a new connection. The pool gets a connection back within a tenth of a millisecond,
/// or a few tenths on a busy machine. If a site closes its connections, or a crawl moves from http
/// to https, a request waits for the whole delay. The delay is short compared with a handshake,
/// except for sites a few milliseconds away.
const CONNECT_DELAY: Duration = Duration::from_millis(5);

/// Makes the connector delay new connections once the crawl has received its first response.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectDelay {
    pub(super) answered: Arc<AtomicBool>,
}

impl<S> Layer<S> for ConnectDelay {
    type Service = DelayedConnector<S>;

    fn layer(&self, connector: S) -> DelayedConnector<S> {
        DelayedConnector { connector, answered: Arc::clone(&self.answered) }
    }
}

#[derive(Debug, Clone)]
pub(super) struct DelayedConnector<S> {
    connector: S,
    answered: Arc<AtomicBool>,
}

impl<S, R> Service<R> for DelayedConnector<S>
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
                // The pool completes an abandoned connection in another tokio task, whereas a crawl
                // stays in one tokio task. So if the task id has changed, the crawl uses the
                // previous connection and no longer needs the new one.
                let task = tokio::task::try_id();
                tokio::time::sleep(CONNECT_DELAY).await;
                if tokio::task::try_id() != task {
                    return Err("the connection before was free".into());
                }
            }
            connector.call(request).await
        }
        .boxed()
    }
}
