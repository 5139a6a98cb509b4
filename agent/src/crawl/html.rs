//! Reads the links of pages and sitemaps, and brings their URLs into a normal form.

pub(super) mod links;
pub(super) mod normal_form;
pub(super) mod site_path;
pub(super) mod sitemap;
