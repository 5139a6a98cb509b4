//! Refuses requests while the database is silent, those under way too.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::Service;

use super::status;
use crate::wake::Wakes;

/// A server that refuses where the one within would wait for a silent database.
#[derive(Debug, Clone)]
pub(super) struct Away<S> {
    within: S,
    wakes: Arc<Wakes>,
}

impl<S> Away<S> {
    pub(super) fn new(within: S, wakes: Arc<Wakes>) -> Self {
        Self { within, wakes }
    }
}

impl<S, B> Service<Request<B>> for Away<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.within.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (answering, wakes) = (self.within.call(request), Arc::clone(&self.wakes));
        Box::pin(async move {
            let answered = wakes.database.while_it_answers(answering).await;
            answered.unwrap_or_else(|| Ok(status::away().into_http()))
        })
    }
}
