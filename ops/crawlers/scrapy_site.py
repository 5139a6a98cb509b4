"""Crawls one leased site with Scrapy 2.13 or newer.

Use it with `landfall-agent run --exec 'python3 scrapy_site.py'`. Copy it and change what you need.
"""

import hashlib
import json
import os
from pathlib import Path
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor
from scrapy.resolver import dnscache
from scrapy.spiders import CrawlSpider, Rule


def given(name):
    return os.environ[f"LANDFALL_{name}"]


class Site(CrawlSpider):
    name = "site"
    url = given("URL")
    allowed_domains = [urlsplit(url).hostname]
    # To Scrapy, DEPTH_LIMIT 0 means no limit.
    rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)] if int(given("MAX_DEPTH")) else []
    pages = 0
    bytes = 0

    async def start(self):
        # Scrapy's own start request does not count as seen, so a link to the start page would fetch
        # it again.
        yield Request(self.url)

    def parse_start_url(self, response):
        return self.parse_page(response)

    def parse_page(self, response):
        Site.pages += 1
        Site.bytes += len(response.body)
        # A file's name is a hash of the URL, because the site must not choose the names of files.
        Path(hashlib.sha256(response.url.encode()).hexdigest()[:32]).write_bytes(response.body)


# Connects to the address for which the scheduler gave a permit.
dnscache[given("HOST")] = given("ADDRESS")
process = CrawlerProcess(
    {
        "CLOSESPIDER_PAGECOUNT": int(given("MAX_PAGES")),
        "CLOSESPIDER_TIMEOUT": int(given("MAX_SECONDS")),
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "DEPTH_LIMIT": int(given("MAX_DEPTH")),
        "DOWNLOAD_BIND_ADDRESS": os.environ.get("LANDFALL_BIND"),
        "DOWNLOAD_DELAY": float(given("REQUEST_INTERVAL_SECONDS")),
        "LOG_LEVEL": "WARNING",
        "RANDOMIZE_DOWNLOAD_DELAY": False,
        "RETRY_ENABLED": False,
        "ROBOTSTXT_OBEY": True,
        "TELNETCONSOLE_ENABLED": False,
        "USER_AGENT": given("USER_AGENT"),
    }
)
crawler = process.create_crawler(Site)
process.crawl(crawler)
process.start()


def failed(prefix):
    counts = crawler.stats.get_stats().items()
    return sum(count for name, count in counts if name.startswith((f"{prefix}/4", f"{prefix}/5")))


robots = failed("robotstxt/response_status_count")
# Scrapy raises this exception, and sends no request, for links to other hosts and to paths that
# robots.txt forbids.
ignored = crawler.stats.get_value("downloader/exception_type_count/scrapy.exceptions.IgnoreRequest", 0)
exceptions = crawler.stats.get_value("downloader/exception_count", 0) - ignored
failures = failed("downloader/response_status_count") - robots + exceptions
Path(given("STATISTICS")).write_text(json.dumps({"pages": Site.pages, "bytes": Site.bytes, "failures": failures}))
