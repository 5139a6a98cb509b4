//! Pages: the number of rows in a response that lists, and the token with which the next response
//! continues. A token contains the key of the last row, so that rows which appear or vanish
//! meanwhile neither repeat nor hide others.

use landfall_proto::v1;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::convert::{InvalidField, whole};

/// Maximum number of rows in a response. A row has a few hundred bytes, and clients accept messages
/// of up to 4 MiB unless they are told otherwise.
pub(super) const MOST_ROWS: u32 = 1_000;

/// A request for a list.
pub(super) trait List: Message + Clone {
    const NAME: &'static str;

    /// Takes the fields `limit` and `page_token` from the request, which leaves its filters.
    fn take_page(&mut self) -> (u64, String);
}

macro_rules! lists {
    ($($request:ident)+) => {$(
        impl List for v1::$request {
            const NAME: &'static str = stringify!($request);

            fn take_page(&mut self) -> (u64, String) {
                (std::mem::take(&mut self.limit).into(), std::mem::take(&mut self.page_token))
            }
        }
    )+};
}

lists! {
    ListAgentsRequest ListEnrolmentsRequest ListBatchesRequest ListOpenCircuitsRequest ListEpochsRequest
    AgentsReportRequest AccuracyRequest FailuresRequest
}

/// The page that a request asks for. `K` is the key by which the list is sorted.
#[derive(Debug)]
pub(super) struct Page<K> {
    /// Maximum number of rows, 1 to [`MOST_ROWS`].
    pub(super) limit: u32,
    /// The key after which the page begins; `None` for the first page.
    pub(super) after: Option<K>,
    /// Identifies the call and its filters.
    list: Sha256,
}

impl<K: Serialize + DeserializeOwned> Page<K> {
    pub(super) fn of<L: List>(request: &L) -> Result<Self, InvalidField> {
        let mut filters = request.clone();
        let (limit, token) = filters.take_page();
        let limit = u32::try_from(limit).ok().filter(|limit| (1..MOST_ROWS).contains(limit)).unwrap_or(MOST_ROWS);
        let filters = filters.encode_to_vec();
        let list =
            Sha256::new().chain_update(L::NAME).chain_update([0]).chain_update(whole(filters.len()).to_be_bytes());
        let page = Self { limit, after: None, list: list.chain_update(filters) };
        if token.is_empty() {
            return Ok(page);
        }
        let key = token.split_once('.').filter(|(check, key)| page.check(key) == *check);
        let after = key.and_then(|(_, key)| serde_json::from_str(key).ok());
        match after {
            Some(after) => Ok(Self { after: Some(after), ..page }),
            None => {
                Err(InvalidField::new("page_token", "it is not the next_page_token of a response with these filters"))
            }
        }
    }

    /// `limit` as the type of statements' parameters.
    pub(super) fn most(&self) -> i64 {
        i64::from(self.limit)
    }

    /// `limit` as the length of a list in memory.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.limit).unwrap_or(usize::MAX)
    }

    /// The number of rows after this page, and the token of the next page. `all` is the number of
    /// rows from the beginning of this page.
    pub(super) fn rest<R>(&self, listed: &[R], all: u64, key: impl FnOnce(&R) -> K) -> (u64, String) {
        match (all.saturating_sub(whole(listed.len())), listed.last()) {
            (more @ 1.., Some(last)) => (more, self.token(&key(last))),
            (more, _) => (more, String::new()),
        }
    }

    /// Cuts a list that was read to its end. Returns what [`Self::rest`] does.
    pub(super) fn cut<R>(&self, rows: &mut Vec<R>, key: impl FnOnce(&R) -> K) -> (u64, String) {
        let all = whole(rows.len());
        rows.truncate(self.len());
        self.rest(rows, all, key)
    }

    fn token(&self, last: &K) -> String {
        // Keys consist of texts, numbers and times, which are always valid JSON.
        let key = serde_json::to_string(last).unwrap_or_default();
        format!("{}.{key}", self.check(&key))
    }

    /// The first part of a token, which differs for another call, other filters or another key.
    fn check(&self, key: &str) -> String {
        let digest = self.list.clone().chain_update(key).finalize();
        digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(page_token: &str) -> v1::ListAgentsRequest {
        v1::ListAgentsRequest { page_token: page_token.to_owned(), ..Default::default() }
    }

    #[test]
    fn a_limit_is_at_most_a_page_and_zero_means_a_page() {
        for (limit, rows) in [(0, 1_000), (1, 1), (999, 999), (1_000, 1_000), (1_001, 1_000), (u64::MAX, 1_000)] {
            let page = Page::<String>::of(&v1::ListAgentsRequest { limit, ..agents("") }).expect("valid");
            assert_eq!((page.limit, page.after), (rows, None), "{limit}");
        }
    }

    #[test]
    fn a_token_continues_only_the_list_that_gave_it() {
        let first = Page::<String>::of(&agents("")).expect("valid");
        let (more, token) = first.rest(&["a", "é\""], 5, |name| (*name).to_owned());
        assert_eq!(more, 3);
        for limit in [0, 7] {
            let next = Page::<String>::of(&v1::ListAgentsRequest { limit, ..agents(&token) }).expect("valid");
            assert_eq!(next.after.as_deref(), Some("é\""));
        }
        assert_eq!(first.rest(&["a", "b"], 2, |name| (*name).to_owned()), (0, String::new()));
        let of_report = v1::AgentsReportRequest { page_token: token.clone(), ..Default::default() };
        let refused = [
            Page::<String>::of(&of_report),
            Page::of(&v1::ListAgentsRequest { removed: true, ..agents(&token) }),
            Page::of(&v1::ListAgentsRequest { cities: vec!["Harbin".into()], ..agents(&token) }),
            Page::of(&agents(&token.replace('é', "e"))),
            Page::of(&agents(&token[..token.len() - 1])),
            Page::of(&agents("17")),
            Page::of(&agents(".")),
        ];
        for refused in refused {
            let said = refused.expect_err("refused").to_string();
            assert_eq!(said, "page_token: it is not the next_page_token of a response with these filters");
        }
        // The check is right, but the key is not one of this list.
        let foreign = Page::<i64>::of(&agents("")).expect("valid").token(&5);
        assert!(Page::<String>::of(&agents(&foreign)).is_err());
    }
}
