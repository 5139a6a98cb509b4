//! The sites of a plan, in flat arrays, and the reasons why a plan or a suggestion cannot be
//! computed. A million sites in eight dimensions take 110 MB.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Duration;

use crate::gnp::is_coordinate;
use crate::model::parallel::in_order;
use crate::model::{EmbeddingEpoch, SiteId, Strategy};
use crate::strategy::Work;

/// Maximum number of sites that a plan reads. With eight dimensions they need about a gigabyte of
/// memory (110 MB per million sites).
pub const MOST_SITES: u64 = 10_000_000;

/// Number of sites per part: high enough for a low overhead, and low enough that all threads end at
/// about the same time.
const PART: usize = 8_192;

/// The sites of one embedding, with coordinates and sizes.
#[derive(Debug, Clone)]
pub struct Sites {
    epoch: EmbeddingEpoch,
    dimensions: usize,
    ids: Vec<SiteId>,
    /// The concatenated coordinates of all sites.
    coordinates: Vec<f64>,
    /// The pages and bytes of each site's last crawl; `None` if unknown.
    sizes: Vec<Option<(u32, u64)>>,
    intervals_ms: Vec<u32>,
    known: usize,
    pages: u64,
    bytes: u64,
}

impl Sites {
    /// Creates an empty list for an embedding with this many dimensions.
    pub fn new(epoch: EmbeddingEpoch, dimensions: usize) -> Self {
        let (ids, coordinates, sizes, intervals_ms) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { epoch, dimensions, ids, coordinates, sizes, intervals_ms, known: 0, pages: 0, bytes: 0 }
    }

    /// Adds a site. `size` is the number of pages and bytes of its last crawl; `interval` is the
    /// request interval, if a batch set one.
    pub fn push(
        &mut self,
        site: SiteId,
        coordinate: &[f64],
        size: Option<(u32, u64)>,
        interval: Option<Duration>,
    ) -> Result<(), CapacityError> {
        if !self.has(coordinate) {
            return Err(CapacityError::Coordinate(self.dimensions));
        }
        if let Some((pages, bytes)) = size {
            self.known += 1;
            self.pages = self.pages.saturating_add(pages.into());
            self.bytes = self.bytes.saturating_add(bytes);
        }
        let interval = interval.unwrap_or(Work::default().interval);
        self.ids.push(site);
        self.coordinates.extend_from_slice(coordinate);
        self.sizes.push(size);
        self.intervals_ms.push(u32::try_from(interval.as_millis()).unwrap_or(u32::MAX));
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The epoch of the coordinates' embedding.
    pub const fn epoch(&self) -> EmbeddingEpoch {
        self.epoch
    }

    /// The number of dimensions of the embedding.
    pub(super) const fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The number of sites whose size is known from an earlier crawl.
    pub const fn known(&self) -> usize {
        self.known
    }

    /// The numbers of pages and bytes assumed for a site of unknown size: the means of the known
    /// sizes, or [`Work::default`] if no size is known.
    pub fn usual(&self) -> (u32, u64) {
        let Some(known) = u64::try_from(self.known).ok().filter(|known| *known > 0) else {
            return (Work::default().pages, Work::default().bytes);
        };
        (u32::try_from(self.pages / known).unwrap_or(u32::MAX), self.bytes / known)
    }

    pub fn id(&self, index: usize) -> Option<SiteId> {
        self.ids.get(index).copied()
    }

    /// Whether the coordinate is valid in this embedding.
    pub fn has(&self, coordinate: &[f64]) -> bool {
        is_coordinate(coordinate, self.dimensions)
    }

    const fn width(&self) -> usize {
        self.dimensions + 1
    }

    pub(super) fn coordinate(&self, index: usize) -> &[f64] {
        let from = index * self.width();
        &self.coordinates[from..from + self.width()]
    }

    pub(super) fn coordinates_of(&self, part: &Range<usize>) -> &[f64] {
        &self.coordinates[part.start * self.width()..part.end * self.width()]
    }

    pub(super) fn work(&self, index: usize, usual: (u32, u64)) -> Work {
        let (pages, bytes) = self.sizes[index].unwrap_or(usual);
        Work { pages, bytes, interval: Duration::from_millis(self.intervals_ms[index].into()) }
    }
}

/// Splits `count` items into parts, and runs `of` on each part, on several threads. Returns the
/// results in the order of the parts.
pub(super) fn in_parts<T: Send>(count: usize, threads: NonZeroUsize, of: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
    in_order(count.div_ceil(PART), threads, |part| of(part * PART..count.min((part + 1) * PART)))
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CapacityError {
    /// The strategy uses more than distances, so its choices cannot be predicted from a map.
    #[error("a plan supports random and gnp-top1 to gnp-top{most}, but not {strategy}")]
    Unforeseen {
        strategy: Strategy,
        /// The largest K of `gnp-topK` that a plan supports.
        most: usize,
    },
    #[error(
        "no agent has a place in embedding {0} yet: `landfall embedding show` lists the agents once they are measured"
    )]
    NoAgents(EmbeddingEpoch),
    #[error("no agent would remain: all agents with a place in embedding {0} are removed, and none is added")]
    NobodyLeft(EmbeddingEpoch),
    #[error(
        "no site is located yet: submit sites, and plan again when they are located (`landfall batches show` shows \
         the progress)"
    )]
    NoSites,
    /// The strategy ignores distances, so new agents at suggested locations would not help.
    #[error("random ignores distances, on which suggestions are based: use gnp-top1 or gnp-top3")]
    NothingToSuggest,
    /// The coordinate has the wrong length, is not finite, or has a negative height.
    #[error("a coordinate is not one of {0} dimensions and a height")]
    Coordinate(usize),
}
