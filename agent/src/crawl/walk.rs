//! Visits the pages of a site in breadth-first order: sends requests, follows redirects, receives
//! pages and queues their links.

pub(super) use visit_pages::Walk;

mod end_of_crawl;
mod fetch_sitemaps;
mod queue_links;
mod read_while_waiting;
pub(super) mod receive_page;
pub(super) mod redirects;
mod renew_robots;
mod request_page;
mod unread_page;
mod visit_pages;
