//! Reads the first and the last moment at which a certificate is valid. No other field is parsed.

use chrono::{DateTime, NaiveDateTime, Utc};

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The first and the last moment at which a certificate (DER) is valid; `None` if the bytes are not
/// a certificate.
pub(in crate::app) fn validity(certificate: &[u8]) -> Option<[DateTime<Utc>; 2]> {
    let (_, certificate, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut rest, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    if let Some((VERSION, _, after)) = element(rest) {
        rest = after;
    }
    // The serial number, the algorithm and the issuer come before the validity.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, validity, _) = element(rest).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (tag, from, until) = element(validity)?;
    let from = time(tag, from)?;
    let (tag, until, _) = element(until)?;
    Some([from, time(tag, until)?])
}

/// The last moment at which a certificate is valid.
pub(super) fn not_after(certificate: &[u8]) -> Option<DateTime<Utc>> {
    validity(certificate).map(|[_, until]| until)
}

fn time(tag: u8, text: &[u8]) -> Option<DateTime<Utc>> {
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        // In RFC 5280, two-digit years mean 1950 to 2049.
        UTC_TIME => format!("{}{text}", if text.get(..2)? < "50" { "20" } else { "19" }),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    Some(NaiveDateTime::parse_from_str(&text, "%Y%m%d%H%M%SZ").ok()?.and_utc())
}

/// Splits DER data at its first element: the tag, its content, and the bytes after the element.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*first) {
        short @ 0..0x80 => (short, rest),
        long => {
            let (bytes, rest) = rest.split_at_checked(long - 0x80)?;
            let length = bytes
                .iter()
                .try_fold(0_usize, |length, byte| length.checked_mul(0x100)?.checked_add(usize::from(*byte)))?;
            (length, rest)
        }
    };
    let (held, after) = rest.split_at_checked(length)?;
    Some((*tag, held, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(until: (i32, u8, u8)) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_validity_of_a_certificate_is_read_in_both_spellings() {
        for (until, read) in [((2027, 3, 1), "2027-03-01T00:00:00Z"), ((2051, 12, 31), "2051-12-31T00:00:00Z")] {
            // rcgen's certificates are valid from 1975 on.
            let from = "1975-01-01T00:00:00Z".parse().unwrap();
            assert_eq!(validity(&made(until)), Some([from, read.parse().unwrap()]));
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let whole = made((2027, 3, 1));
        for length in 0..whole.len() / 4 {
            assert_eq!(not_after(&whole[..length]), None);
        }
        for text in [
            &b""[..],
            b"\x30",
            b"\x30\x80",
            b"\x30\xff\xff",
            b"\x30\x88\xff\xff\xff\xff\xff\xff\xff\xff",
            b"-----BEGIN",
        ] {
            assert_eq!(not_after(text), None);
        }
    }
}
