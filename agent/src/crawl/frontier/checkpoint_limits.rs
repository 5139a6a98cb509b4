//! The limits of a checkpoint: its size, and what it may contain.

use super::known_paths::{FINGERPRINT, MAX_BEYOND};

pub(super) const MAX_BYTES: usize = 1 << 20;
/// Maximum bytes for the queue. The remaining bytes are for fingerprints, which do not compress.
pub(super) const MAX_QUEUE_BYTES: usize = MAX_BYTES / 4 * 3;
const _: () = assert!(MAX_BYTES / FINGERPRINT == 1 << 16);
/// Bytes reserved for the encoding around the fingerprints.
pub(super) const SLACK: usize = 4 << 10;
/// Maximum inflated size of a checkpoint: the paths, each with up to nine bytes of encoding, the
/// fingerprints and the hosts.
pub(super) const MOST_INFLATED: usize = 16 << 20;
/// Maximum bytes of the paths in the largest size class. Paths usually compress to a tenth of their
/// size.
pub(super) const RAW_QUEUE_BYTES: u64 = 8 << 20;
/// Maximum number of queued paths in a checkpoint. Without this limit, reading a small checkpoint
/// could take much memory. Each path takes about 50 bytes of memory. An empty path takes only two
/// bytes in the checkpoint, and many such paths compress to a thousandth of that size. Real queues
/// hardly ever reach the limit: a checkpoint with that many paths has room for only one and a half
/// bytes per path, and real paths need more.
pub(super) const MAX_QUEUED: u64 = 1 << 19;
/// Maximum number of fingerprints in a checkpoint. This many fingerprints would fill a checkpoint
/// completely.
pub(super) const MOST_KNOWN: u64 = 1 << 16;
/// Maximum bytes of the fingerprints of paths beyond the depth limit in a checkpoint.
pub(super) const MOST_BEYOND_SENT: usize = MAX_BEYOND / 10 * FINGERPRINT;
/// Maximum bytes of the fingerprints of paths beyond the depth limit in a received checkpoint. An
/// agent sends at most a tenth of the fingerprints that it may store, plus those found on one page.
pub(super) const MOST_BEYOND_RECEIVED: usize = 2 * MAX_BEYOND * FINGERPRINT;
/// Maximum length of a site's name: a host with scheme and port.
pub(super) const MAX_SITE_NAME_BYTES: usize = 300;
