//! The compared crawlers: their locations and command lines. `ops/peers.sh` installs the crawlers
//! that are not part of Landfall.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cluster::Binaries;

/// Makes the command line of a crawler for the site at a URL.
pub(super) type BuildCommand = fn(&CrawlerPaths, &str) -> Vec<String>;

pub(super) struct Crawler {
    pub(super) name: &'static str,
    /// The function that makes the command line, or the reason why the crawler is not available.
    pub(super) call: Result<BuildCommand, String>,
}

pub(super) struct CrawlerPaths {
    agent: PathBuf,
    spider: PathBuf,
    python: PathBuf,
    scrapy: PathBuf,
}

/// The names of the crawlers. The first two are variants of Landfall's crawler.
pub(super) const OURS: &str = "landfall-agent crawl, pages discarded";
pub(super) const OURS_WARC: &str = "landfall-agent crawl --warc";
pub(super) const SPIDER: &str = "spider (library), pages discarded";
pub(super) const WGET2: &str = "wget2, 8 threads, pages deleted";
pub(super) const SCRAPY: &str = "Scrapy, pages discarded";

impl CrawlerPaths {
    /// Finds the crawlers in the target folder.
    pub(super) fn find() -> anyhow::Result<Self> {
        let agent = Binaries::find()?.agent;
        let target = agent.ancestors().nth(2).context("binaries lie in a folder of the target folder")?;
        let peers = target.join("peers");
        let scrapy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/peers/scrapy_site.py");
        Ok(Self { agent, spider: peers.join("peer-spider"), python: peers.join("scrapy/bin/python"), scrapy })
    }

    /// All crawlers, in the order of their runs.
    pub(super) fn crawlers(&self) -> [Crawler; 5] {
        let beside =
            |path: &Path| path.exists().then_some(()).ok_or_else(|| "not installed: run ops/peers.sh".to_owned());
        let wget2 = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("wget2").exists()));
        let wget2 = wget2.then_some(()).ok_or_else(|| "not installed: run ops/peers.sh".to_owned());
        [
            Crawler { name: OURS, call: Ok(Self::ours) },
            Crawler { name: SPIDER, call: beside(&self.spider).map(|()| Self::spider as _) },
            Crawler { name: OURS_WARC, call: self.writes_warc().map(|()| Self::ours_with_warc as _) },
            Crawler { name: WGET2, call: wget2.map(|()| Self::wget2 as _) },
            Crawler { name: SCRAPY, call: beside(&self.python).map(|()| Self::scrapy as _) },
        ]
    }

    /// The command line of Landfall's crawler. The crawl does everything that a crawl for a
    /// scheduler does, but has no interval between requests.
    fn ours(&self, url: &str) -> Vec<String> {
        let agent = self.agent.display().to_string();
        let budgets = ["--max-pages", "10000", "--max-bytes", "1000000000", "--max-depth", "100"];
        let rest = ["--request-interval", "0s", "--allow-net", "127.0.0.0/8"];
        // These arguments override the configuration of any agent that is installed on this
        // machine.
        let identity = ["--contact-url", "https://lab.test/crawler", "--dir", "."];
        let args = ["--log", "warn", "crawl", url].into_iter().chain(budgets).chain(rest).chain(identity);
        std::iter::once(agent).chain(args.map(str::to_owned)).collect()
    }

    fn ours_with_warc(&self, url: &str) -> Vec<String> {
        let mut command = self.ours(url);
        command.extend(["--warc", "warc"].map(str::to_owned));
        command
    }

    fn writes_warc(&self) -> Result<(), String> {
        let help = std::process::Command::new(&self.agent).args(["crawl", "--help"]).output();
        let knows = help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--warc"));
        knows.then_some(()).ok_or_else(|| "this agent writes no WARC yet".to_owned())
    }

    fn spider(&self, url: &str) -> Vec<String> {
        vec![self.spider.display().to_string(), url.to_owned()]
    }

    fn wget2(&self, url: &str) -> Vec<String> {
        let args = ["wget2", "-q", "-r", "-l", "0", "--max-threads=8", "--delete-after", url];
        args.map(str::to_owned).to_vec()
    }

    fn scrapy(&self, url: &str) -> Vec<String> {
        let script = self.scrapy.display().to_string();
        vec![self.python.display().to_string(), script, url.to_owned()]
    }
}
