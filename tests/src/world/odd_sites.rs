//! Misbehaving sites. Each site is a server with its own address and request log. The servers use
//! plain sockets, because HTTP libraries do not permit such misbehaviour.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::world::site_servers::{accept_all, listen};

/// Time between two pieces of 256 bytes from an [`Oddity::TarPit`]. After ten seconds, agents abort
/// a body that arrives at less than 1,024 bytes per second. At 2,560 bytes per second, agents abort
/// a body only after thirty seconds, their time limit for a response.
const DRIP: Duration = Duration::from_millis(100);
const DROP: [u8; 256] = [b'x'; 256];
/// Number of links at the beginning of each page of an [`Oddity::TarPit`]. When an agent aborts a
/// page, its crawl continues with another page, so the crawl takes ten minutes.
const PIT_PAGES: usize = 20;

/// How a site misbehaves. All odd sites respond normally to HEAD requests, and have no robots.txt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oddity {
    /// Pages never end, and are sent just fast enough that agents do not abort them as too slow.
    TarPit,
    /// Requests for pages get status 429 and this Retry-After, in seconds.
    TurnsAway(u32),
    /// After this number of pages, the site resets every connection that requests a page.
    Breaks(usize),
}

#[derive(Debug, Clone)]
pub struct LoggedRequest {
    pub what: String,
    pub at: Instant,
}

/// A running odd site. Dropping it stops the site.
#[derive(Debug)]
pub struct OddSite {
    address: SocketAddr,
    site: Arc<OddSiteState>,
    ended: CancellationToken,
}

#[derive(Debug)]
struct OddSiteState {
    oddity: Oddity,
    mended: AtomicBool,
    pages: AtomicUsize,
    /// Every connection appends to the log. No code holds the lock across an await.
    log: Mutex<Vec<LoggedRequest>>,
}

impl OddSite {
    /// Starts a site at `address`, on a free port.
    pub fn start(address: Ipv4Addr, oddity: Oddity) -> std::io::Result<Self> {
        let listener = listen(SocketAddr::new(address.into(), 0))?;
        let address = listener.local_addr()?;
        let (mended, pages, log) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::default());
        let (site, ended) = (Arc::new(OddSiteState { oddity, mended, pages, log }), CancellationToken::new());
        let serving = Arc::clone(&site);
        accept_all(listener, "an odd site", &TaskTracker::new(), &ended, move |stream, _| {
            let site = Arc::clone(&serving);
            async move { site.serve(stream).await }
        });
        Ok(Self { address, site, ended })
    }

    /// The name under which the site is submitted.
    pub fn name(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn mend(&self) {
        self.site.mended.store(true, Ordering::Relaxed);
    }

    pub fn asked(&self) -> Vec<LoggedRequest> {
        self.site.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for OddSite {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl OddSiteState {
    /// Responds to requests until the connection ends.
    async fn serve(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some(what) = request(&mut stream).await {
            let at = Instant::now();
            self.log.lock().unwrap_or_else(PoisonError::into_inner).push(LoggedRequest { what: what.clone(), at });
            if self.answer(&mut stream, &what).await.is_err() {
                break;
            }
        }
    }

    async fn answer(&self, stream: &mut BufReader<TcpStream>, what: &str) -> std::io::Result<()> {
        let oddity = (!self.mended.load(Ordering::Relaxed)).then_some(self.oddity);
        if !what.starts_with("GET ") {
            return send(stream, "200 OK", "").await;
        }
        if what == "GET /robots.txt" {
            return send(stream, "404 Not Found", "").await;
        }
        match oddity {
            Some(Oddity::TarPit) => drip(stream).await,
            Some(Oddity::TurnsAway(seconds)) => {
                let status = format!("429 Too Many Requests\r\nretry-after: {seconds}");
                send(stream, &status, "").await
            }
            Some(Oddity::Breaks(after)) if self.pages.fetch_add(1, Ordering::Relaxed) >= after => {
                // With zero linger, closing the connection sends a reset.
                stream.get_ref().set_zero_linger()?;
                Err(std::io::ErrorKind::ConnectionReset.into())
            }
            Some(Oddity::Breaks(after)) => {
                let count = if what == "GET /" { after * 2 } else { 1 };
                send(stream, "200 OK", &links(count)).await
            }
            None => send(stream, "200 OK", &links(3)).await,
        }
    }
}

/// Reads the head of a request. Returns the method and path; `None` if the connection has ended.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut first = String::new();
    stream.read_line(&mut first).await.ok()?;
    let mut line = String::new();
    while stream.read_line(&mut line).await.ok()? > 2 {
        line.clear();
    }
    let (what, _) = first.trim().rsplit_once(' ')?;
    Some(what.to_owned())
}

async fn send(stream: &mut BufReader<TcpStream>, status: &str, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).await?;
    stream.flush().await
}

/// Sends a page slowly until the client disconnects.
async fn drip(stream: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 1000000\r\n\r\n".to_owned();
    stream.write_all((head + &links(PIT_PAGES)).as_bytes()).await?;
    loop {
        stream.write_all(&DROP).await?;
        stream.flush().await?;
        tokio::time::sleep(DRIP).await;
    }
}

fn links(count: usize) -> String {
    (1..=count).map(|page| format!("<a href=\"/page{page}\">{page}</a>\n")).collect()
}
