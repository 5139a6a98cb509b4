//! Lists that the scheduler sends in pages: asks for page after page.

use landfall_proto::v1;

/// A page of a list.
pub(super) trait Page: Sized {
    fn rows(&self) -> usize;
    fn next_page_token(&self) -> &str;
    /// Appends the rows of the next page, and takes over its other fields.
    fn append(&mut self, next: Self);
}

macro_rules! pages {
    ($($response:ident . $rows:ident)+) => {$(
        impl Page for v1::$response {
            fn rows(&self) -> usize {
                self.$rows.len()
            }

            fn next_page_token(&self) -> &str {
                &self.next_page_token
            }

            fn append(&mut self, mut next: Self) {
                let mut rows = std::mem::take(&mut self.$rows);
                rows.append(&mut next.$rows);
                next.$rows = rows;
                *self = next;
            }
        }
    )+};
}

pages! {
    ListAgentsResponse.agents
    ListEnrolmentsResponse.enrolments
    ListBatchesResponse.batches
    ListOpenCircuitsResponse.circuits
    ListEpochsResponse.epochs
    AgentsReportResponse.agents
    AccuracyResponse.rows
    FailuresResponse.rows
}

/// Asks until `limit` rows are there; 0 means all. `ask` gets the limit and the token of a page.
pub(super) async fn pages<P: Page>(
    limit: u64,
    ask: impl AsyncFn(u64, String) -> anyhow::Result<P>,
) -> anyhow::Result<P> {
    let mut listed = ask(limit, String::new()).await?;
    loop {
        let missing = limit.saturating_sub(u64::try_from(listed.rows()).unwrap_or(u64::MAX));
        if listed.next_page_token().is_empty() || (limit > 0 && missing == 0) {
            return Ok(listed);
        }
        let token = listed.next_page_token().to_owned();
        listed.append(ask(missing, token).await?);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Lists five epochs in pages of at most two, and notes what was asked.
    async fn listed(limit: u64) -> (Vec<i64>, u64, Vec<(u64, String)>) {
        let asked = RefCell::new(Vec::new());
        let answer = pages(limit, async |limit, token: String| {
            asked.borrow_mut().push((limit, token.clone()));
            let from: i64 = token.parse().unwrap_or(0);
            let to = (from + if limit == 1 { 1 } else { 2 }).min(5);
            let epochs = (from..to).map(|epoch| v1::Epoch { epoch, ..Default::default() }).collect();
            let next_page_token = if to < 5 { to.to_string() } else { String::new() };
            Ok(v1::ListEpochsResponse { epochs, more: u64::try_from(5 - to).unwrap(), next_page_token })
        });
        let answer = answer.await.unwrap();
        (answer.epochs.iter().map(|epoch| epoch.epoch).collect(), answer.more, asked.into_inner())
    }

    #[tokio::test]
    async fn pages_are_asked_for_until_the_limit_or_the_end() {
        let asked = |asked: &[(u64, &str)]| asked.iter().map(|(limit, token)| (*limit, (*token).to_owned())).collect();
        assert_eq!(listed(0).await, (vec![0, 1, 2, 3, 4], 0, asked(&[(0, ""), (0, "2"), (0, "4")])));
        assert_eq!(listed(3).await, (vec![0, 1, 2], 2, asked(&[(3, ""), (1, "2")])));
        assert_eq!(listed(2).await, (vec![0, 1], 3, asked(&[(2, "")])));
        assert_eq!(listed(9).await, (vec![0, 1, 2, 3, 4], 0, asked(&[(9, ""), (7, "2"), (5, "4")])));
    }
}
