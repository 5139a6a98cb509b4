//! Parses the list for `landfall agents enrol --from`: CSV whose first line names the columns.

use std::collections::HashMap;

use csv::{ReaderBuilder, StringRecord, Trim};
use landfall_proto::v1::CreateEnrolmentRequest;

use crate::simulate::nodes::line_of;

/// The known columns, as error messages list them.
const KNOWN: &str = "city, carrier, country, latitude, longitude, name and tags";

#[derive(Debug, Default)]
pub(in crate::cli) struct List {
    /// The agents, each with its line number.
    pub(in crate::cli) agents: Vec<(u64, CreateEnrolmentRequest)>,
    pub(in crate::cli) rejected: Vec<Rejected>,
}

/// An invalid line, with the reason.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Rejected {
    /// Line number, counted from 1.
    pub(in crate::cli) line: u64,
    pub(in crate::cli) reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Column {
    City,
    Carrier,
    Country,
    Latitude,
    Longitude,
    Name,
    Tags,
}

impl Column {
    fn parse(name: &str) -> Result<Self, String> {
        match name.to_lowercase().as_str() {
            "city" => Ok(Self::City),
            "carrier" => Ok(Self::Carrier),
            "country" => Ok(Self::Country),
            "latitude" => Ok(Self::Latitude),
            "longitude" => Ok(Self::Longitude),
            "name" => Ok(Self::Name),
            "tags" => Ok(Self::Tags),
            _ => Err(format!("line 1: unknown column '{}': the columns are {KNOWN}", name.escape_debug())),
        }
    }
}

/// Parses a list. Cities and names are checked later, by the scheduler.
///
/// # Errors
/// If the list is not UTF-8, or its first line does not name the columns.
pub(in crate::cli) fn read(bytes: &[u8]) -> Result<List, String> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line}: the file is not UTF-8: save it as UTF-8")
    })?;
    let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(text.as_bytes());
    let columns = columns(reader.headers().map_err(|error| error.to_string())?)?;
    let mut list = List::default();
    let mut named: HashMap<String, u64> = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let line = record.position().map_or(0, |position| line_of(position, bytes));
        match agent(&columns, &record) {
            Err(reason) => list.rejected.push(Rejected { line, reason }),
            Ok(agent) => match named.get(&agent.name) {
                Some(first) if !agent.name.is_empty() => {
                    let reason = format!("the name '{}' is already used in line {first}", agent.name.escape_debug());
                    list.rejected.push(Rejected { line, reason });
                }
                _ => {
                    named.insert(agent.name.clone(), line);
                    list.agents.push((line, agent));
                }
            },
        }
    }
    Ok(list)
}

fn columns(header: &StringRecord) -> Result<Vec<Column>, String> {
    let columns = header.iter().map(Column::parse).collect::<Result<Vec<_>, _>>()?;
    for (needed, name) in [(Column::City, "city"), (Column::Carrier, "carrier")] {
        if !columns.contains(&needed) {
            return Err(format!("line 1: the column {name} is missing: the first line must name the columns, {KNOWN}"));
        }
    }
    let twice = columns.iter().enumerate().find(|(at, column)| columns[..*at].contains(column));
    match twice.and_then(|(at, _)| header.get(at)) {
        Some(name) => Err(format!("line 1: the column {name} appears twice")),
        None => Ok(columns),
    }
}

fn agent(columns: &[Column], record: &StringRecord) -> Result<CreateEnrolmentRequest, String> {
    if record.len() != columns.len() {
        return Err(format!("{} fields, but the first line names {}", record.len(), columns.len()));
    }
    let mut agent = CreateEnrolmentRequest::default();
    for (column, text) in columns.iter().zip(record) {
        match column {
            Column::City => agent.city = text.to_owned(),
            Column::Carrier => agent.carrier = text.to_owned(),
            Column::Country => agent.country = text.to_owned(),
            Column::Latitude => agent.latitude = degrees("latitude", text)?,
            Column::Longitude => agent.longitude = degrees("longitude", text)?,
            Column::Name => agent.name = text.to_owned(),
            Column::Tags => agent.tags = text.split_whitespace().map(str::to_owned).collect(),
        }
    }
    Ok(agent)
}

fn degrees(column: &str, text: &str) -> Result<Option<f64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| format!("{column}: '{}' is not a number of degrees", text.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_by_its_first_line() {
        let text = "\u{feff}City,Carrier,latitude,longitude,name,tags\r\n\r\n 北京 ,电信,39.9,116.4,,fast  spare\r\n\"Paris, Nord\",Free,,,paris,\r\n";
        let list = read(text.as_bytes()).unwrap();
        assert_eq!(list.rejected, []);
        let [(3, beijing), (4, paris)] = list.agents.as_slice() else { panic!("{list:?}") };
        assert_eq!((beijing.city.as_str(), beijing.carrier.as_str(), beijing.latitude), ("北京", "电信", Some(39.9)));
        assert_eq!(beijing.tags, ["fast", "spare"]);
        assert_eq!((paris.city.as_str(), paris.name.as_str(), paris.longitude), ("Paris, Nord", "paris", None));
    }

    #[test]
    fn every_bad_line_is_told_with_its_number() {
        let list = read(b"name,city,carrier,latitude\na,A,x,north\nb,B\nb,B,x,1\nb,C,y,2\n").unwrap();
        let told: Vec<(u64, &str)> = list.rejected.iter().map(|one| (one.line, one.reason.as_str())).collect();
        assert_eq!(
            told,
            [
                (2, "latitude: 'north' is not a number of degrees"),
                (3, "2 fields, but the first line names 4"),
                (5, "the name 'b' is already used in line 4"),
            ]
        );
        for (text, problem) in [
            (&b"town,isp\n"[..], "line 1: unknown column 'town'"),
            (b"city\nHarbin\n", "line 1: the column carrier is missing"),
            (b"city,carrier,carrier\n", "line 1: the column carrier appears twice"),
            (b"city,carrier\nA,B\n\xff\xfe,C\n", "line 3: the file is not UTF-8"),
            (b"", "line 1: "),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
