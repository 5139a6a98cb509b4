//! The state of a lease says whether the lease is active, and if not, how it ended.

use crate::model::words;

words!(
    LeaseState {
        /// The lease's agent may crawl the site.
        Active = "active",
        /// The outcome of the crawl was accepted.
        Completed = "completed",
        /// The agent released the lease.
        Released = "released",
        /// The lease's session ended.
        Expired = "expired",
        Revoked = "revoked",
    }
);
