//! What programs read stays as it is: `printed.txt` has the JSON and CSV of each answer, once with every field set and once with none.
//!
//! `UPDATE_PRINTED=1` writes it anew, where a name is added.

use std::fmt::Write;
use std::path::Path;

use landfall_proto::v1;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, Duration, FieldDescriptorProto, Timestamp};
use serde::Serialize;

use super::output;
use super::{agent, agents, batches, election, embedding, enrol, explain, reports, sites, tasks, throughput};

/// Answers with every field set, made by the contract.
struct Contract(Vec<DescriptorProto>);

impl Contract {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
        let files = ["embeddings", "events", "reports"].map(|name| format!("landfall/v1/{name}.proto"));
        let set = protox::compile(files, [root]).unwrap();
        let ours = set.file.into_iter().filter(|file| file.package() == "landfall.v1");
        Self(ours.flat_map(|file| file.message_type).collect())
    }

    fn filled<M: Message + Default>(&self) -> M {
        let name = std::any::type_name::<M>().rsplit("::").next().unwrap();
        M::decode(self.bytes(name).as_slice()).unwrap()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in &self.0.iter().find(|message| message.name() == name).unwrap().field {
            self.write(field, &mut bytes);
        }
        bytes
    }

    fn write(&self, field: &FieldDescriptorProto, bytes: &mut Vec<u8>) {
        let number = field.number().unsigned_abs();
        let mut write = |wire, value: &[u8]| {
            encode_key(number, wire, bytes);
            if wire == WireType::LengthDelimited {
                encode_varint(value.len() as u64, bytes);
            }
            bytes.extend_from_slice(value);
        };
        let message = match field.type_name() {
            ".google.protobuf.Timestamp" => {
                Timestamp { seconds: 1_700_000_000 + i64::from(number), nanos: 987_654_321 }.encode_to_vec()
            }
            ".google.protobuf.Duration" => Duration { seconds: i64::from(number), nanos: 234_567_890 }.encode_to_vec(),
            named => named.rsplit('.').next().unwrap_or_default().into(),
        };
        match field.r#type() {
            Type::Double => write(WireType::SixtyFourBit, &(f64::from(number) + 0.123_456).to_le_bytes()),
            Type::String => write(WireType::LengthDelimited, format!("a {}", field.name()).as_bytes()),
            Type::Message if field.type_name().starts_with(".google") => write(WireType::LengthDelimited, &message),
            Type::Message => {
                let nested = self.bytes(std::str::from_utf8(&message).unwrap());
                write(WireType::LengthDelimited, &nested);
            }
            Type::Bool => write(WireType::Varint, &[1]),
            Type::Enum => write(WireType::Varint, &[2]),
            _ => write(WireType::Varint, &[u8::try_from(number).unwrap()]),
        }
    }
}

struct Printed {
    contract: Contract,
    text: String,
}

impl Printed {
    fn shown<M: Message + Default, T: Serialize>(&mut self, name: &str, show: impl Fn(M) -> T) {
        for message in [self.contract.filled(), M::default()] {
            let json = serde_json::to_string(&show(message)).unwrap();
            writeln!(self.text, "{name}: {json}").unwrap();
        }
    }

    fn rows<M: Message + Default, R: output::Printed>(&mut self, name: &str, show: impl Fn(M) -> R) {
        let csv = output::csv_text(&[show(self.contract.filled()), show(M::default())], true).unwrap();
        assert!(csv.starts_with(&output::csv_text::<R>(&[], true).unwrap()));
        write!(self.text, "{name}, CSV:\n{csv}").unwrap();
        self.shown(name, show);
    }

    /// Every word of an enum, in the field of an answer.
    fn words<T: Serialize>(&mut self, field: &str, show: impl Fn(i32) -> T) {
        let words = (0..20).map(|value| serde_json::to_value(show(value)).unwrap()[field].to_string());
        writeln!(self.text, "{field}: {}", words.collect::<Vec<_>>().join(", ")).unwrap();
    }
}

#[test]
fn what_programs_read_stays_as_it_is() {
    let mut printed = Printed { contract: Contract::read(), text: String::new() };
    printed.rows("agents list", agents::known);
    printed.rows("agents tokens", |token: v1::Enrolment| token);
    printed.rows("agents enrol", |made| enrol::EnrolmentRow::from(&enrol::Enrolment::new(made, "http://a")));
    printed.shown("agents enrol", |made| enrol::Enrolment::new(made, "http://a"));
    printed.shown("agents show", |shown| agent::Shown::new(shown, Vec::new()));
    printed.shown("agents reach", |way: v1::Way| way);
    printed.shown("contact show", |shown: v1::ShowContactUrlResponse| shown);
    printed.rows("landmarks list", |landmark: v1::Landmark| landmark);
    printed.shown("landmarks elect", |explanation| election::Election { landmarks: Vec::new(), explanation });
    printed.rows("embedding history", |epoch: v1::Epoch| epoch);
    printed.rows("embedding show", |residual: v1::Residual| residual);
    printed.shown("embedding show", |mut shown: v1::ShowEmbeddingResponse| {
        shown.epoch.get_or_insert_default();
        shown
    });
    printed.shown("embedding export", embedding::Export::of);
    printed.rows("batches list", |batch: v1::Batch| batch);
    printed.shown("batches show", |mut shown: v1::ShowBatchResponse| {
        // What fills them is out of their bounds.
        (shown.policy, shown.constraints) = (None, None);
        batches::Shown::try_from(shown).unwrap()
    });
    printed.rows("sites list", |row: v1::AssignmentRow| tasks::SiteRow::from(row));
    printed.rows("sites alarms", |alarm: v1::Alarm| alarm);
    printed.shown("sites show", |site: v1::ShowSiteResponse| sites::Site::from(site));
    printed.shown("explain", |explained: v1::ExplainResponse| explain::Explained::from(explained));
    printed.shown("events", |event: v1::Event| event);
    printed.shown("plan", |plan: v1::PlanResponse| plan);
    printed.rows("report assignments", |row: v1::AssignmentRow| reports::AssignmentRow::from(row));
    printed.rows("report agents", |row: v1::AgentRow| row);
    printed.rows("report throughput", |slice: v1::GrowthSlice| slice);
    printed.rows("report throughput --by agent", |row: v1::AgentThroughput| row);
    printed.rows("report throughput --by strategy", |row: v1::StrategyThroughput| row);
    printed.shown("report throughput", |answer| throughput::Shown::of("autumn".into(), Some(2), answer));
    printed.words("service", |service| v1::Agent { service, ..Default::default() });
    printed.words("state", |state| v1::Enrolment { state, ..Default::default() });
    printed.words("state", |state| v1::Way { state, ..Default::default() });
    printed.words("cause", |reason| {
        let failure = Some(v1::MeasurementFailure { reason, ..Default::default() });
        v1::Way { failure, ..Default::default() }
    });
    printed.words("reason_kind", |reason_kind| {
        tasks::SiteRow::from(v1::AssignmentRow { reason_kind, ..Default::default() })
    });
    printed.words("wait_cause", |cause| {
        let wait = Some(v1::Wait { cause, ..Default::default() });
        tasks::SiteRow::from(v1::AssignmentRow { wait, ..Default::default() })
    });

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/printed.txt");
    if std::env::var_os("UPDATE_PRINTED").is_some() {
        std::fs::write(&path, &printed.text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (number, (line, expected)) in printed.text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(line, expected, "line {} of printed.txt", number + 1);
    }
    assert_eq!(printed.text, expected);
}
