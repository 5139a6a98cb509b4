//! What pages and sitemaps say: links, and the normal form of a URL.

pub(super) mod links;
pub(super) mod normal_form;
pub(super) mod site_path;
pub(super) mod sitemap;
