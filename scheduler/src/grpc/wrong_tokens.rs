//! Delays the answers to requests with a wrong operator token from commands, programs and browsers,
//! and logs these requests.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tonic::Status;
use tonic::codegen::http::Extensions;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

use super::auth::AuthError;

/// Every answer to a wrong token is delayed by this time. If several answers wait, they are delayed
/// one after another.
const DELAY: Duration = Duration::from_secs(1);
/// Maximum number of requests with a wrong token that wait for their answers. Further such requests
/// are refused at once.
const WAITING: usize = 16;

/// The queue of delayed answers to wrong tokens.
#[derive(Debug)]
pub struct WrongTokens {
    delay: Duration,
    waiting: Semaphore,
    turn: Mutex<()>,
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self::delaying(DELAY)
    }
}

impl WrongTokens {
    pub(crate) fn delaying(delay: Duration) -> Self {
        Self { delay, waiting: Semaphore::new(WAITING), turn: Mutex::default() }
    }

    /// The answer to a request that failed the check of the operator's token. A wrong token is
    /// answered after the delay, or at once if too many answers are already waiting. The caller
    /// must not hold a database connection, because this function may wait for many seconds.
    pub(crate) async fn refuse(&self, refused: AuthError, peer: Option<SocketAddr>) -> Status {
        if !matches!(refused, AuthError::WrongOperatorToken) {
            return refused.into();
        }
        let Ok(_waits) = self.waiting.try_acquire() else {
            return Status::resource_exhausted("too many wrong operator tokens: try again later");
        };
        tracing::warn!(peer = peer.map(|peer| peer.to_string()), "a wrong operator token");
        let _turn = self.turn.lock().await;
        tokio::time::sleep(self.delay).await;
        refused.into()
    }
}

/// The client's address.
pub(crate) fn peer(extensions: &Extensions) -> Option<SocketAddr> {
    let plain = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    plain.or_else(|| extensions.get::<TlsConnectInfo<TcpConnectInfo>>()?.get_ref().remote_addr())
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn wrong_tokens_are_answered_one_by_one_and_few_may_wait() {
        let tokens = WrongTokens::delaying(Duration::from_millis(5));
        let began = tokio::time::Instant::now();
        let refused = join_all((0..WAITING + 3).map(|_| tokens.refuse(AuthError::WrongOperatorToken, None))).await;
        let wrong = refused.iter().filter(|status| status.code() == Code::Unauthenticated).count();
        let excess = refused.iter().filter(|status| status.code() == Code::ResourceExhausted).count();
        assert_eq!((wrong, excess), (WAITING, 3));
        assert!(began.elapsed() >= Duration::from_millis(5) * 16, "{:?}", began.elapsed());
        let began = tokio::time::Instant::now();
        let slow = WrongTokens::delaying(Duration::from_secs(60));
        slow.refuse(AuthError::Missing, None).await;
        assert!(began.elapsed() < Duration::from_secs(30), "only wrong tokens wait");
    }
}
