//! Visits the pages of a site in breadth-first order: sends requests, follows redirects, receives
//! pages and queues their links.

pub(super) use visit_pages::Walk;

mod fetch_sitemaps;
pub(super) mod request_page;
pub(super) mod visit_pages;
