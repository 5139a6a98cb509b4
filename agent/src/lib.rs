//! The Landfall agent: prober and crawler.
