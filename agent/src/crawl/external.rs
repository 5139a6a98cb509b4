//! Crawls a site with another program, such as wget2 or Scrapy, instead of with [`crate::crawl`].
//!
//! The agent finds the site's origin and waits until the scheduler permits requests to the site's
//! address. Then the agent runs the operator's command once per lease, with the details of the
//! crawl in environment variables. The agent limits the command's running time. When the lease
//! ends, the agent stops the program and all its processes. The agent makes the outcome from the
//! program's exit status and statistics. The program itself, not the agent, must keep to the
//! request interval. A crawl cannot resume: each lease starts it from the beginning.

pub use command::ExternalCrawler;

mod command;
mod outcome;
mod output_log;
mod processes;
#[cfg(test)]
mod tests;
