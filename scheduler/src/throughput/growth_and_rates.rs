//! Computes the progress of a batch over time, by slice of time, and converts crawled amounts to
//! rates per minute.

use std::time::Duration;

use crate::model::stats;

/// The time over which a batch's present crawl rate is averaged. In this time, even a fleet of a
/// few agents finishes several crawls.
pub const RATE_WINDOW: Duration = Duration::from_secs(300);
/// Maximum remaining time reported. Longer times make no difference to an operator's plans.
pub(super) const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
pub const BYTES_PER_MEGABYTE: f64 = 1e6;
const SECONDS_PER_MINUTE: f64 = 60.0;

/// Fractional numbers of pages and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Amount {
    pub pages: f64,
    pub bytes: f64,
}

/// The sums of a time slice. A crawl adds equal amounts to all slices between its first and its
/// last slice. Because the field `step` contains only differences between consecutive slices, a
/// crawl changes the fields of at most three slices: its first two and its last.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slice {
    /// Number of crawls that ended in the slice.
    pub ended: u64,
    /// The pages and bytes in this slice from crawls that began or ended in it.
    pub part: Amount,
    /// The pages and bytes in this slice from crawls that span the whole slice, minus the same sum
    /// for the previous slice.
    pub step: Amount,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Total {
    pub sites: u64,
    pub pages: u64,
    pub bytes: u64,
}

/// The progress at the end of a slice, and the rates in the slice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// The end of the slice, as the time since the first slice began.
    pub until: Duration,
    /// The totals at the end of the slice; pages and bytes are rounded.
    pub total: Total,
    /// Megabytes per minute in the slice.
    pub megabytes_per_minute: f64,
    /// Number of crawls that ended per minute in the slice.
    pub sites_per_minute: f64,
}

/// Computes the totals and rates of each slice. Despite rounding, totals never fall, and the last
/// slice's total equals `total`.
pub fn growth(slices: &[Slice], span: Duration, total: Total) -> Vec<Growth> {
    let width = span.as_secs_f64() / stats::count(slices.len().max(1));
    let (mut sites, mut so_far, mut spanning) = (0, Amount::default(), Amount::default());
    let mut before = Total::default();
    let last = slices.len().saturating_sub(1);
    let mut grown = Vec::with_capacity(slices.len());
    for (index, slice) in slices.iter().enumerate() {
        sites = total.sites.min(sites + slice.ended);
        spanning = Amount { pages: spanning.pages + slice.step.pages, bytes: spanning.bytes + slice.step.bytes };
        so_far.pages += slice.part.pages + spanning.pages;
        so_far.bytes += slice.part.bytes + spanning.bytes;
        let now = match index == last {
            true => total,
            false => Total {
                sites,
                pages: whole(so_far.pages).clamp(before.pages, total.pages),
                bytes: whole(so_far.bytes).clamp(before.bytes, total.bytes),
            },
        };
        grown.push(Growth {
            until: seconds(width * stats::count(index + 1)),
            total: now,
            megabytes_per_minute: megabytes_per_minute(now.bytes.saturating_sub(before.bytes), seconds(width))
                .unwrap_or(0.0),
            sites_per_minute: per_minute(count(now.sites.saturating_sub(before.sites)), seconds(width)).unwrap_or(0.0),
        });
        before = now;
    }
    grown
}

/// Rounds to the nearest integer; values out of range are clamped.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates, as is meant"
)]
fn whole(amount: f64) -> u64 {
    amount.round() as u64
}

/// Converts an amount of bytes to megabytes per minute; `None` for a time of zero.
pub fn megabytes_per_minute(bytes: u64, time: Duration) -> Option<f64> {
    per_minute(count(bytes) / BYTES_PER_MEGABYTE, time)
}

/// Converts an amount to an amount per minute; `None` for a time of zero.
pub fn per_minute(amount: f64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| amount / time.as_secs_f64() * SECONDS_PER_MINUTE)
}

/// Converts seconds to a duration of at most [`LONGEST`].
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST)
}

/// The conversion is exact up to 2^53, which no real count reaches.
pub(super) fn count(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The slices that the store would compute from crawls, each given as begin, end and bytes.
    /// Times are in seconds.
    fn sliced(crawls: &[(f64, f64, f64)], width: f64, slices: usize) -> Vec<Slice> {
        let mut made = vec![Slice::default(); slices];
        for &(begun, ended, bytes) in crawls {
            let at = |time: f64| (0..slices - 1).take_while(|index| time >= stats::count(index + 1) * width).count();
            let (first, last) = (at(begun), at(ended));
            made[last].ended += 1;
            if first == last {
                made[first].part.bytes += bytes;
                continue;
            }
            let rate = bytes / (ended - begun);
            made[first].part.bytes += rate * (stats::count(first + 1) * width - begun);
            made[last].part.bytes += rate * (ended - stats::count(last) * width);
            made[first + 1].step.bytes += rate * width;
            made[last].step.bytes -= rate * width;
        }
        made
    }

    #[test]
    fn a_long_crawl_is_no_spike() {
        let crawls = [(0.0, 100.0, 10e6), (15.0, 25.0, 2e6)];
        let total = Total { sites: 2, pages: 0, bytes: 12_000_000 };
        let grown = growth(&sliced(&crawls, 10.0, 10), secs(100), total);
        let megabytes: Vec<f64> = grown.iter().map(|slice| count(slice.total.bytes) / 1e6).collect();
        assert_eq!(megabytes, [1.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
        assert_eq!((grown[2].total.sites, grown[9].total.sites), (1, 2));
        assert!((grown[1].megabytes_per_minute - 12.0).abs() < 1e-9, "{grown:?}");
        assert_eq!((grown[9].until, grown[2].sites_per_minute), (secs(100), 6.0));
    }

    #[test]
    fn slices_of_no_length_have_no_rate() {
        let total = Total { sites: 1, pages: 1, bytes: 9 };
        let at_once = growth(&sliced(&[(0.0, 0.0, 9.0)], 0.0, 2), Duration::ZERO, total);
        assert_eq!((at_once[1].total, at_once[1].megabytes_per_minute), (total, 0.0));
    }

    proptest! {
        #[test]
        fn growth_never_falls_and_ends_at_the_total(
            crawls in prop::collection::vec((0.0..100.0f64, 0.0..60.0f64, 0.0..1e7f64), 1..40), slices in 1usize..40,
        ) {
            let span = 160.0;
            let crawls: Vec<(f64, f64, f64)> = crawls.iter().map(|&(begun, took, bytes)| (begun, begun + took, bytes.round())).collect();
            let bytes = whole(crawls.iter().map(|crawl| crawl.2).sum());
            let total = Total { sites: u64::try_from(crawls.len()).unwrap(), pages: 0, bytes };
            let width = span / stats::count(slices);
            let grown = growth(&sliced(&crawls, width, slices), secs(160), total);
            prop_assert_eq!(grown.last().unwrap().total, total);
            prop_assert!(grown.windows(2).all(|pair| pair[0].total.bytes <= pair[1].total.bytes && pair[0].total.sites <= pair[1].total.sites));
            // At each slice's end, the total equals, apart from rounding, the bytes that the crawls
            // had fetched by then.
            for (index, slice) in grown.iter().enumerate() {
                let time = width * stats::count(index + 1);
                let by_then = |&(begun, ended, bytes): &(f64, f64, f64)| match ended - begun {
                    took if took > 0.0 => bytes * ((time - begun) / took).clamp(0.0, 1.0),
                    _ => if ended <= time { bytes } else { 0.0 },
                };
                let expected: f64 = crawls.iter().map(by_then).sum();
                prop_assert!((count(slice.total.bytes) - expected).abs() < 2.0, "{} {}", slice.total.bytes, expected);
            }
        }
    }

    #[test]
    fn no_time_has_no_rate() {
        assert_eq!(megabytes_per_minute(5, Duration::ZERO), None);
        assert_eq!(megabytes_per_minute(1_000_000, Duration::from_secs(30)), Some(2.0));
    }
}
