"""Crawls one site with Scrapy's defaults, except that it obeys robots.txt. Discards the pages."""

import sys
from urllib.parse import urlsplit

from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


class Site(CrawlSpider):
    name = "site"
    start_urls = [sys.argv[1]]
    allowed_domains = [urlsplit(sys.argv[1]).hostname]
    rules = [Rule(LinkExtractor(), follow=True)]


process = CrawlerProcess({"ROBOTSTXT_OBEY": True, "LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False})
process.crawl(Site)
process.start()
