//! A site on loopback that speaks bytes, not HTTP: it may say anything, for ever, and counts what it was let say.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// One thing a server does with a request.
#[derive(Clone)]
pub(super) enum Act {
    Say(Vec<u8>),
    /// Says this again and again, until nobody listens.
    Endless(Vec<u8>),
    /// Says this again and again, with pauses.
    Drip(Duration, Vec<u8>),
    /// Says nothing for so long.
    Pause(Duration),
    /// Waits until nobody is there any more.
    Wait,
    /// Ends the connection by a reset.
    Reset,
    /// Ends the connection.
    Close,
}

pub(super) fn say(text: &str) -> Act {
    Act::Say(text.as_bytes().to_vec())
}

/// A whole answer: HTML of a given length.
pub(super) fn whole(body: &str) -> Vec<Act> {
    vec![say(&format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{body}", body.len()))]
}

pub(super) fn missing() -> Vec<Act> {
    vec![say("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")]
}

/// A running site; it ends with the test.
pub(super) struct RawSite {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    said: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl RawSite {
    pub(super) async fn start(answer: impl Fn(&str) -> Vec<Act> + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), answer).await.unwrap()
    }

    pub(super) async fn start_at(
        addr: SocketAddr,
        answer: impl Fn(&str) -> Vec<Act> + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let site = Self {
            addr: listener.local_addr()?,
            connections: Arc::default(),
            said: Arc::default(),
            heads: Arc::default(),
        };
        let (connections, said) = (Arc::clone(&site.connections), Arc::clone(&site.said));
        let (heads, answer) = (Arc::clone(&site.heads), Arc::new(answer));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let (said, heads, answer) = (Arc::clone(&said), Arc::clone(&heads), Arc::clone(&answer));
                // How a connection ends is the client's affair.
                tokio::spawn(async move { drop(serve(stream, &said, &heads, &*answer).await) });
            }
        });
        Ok(site)
    }

    pub(super) fn origin(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(super) fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Connections that were accepted.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Bytes that were said.
    pub(super) fn said(&self) -> usize {
        self.said.load(Ordering::SeqCst)
    }

    /// The request lines and headers that came.
    pub(super) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    said: &AtomicUsize,
    heads: &Mutex<Vec<String>>,
    answer: &(dyn Fn(&str) -> Vec<Act> + Send + Sync),
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        heads.lock().unwrap().push(head);
        for act in answer(&path) {
            let mut tell = async |text: &[u8]| -> std::io::Result<()> {
                stream.write_all(text).await?;
                said.fetch_add(text.len(), Ordering::SeqCst);
                Ok(())
            };
            match act {
                Act::Say(text) => tell(&text).await?,
                Act::Endless(text) => loop {
                    tell(&text).await?;
                },
                Act::Drip(pause, text) => loop {
                    tell(&text).await?;
                    tokio::time::sleep(pause).await;
                },
                Act::Pause(pause) => tokio::time::sleep(pause).await,
                Act::Wait => {
                    // Whatever comes next, it is the end.
                    stream.read_u8().await?;
                }
                Act::Reset => {
                    stream.set_zero_linger()?;
                    return Ok(());
                }
                Act::Close => return Ok(()),
            }
        }
    }
}
