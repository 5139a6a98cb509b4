//! Extracts the links from pages and sitemaps, and converts their URLs to a normal form.

pub(super) mod links;
pub(super) mod normal_form;
pub(super) mod site;
pub(super) mod site_path;
pub(super) mod sitemap_parser;
