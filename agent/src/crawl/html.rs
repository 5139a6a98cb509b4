//! Extracts the links from pages and sitemaps, and converts their URLs to a normal form.

pub(super) mod links;
pub(super) mod site_urls;
pub(super) mod sitemap_parser;
