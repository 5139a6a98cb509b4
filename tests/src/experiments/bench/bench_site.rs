//! `lab bench-site`: serves the sites on which crawlers are measured, in a separate process.
//!
//! Every page is generated from its number, so all runs get the same bytes. Page `n` links to `fan`
//! child pages, whose numbers begin at `fan * n + 1`, so every page is reachable. Page `n` also
//! links to pages whose numbers are hashes of `n`. The server counts the requests, because a
//! crawler's own count may be wrong.
//!
//! The server can serve many identical sites, each at its own address. The server can delay its
//! responses to emulate a round trip.
//!
//! The server reads commands from standard input, and ends when standard input is closed, so that
//! no process is left behind.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The address of the first site. No site of a scenario uses this address.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 177, 1);
/// Words from which the text of pages is drawn at random. Like ordinary pages, pages of these words
/// can be compressed to about a third of their size.
const WORDS: [&str; 48] = [
    "anchor", "ballast", "beacon", "bearing", "berth", "bilge", "boom", "bow", "buoy", "cable", "canvas", "channel",
    "chart", "cleat", "compass", "course", "current", "deck", "draught", "ebb", "fathom", "flood", "gauge", "halyard",
    "harbour", "helm", "horizon", "hull", "keel", "knot", "lantern", "lee", "log", "mast", "meridian", "mooring",
    "oar", "pilot", "quay", "reef", "rope", "rudder", "sail", "sounding", "stern", "swell", "tide", "wharf",
];
/// Maximum size of a paragraph in bytes.
const PARAGRAPH: usize = 600;

/// The parameters of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct SitePlan {
    /// Number of pages, including the start page
    #[arg(long)]
    pub pages: u64,
    /// Number of child pages of a page
    #[arg(long)]
    pub fan: u64,
    /// Number of other links on a page
    #[arg(long)]
    pub others: u64,
    /// Minimum size of a page in bytes
    #[arg(long)]
    pub bytes: usize,
}

impl SitePlan {
    pub fn path(page: u64) -> String {
        if page == 0 { "/".to_owned() } else { format!("/section-{}/page-{page:07}.html", page % 50) }
    }

    fn page(&self, path: &str) -> Option<u64> {
        if path == "/" {
            return Some(0);
        }
        let (section, name) = path.strip_prefix("/section-")?.split_once("/page-")?;
        let page: u64 = name.strip_suffix(".html")?.parse().ok()?;
        (page > 0 && page < self.pages && section.parse() == Ok(page % 50)).then_some(page)
    }

    /// The links of a page, in the order in which they appear.
    pub fn links(&self, page: u64) -> impl Iterator<Item = u64> {
        let Self { pages, fan, others, .. } = *self;
        let children = (1..=fan).map(move |child| page * fan + child).filter(move |child| *child < pages);
        // Knuth's multiplicative hash.
        let drawn = move |number: u64| (page * 31 + number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        children.chain((0..others).map(move |number| drawn(number) % pages))
    }

    pub fn body(&self, page: u64) -> String {
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Page {page}</title>\n\
             <link rel=\"stylesheet\" href=\"/style.css\">\n</head>\n<body>\n<h1>Page {page}</h1>\n<ul class=\"links\">\n"
        );
        for link in self.links(page) {
            writeln!(text, "<li><a class=\"link\" href=\"{}\">Page {link}</a></li>", Self::path(link))
                .expect("a string takes everything");
        }
        text.push_str("</ul>\n");
        let mut drawn = page;
        while text.len() + 16 < self.bytes {
            let end = self.bytes.min(text.len() + PARAGRAPH);
            text.push_str("<p>");
            while text.len() + 16 < end {
                // Knuth's MMIX generator, whose upper bits are the most random.
                drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let word = usize::try_from(drawn >> 40).expect("24 bits") % WORDS.len();
                text.push_str(WORDS[word]);
                text.push(' ');
            }
            text.push_str("</p>\n");
        }
        text.push_str("</body>\n</html>\n");
        text
    }

    fn args(&self) -> [String; 8] {
        let Self { pages, fan, others, bytes } = self;
        [
            "--pages",
            &pages.to_string(),
            "--fan",
            &fan.to_string(),
            "--others",
            &others.to_string(),
            "--bytes",
            &bytes.to_string(),
        ]
        .map(str::to_owned)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct ServedSites {
    #[command(flatten)]
    plan: SitePlan,
    /// Number of sites, 1 to 250, each at its own address
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=250))]
    sites: u8,
    /// Delay of an answer in milliseconds
    #[arg(long, default_value_t = 0)]
    late_ms: u64,
}

impl ServedSites {
    pub(super) const fn one(plan: SitePlan) -> Self {
        Self { plan, sites: 1, late_ms: 0 }
    }

    pub(super) const fn many(plan: SitePlan, sites: u8, late_ms: u64) -> Self {
        Self { plan, sites, late_ms }
    }
}

pub(super) fn addresses(sites: u8) -> impl Iterator<Item = Ipv4Addr> {
    let [a, b, c, first] = FIRST.octets();
    (0..sites).map(move |site| Ipv4Addr::new(a, b, c, first.saturating_add(site)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestCounts {
    /// Number of different requested pages.
    pub(super) pages: u64,
    /// Number of all requests, including those for robots.txt and for missing pages.
    pub(super) requests: u64,
}

pub(super) struct Server {
    /// The URL of the first site's start page.
    pub(super) url: String,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Server {
    pub(super) async fn start(served: &ServedSites) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("find the lab's own executable")?;
        let mut command = Command::new(own);
        let ServedSites { plan, sites, late_ms } = served;
        command.arg("bench-site").args(plan.args());
        command.args(["--sites", &sites.to_string(), "--late-ms", &late_ms.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("start the site's server")?;
        let commands = child.stdin.take().context("its standard input")?;
        let mut answers = BufReader::new(child.stdout.take().context("its standard output")?).lines();
        let url = answers.next_line().await?.context("the site's server ended")?;
        Ok(Self { url, commands, answers, _child: child })
    }

    /// The counts since the last reset.
    pub(super) async fn asked(&mut self) -> anyhow::Result<RequestCounts> {
        self.tell("asked").await
    }

    /// Resets the counts, and returns their previous values.
    pub(super) async fn reset(&mut self) -> anyhow::Result<RequestCounts> {
        self.tell("reset").await
    }

    async fn tell(&mut self, command: &str) -> anyhow::Result<RequestCounts> {
        self.commands.write_all(format!("{command}\n").as_bytes()).await.context("tell the site's server")?;
        let line = self.answers.next_line().await?.context("the site's server ended")?;
        let (pages, requests) = line.split_once(' ').context("two numbers")?;
        Ok(RequestCounts { pages: pages.parse()?, requests: requests.parse()? })
    }
}

/// Serves sites until standard input ends.
pub async fn serve(served: ServedSites) -> anyhow::Result<()> {
    let site = Arc::new(Site::new(served)?);
    // The first site gets a free port, which all other sites use too.
    let mut port = 0;
    for address in addresses(served.sites) {
        let address = SocketAddr::from((address, port));
        let listener = TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
        if port == 0 {
            port = listener.local_addr()?.port();
        }
        tokio::spawn(Arc::clone(&site).listen(listener));
    }
    println!("http://{FIRST}:{port}/");
    tokio::task::block_in_place(|| obey(&site))
}

/// Executes the commands from standard input, one per line.
fn obey(site: &Site) -> anyhow::Result<()> {
    for command in std::io::stdin().lines() {
        let RequestCounts { pages, requests } = match command?.as_str() {
            "asked" => site.asked(),
            "reset" => site.reset(),
            other => bail!("there is no command '{other}'"),
        };
        println!("{pages} {requests}");
    }
    Ok(())
}

struct Site {
    plan: SitePlan,
    late: Duration,
    /// The bodies of all pages; empty for a large site. Bodies are generated in advance, because
    /// generating a body takes longer than sending it.
    made: Vec<Bytes>,
    seen: Vec<AtomicBool>,
    pages: AtomicU64,
    requests: AtomicU64,
}

impl Site {
    /// Maximum number of pages of a site whose bodies are generated in advance.
    const FEW: u64 = 10_000;

    fn new(served: ServedSites) -> anyhow::Result<Self> {
        let ServedSites { plan, late_ms, .. } = served;
        let late = Duration::from_millis(late_ms);
        let few = if plan.pages <= Self::FEW { plan.pages } else { 0 };
        let made = (0..few).map(|page| Bytes::from(plan.body(page))).collect();
        let seen = std::iter::repeat_with(AtomicBool::default).take(usize::try_from(plan.pages)?).collect();
        Ok(Self { plan, late, made, seen, pages: AtomicU64::new(0), requests: AtomicU64::new(0) })
    }

    fn asked(&self) -> RequestCounts {
        RequestCounts { pages: self.pages.load(Ordering::Relaxed), requests: self.requests.load(Ordering::Relaxed) }
    }

    fn reset(&self) -> RequestCounts {
        let asked = self.asked();
        self.seen.iter().for_each(|seen| seen.store(false, Ordering::Relaxed));
        self.pages.store(0, Ordering::Relaxed);
        self.requests.store(0, Ordering::Relaxed);
        asked
    }

    async fn listen(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(Arc::clone(&self).connection(stream))),
                Err(error) => {
                    tracing::error!(%error, "no connection can be accepted any more");
                    return;
                }
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "nodelay was refused");
        }
        let service = service_fn(|request| {
            let response = self.respond(&request);
            let late = self.late;
            async move {
                if !late.is_zero() {
                    tokio::time::sleep(late).await;
                }
                Ok::<_, Infallible>(response)
            }
        });
        let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        if let Err(error) = served {
            tracing::debug!(%error, "a connection broke");
        }
    }

    fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path();
        let (status, content_type, body) = match self.plan.page(path) {
            Some(page) => (StatusCode::OK, "text/html; charset=utf-8", self.body(page)),
            None if path == "/robots.txt" => {
                let text = "User-agent: *\nDisallow: /private/\nDisallow: /*.php$\n";
                (StatusCode::OK, "text/plain", Bytes::from_static(text.as_bytes()))
            }
            None => (StatusCode::NOT_FOUND, "text/plain", Bytes::from_static(b"no such page\n")),
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }

    /// Returns the body of a page, and counts the request.
    fn body(&self, page: u64) -> Bytes {
        let index = usize::try_from(page).expect("as many pages as there are flags");
        if let Some(seen) = self.seen.get(index)
            && !seen.swap(true, Ordering::Relaxed)
        {
            self.pages.fetch_add(1, Ordering::Relaxed);
        }
        self.made.get(index).cloned().unwrap_or_else(|| Bytes::from(self.plan.body(page)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PLAN: SitePlan = SitePlan { pages: 333, fan: 4, others: 16, bytes: 4096 };

    #[test]
    fn every_page_is_reachable_and_found_by_its_path() {
        let (mut found, mut next) = (BTreeSet::from([0]), vec![0]);
        while let Some(page) = next.pop() {
            next.extend(PLAN.links(page).filter(|link| found.insert(*link)));
        }
        assert!(found.into_iter().eq(0..PLAN.pages));
        assert!((0..PLAN.pages).all(|page| PLAN.page(&SitePlan::path(page)) == Some(page)));
        for path in
            ["/x", "/section-1/page-0000333.html", "/section-2/page-0000001.html", "/section-0/page-0000000.html"]
        {
            assert_eq!(PLAN.page(path), None, "{path}");
        }
    }

    #[test]
    fn a_page_has_the_stated_links_and_size() {
        let body = PLAN.body(7);
        assert_eq!(body.matches("href=\"/section-").count() + body.matches("href=\"/\"").count(), 20);
        assert!((4096 - 16..4096 + 64).contains(&body.len()), "{}", body.len());
        assert_eq!(body, PLAN.body(7));
    }

    #[tokio::test]
    async fn a_server_counts_each_page_once_and_every_request() {
        let site = Arc::new(Site::new(ServedSites::one(PLAN)).unwrap());
        assert_eq!(site.body(3), site.body(3));
        site.body(5);
        assert_eq!(site.reset().pages, 2);
        assert_eq!(site.asked(), RequestCounts { pages: 0, requests: 0 });
    }
}
