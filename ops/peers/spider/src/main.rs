//! Crawls one site with the library `spider` as its documentation shows: with default settings, and
//! discarding pages. Prints the number of pages.

use spider::tokio;
use spider::website::Website;

#[tokio::main]
async fn main() {
    let Some(url) = std::env::args().nth(1) else {
        eprintln!("usage: peer-spider URL");
        std::process::exit(2);
    };
    let mut website = Website::new(&url);
    website.crawl().await;
    println!("{} pages", website.get_size().await);
}
