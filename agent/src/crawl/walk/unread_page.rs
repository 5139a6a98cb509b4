//! A received page whose links have not been extracted yet.

use crate::crawl::html::links::{LinkExtractor, Links};

/// Maximum size in bytes of a page that is kept to be read later. Larger pages, which are few, are
/// read as they arrive. Fifty crawls keep 3 MiB, or 6 MiB including the unused capacity of growing
/// buffers.
const MOST_UNREAD: usize = 64 << 10;

/// A page that is being received, or that has been received but not read yet.
pub(in crate::crawl) struct UnreadPage {
    links: LinkExtractor,
    /// Received bytes that have not been read yet. The bytes are copied, because even a slice of
    /// one byte would keep a whole buffer of the HTTP library allocated.
    held: Vec<u8>,
    received: usize,
    /// The depth of the page's links.
    pub(super) depth: u32,
}

impl UnreadPage {
    pub(super) const fn new(links: LinkExtractor, depth: u32) -> Self {
        Self { links, held: Vec::new(), received: 0, depth }
    }

    pub(super) fn add(&mut self, piece: &[u8]) {
        self.received = self.received.saturating_add(piece.len());
        if self.received <= MOST_UNREAD {
            self.held.extend_from_slice(piece);
            return;
        }
        self.read();
        self.links.write(piece);
    }

    /// Reads the rest of the page, and returns the links of the whole page.
    pub(super) fn finish(mut self) -> Links {
        self.read();
        self.links.finish()
    }

    fn read(&mut self) {
        self.links.write(&std::mem::take(&mut self.held));
    }
}
