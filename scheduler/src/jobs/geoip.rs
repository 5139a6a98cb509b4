//! Looks up the position of an address in a file in the MaxMind DB format.
//!
//! The file is read completely when the scheduler starts. It is rejected if it is too large, is in
//! another format, or contains no positions. If only the record of a site is invalid, the site gets
//! no position.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, ensure};
use maxminddb::{Reader, WithinOptions, path};

use crate::model::geo::Position;

/// Maximum size of the file in bytes: twice the size of the largest commercial database.
const MOST_BYTES: u64 = 1 << 30;
/// Number of records at the start of the file that are searched for a position. A file without
/// positions, such as one that contains only countries or carriers, is rejected.
const LOOKED_AT: usize = 10_000;

#[derive(Debug)]
pub struct GeoIp {
    reader: Reader<Vec<u8>>,
}

impl GeoIp {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let read = || format!("read the GeoIP file {shown}");
        let bytes = fs::metadata(path).with_context(read)?.len();
        ensure!(bytes <= MOST_BYTES, "{shown} has {bytes} bytes, the limit is {MOST_BYTES}");
        let reader = Reader::from_source(fs::read(path).with_context(read)?);
        let reader = reader.with_context(|| format!("{shown} is not in the format MaxMind DB (.mmdb)"))?;
        let geoip = Self { reader };
        let kind: String = geoip.reader.metadata().database_type.escape_debug().take(100).collect();
        ensure!(geoip.knows_positions(), "{shown} ({kind}) has no latitude and longitude: use a city database");
        Ok(geoip)
    }

    fn knows_positions(&self) -> bool {
        let Ok(networks) = self.reader.networks(WithinOptions::default()) else { return false };
        networks.take(LOOKED_AT).flatten().any(|found| {
            let latitude = found.decode_path::<f64>(&path!["location", "latitude"]);
            latitude.is_ok_and(|latitude| latitude.is_some())
        })
    }

    /// The position of an address; `None` if the file has no valid position for it.
    pub fn position(&self, address: IpAddr) -> Option<Position> {
        let found = self.reader.lookup(address.to_canonical()).ok()?;
        let degrees = |path: &[maxminddb::PathElement<'_>]| found.decode_path::<f64>(path).ok().flatten();
        let (latitude, longitude) =
            (degrees(&path!["location", "latitude"])?, degrees(&path!["location", "longitude"])?);
        Position::try_new(latitude, longitude).ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A value in the MaxMind DB format: a text, a 64-bit float, an integer of 16, 32 or 64 bits, a
    /// map, or an empty list.
    pub(crate) enum Field {
        Text(&'static str),
        Double(f64),
        Short(u16),
        Long(u32),
        Wide(u64),
        Map(Vec<(&'static str, Field)>),
        Nothing,
    }

    impl Field {
        fn write(&self, into: &mut Vec<u8>) {
            let control = |kind: u8, size: usize| kind << 5 | u8::try_from(size).unwrap();
            match self {
                Self::Text(text) => {
                    into.push(control(2, text.len()));
                    into.extend(text.as_bytes());
                }
                Self::Double(number) => {
                    into.push(control(3, 8));
                    into.extend(number.to_be_bytes());
                }
                Self::Short(number) => {
                    into.push(control(5, 2));
                    into.extend(number.to_be_bytes());
                }
                Self::Long(number) => {
                    into.push(control(6, 4));
                    into.extend(number.to_be_bytes());
                }
                // An extended type is encoded as its number minus seven in a second byte.
                Self::Wide(number) => {
                    into.extend([control(0, 8), 2]);
                    into.extend(number.to_be_bytes());
                }
                Self::Nothing => into.extend([0, 4]),
                Self::Map(fields) => {
                    into.push(control(7, fields.len()));
                    for (name, value) in fields {
                        Self::Text(name).write(into);
                        value.write(into);
                    }
                }
            }
        }
    }

    /// A file with one record for all IPv4 addresses below 128.0.0.0, and no record for other
    /// addresses.
    pub(crate) fn file(record: &Field) -> Vec<u8> {
        // The tree has one node. Its left record points to the data, which begin after 16 bytes.
        // Its right record equals the number of nodes, which means that there are no data.
        let mut bytes = vec![0, 0, 17, 0, 0, 1];
        bytes.extend([0; 16]);
        record.write(&mut bytes);
        bytes.extend(b"\xab\xcd\xefMaxMind.com");
        let metadata = Field::Map(vec![
            ("binary_format_major_version", Field::Short(2)),
            ("binary_format_minor_version", Field::Short(0)),
            ("build_epoch", Field::Wide(1)),
            ("database_type", Field::Text("Test")),
            ("description", Field::Map(Vec::new())),
            ("ip_version", Field::Short(4)),
            ("languages", Field::Nothing),
            ("node_count", Field::Long(1)),
            ("record_size", Field::Short(24)),
        ]);
        metadata.write(&mut bytes);
        bytes
    }

    pub(crate) fn at(latitude: f64, longitude: f64) -> Field {
        let location = vec![("latitude", Field::Double(latitude)), ("longitude", Field::Double(longitude))];
        Field::Map(vec![("location", Field::Map(location))])
    }

    pub(crate) fn opened(bytes: &[u8]) -> Result<GeoIp, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        GeoIp::open(file.path()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn an_address_is_where_the_file_says() {
        let geoip = opened(&file(&at(45.75, -126.5))).unwrap();
        let place = Position::try_new(45.75, -126.5).unwrap();
        assert_eq!(geoip.position([10, 1, 2, 3].into()), Some(place));
        assert_eq!(geoip.position("::ffff:10.1.2.3".parse().unwrap()), Some(place));
        assert_eq!(geoip.position([200, 1, 2, 3].into()), None);
        assert_eq!(geoip.position("2001:db8::1".parse().unwrap()), None);
        assert_eq!(opened(&file(&at(450.0, 0.0))).unwrap().position([10, 1, 2, 3].into()), None, "not on the globe");
    }

    #[test]
    fn a_file_that_cannot_help_is_refused_by_name() {
        let missing = GeoIp::open(Path::new("/nowhere/cities.mmdb")).unwrap_err().to_string();
        assert_eq!(missing, "read the GeoIP file /nowhere/cities.mmdb");
        let whole = file(&at(1.0, 2.0));
        for cut in [0, 5, whole.len() / 2] {
            let error = opened(&whole[..cut]).unwrap_err();
            assert!(error.contains("is not in the format MaxMind DB"), "{error}");
        }
        let country = Field::Map(vec![("country", Field::Text("CN"))]);
        let error = opened(&file(&country)).unwrap_err();
        assert!(error.ends_with("(Test) has no latitude and longitude: use a city database"), "{error}");
    }
}
