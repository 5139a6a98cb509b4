//! The gate through which every request passes. The gate refuses requests that the caller may not
//! make. The gate also refuses or aborts requests while the database does not answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use sqlx::PgPool;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Extensions, HeaderMap, Request, Response};
use tower::Service;

use super::auth::AllowedCallers;
use super::wrong_tokens::{WrongTokens, peer};
use super::{auth, errors};
use crate::Scheduler;
use crate::store;

/// The gate, with the server to which it passes requests.
#[derive(Debug, Clone)]
pub(super) struct Gate<S> {
    within: S,
    scheduler: Scheduler,
}

impl<S> Gate<S> {
    pub(super) const fn new(within: S, scheduler: Scheduler) -> Self {
        Self { within, scheduler }
    }
}

impl<S, B> Service<Request<B>> for Gate<S>
where
    S: Service<Request<B>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.within.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // `poll_ready` was called on the inner service, but not on its clone. Therefore the inner
        // service serves this request, and the clone replaces it in the gate.
        let unready = self.within.clone();
        let mut within = std::mem::replace(&mut self.within, unready);
        if auth::is_page(request.uri().path()) {
            // The dashboard checks its requests itself, and answers refused requests with pages.
            return Box::pin(async move { within.call(request).await });
        }
        let Scheduler { pool, wakes, wrong_tokens, .. } = self.scheduler.clone();
        Box::pin(async move {
            let answering = async {
                let (mut parts, body) = request.into_parts();
                match admit(&pool, &wrong_tokens, parts.uri.path(), &parts.headers, &mut parts.extensions).await {
                    Ok(()) => within.call(Request::from_parts(parts, body)).await,
                    Err(refused) => Ok(refused.into_http()),
                }
            };
            let answered = wakes.database.while_it_answers(answering).await;
            answered.unwrap_or_else(|| Ok(errors::away().into_http()))
        })
    }
}

/// Checks the caller of an rpc, and stores the caller in the request's extensions.
async fn admit(
    pool: &PgPool,
    wrong_tokens: &WrongTokens,
    path: &str,
    headers: &HeaderMap,
    extensions: &mut Extensions,
) -> Result<(), Status> {
    let callers = AllowedCallers::of(path);
    if callers == AllowedCallers::Anybody {
        return Ok(());
    }
    // The secret is parsed before any query, so that unauthenticated callers cause no database
    // work.
    let presented = auth::presented(headers)?;
    if callers == AllowedCallers::Operator {
        let known = auth::operator(&mut *store::acquire(pool).await?, presented).await;
        match known {
            Ok(operator) => drop(extensions.insert(operator)),
            Err(refused) => return Err(wrong_tokens.refuse(refused, peer(extensions)).await),
        }
    } else {
        let mut conn = store::acquire(pool).await?;
        let credential = auth::Credential(presented);
        let holder = credential.agent(&mut conn).await?;
        extensions.insert(auth::Agent { holder, credential });
    }
    Ok(())
}
