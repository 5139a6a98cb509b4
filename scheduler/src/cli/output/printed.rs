//! Tests that the output for programs stays the same, and that no line of the output for people
//! is too long.
//!
//! `printed.txt` contains the JSON and CSV of each answer, once with all fields set and once with
//! no field set. After adding a field, run the tests with `UPDATE_PRINTED=1`, which rewrites
//! `printed.txt` and the JSON schemas.

use std::fmt::Write;
use std::path::Path;

use landfall_proto::v1;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, Duration, FieldDescriptorProto, Timestamp};
use serde::Serialize;

use super::schemas::{self, Answers};
use crate::cli::agents::{list_and_show, reach, tokens};
use crate::cli::batches::show_and_policy;
use crate::cli::output::{self, Row, View};
use crate::cli::reports::{assignments_and_hosts, events, plan, throughput_and_agents};
use crate::cli::sites::{list, show_and_explain};
use crate::cli::{embedding, landmarks, status};

/// Generates messages with all fields set, from the protocol's definition.
struct Contract {
    messages: Vec<DescriptorProto>,
    /// For long messages: the number of elements of each repeated field, and the value of each text
    /// field. With `None`, repeated fields have one element, and every field has a different value.
    long: Option<(usize, &'static str)>,
    /// The number to which every enum field is set.
    value: u8,
    /// The depth at which messages are left empty; the outermost message has depth 0. With `None`,
    /// no message is left empty.
    empty_at: Option<usize>,
}

impl Contract {
    fn read(long: Option<(usize, &'static str)>) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
        let files = ["embeddings", "events", "reports", "status"].map(|name| format!("landfall/v1/{name}.proto"));
        let set = protox::compile(files, [root]).unwrap();
        let ours = set.file.into_iter().filter(|file| file.package() == "landfall.v1");
        Self { messages: ours.flat_map(|file| file.message_type).collect(), long, value: 2, empty_at: None }
    }

    fn filled<M: Message + Default>(&self) -> M {
        let name = std::any::type_name::<M>().rsplit("::").next().unwrap();
        M::decode(self.bytes(name, 0).as_slice()).unwrap()
    }

    /// Generates messages that together contain each value of every enum, and an empty message at
    /// each depth.
    fn every<M: Message + Default>(&mut self) -> Vec<M> {
        let mut messages = Vec::new();
        for value in 0..32 {
            self.value = value;
            messages.push(self.filled());
        }
        self.value = 2;
        for depth in 0..6 {
            self.empty_at = Some(depth);
            messages.push(self.filled());
        }
        self.empty_at = None;
        messages
    }

    fn bytes(&self, name: &str, depth: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.empty_at == Some(depth) {
            return bytes;
        }
        for field in &self.messages.iter().find(|message| message.name() == name).unwrap().field {
            let times = self.long.filter(|_| field.label() == Label::Repeated).map_or(1, |(times, _)| times);
            (0..times).for_each(|_| self.write(field, depth, &mut bytes));
        }
        bytes
    }

    fn write(&self, field: &FieldDescriptorProto, depth: usize, bytes: &mut Vec<u8>) {
        let number = field.number().unsigned_abs();
        let mut write = |wire, value: &[u8]| {
            encode_key(number, wire, bytes);
            if wire == WireType::LengthDelimited {
                encode_varint(value.len() as u64, bytes);
            }
            bytes.extend_from_slice(value);
        };
        let (seconds, text, double) = match self.long {
            None => (number.into(), format!("a {}", field.name()), f64::from(number) + 0.123_456),
            Some((_, text)) => (123_456, text.to_owned(), 1_234.567),
        };
        match (field.r#type(), field.type_name()) {
            (Type::Double, _) => write(WireType::SixtyFourBit, &double.to_le_bytes()),
            (Type::String, _) => write(WireType::LengthDelimited, text.as_bytes()),
            (Type::Message, ".google.protobuf.Timestamp") => {
                let time = Timestamp { seconds: 1_700_000_000 + seconds, nanos: 987_654_321 };
                write(WireType::LengthDelimited, &time.encode_to_vec());
            }
            (Type::Message, ".google.protobuf.Duration") => {
                write(WireType::LengthDelimited, &Duration { seconds, nanos: 234_567_890 }.encode_to_vec());
            }
            (Type::Message, named) => {
                write(WireType::LengthDelimited, &self.bytes(named.rsplit('.').next().unwrap(), depth + 1));
            }
            (Type::Bool, _) => write(WireType::Varint, &[1]),
            (Type::Enum, _) => write(WireType::Varint, &[self.value]),
            // 123456 as a varint, which fits fields of 32 and of 64 bits.
            _ if self.long.is_some() => write(WireType::Varint, &[0xc0, 0xc4, 0x07]),
            _ => write(WireType::Varint, &[u8::try_from(number).unwrap()]),
        }
    }
}

struct Printed {
    contract: Contract,
    text: String,
    answers: Answers,
}

impl Printed {
    fn shown<M: Message + Default, T: Serialize>(&mut self, name: &str, show: impl Fn(M) -> T) {
        for message in [self.contract.filled(), M::default()] {
            let json = serde_json::to_string(&show(message)).unwrap();
            writeln!(self.text, "{name}: {json}").unwrap();
        }
        let every = self.contract.every().into_iter().map(|message| serde_json::to_value(show(message)).unwrap());
        self.answers.set(name, every.collect());
    }

    fn rows<M: Message + Default, R: output::PrintedRow>(&mut self, name: &str, show: impl Fn(M) -> R) {
        let csv = output::formats::csv_text(&[show(self.contract.filled()), show(M::default())], true).unwrap();
        assert!(csv.starts_with(&output::formats::csv_text::<R>(&[], true).unwrap()));
        write!(self.text, "{name}, CSV:\n{csv}").unwrap();
        self.shown(name, show);
    }

    /// Adds examples to an answer: the values that `show` makes from the generated messages.
    fn also<M: Message + Default, T: Serialize>(&mut self, name: &str, show: impl Fn(M) -> T) {
        for message in self.contract.every() {
            self.answers.add(name, serde_json::to_value(show(message)).unwrap());
        }
    }

    /// Writes all words of an enum as they appear in the field of an answer.
    fn words<T: Serialize>(&mut self, field: &str, show: impl Fn(i32) -> T) {
        let words = (0..24).map(|value| serde_json::to_value(show(value)).unwrap()[field].to_string());
        writeln!(self.text, "{field}: {}", words.collect::<Vec<_>>().join(", ")).unwrap();
    }
}

#[test]
fn what_programs_read_stays_as_it_is() {
    let mut printed = Printed { contract: Contract::read(None), text: String::new(), answers: Answers::default() };
    printed.rows("agents list", list_and_show::known);
    printed.rows("agents tokens", |token: v1::Enrolment| token);
    printed.rows("agents enrol", |made| tokens::EnrolmentRow(tokens::Enrolment::new(made, "http://a")));
    printed.shown("agents enrol", |made| tokens::Enrolment::new(made, "http://a"));
    printed.shown("agents show", |shown| list_and_show::Shown::new(shown, Vec::new()));
    printed.also("agents show", |way: v1::Way| list_and_show::Shown::new(v1::ShowAgentResponse::default(), vec![way]));
    printed.shown("agents reach", |way: v1::Way| way);
    printed.shown("contact show", |shown: v1::ShowContactUrlResponse| shown);
    printed.rows("landmarks list", |landmark: v1::Landmark| landmark);
    printed.shown("landmarks elect", |explanation| landmarks::Election { landmarks: Vec::new(), explanation });
    printed.also("landmarks elect", |landmark: v1::Landmark| {
        let explanation = v1::ElectionExplanation::default();
        landmarks::Election { landmarks: vec![landmark], explanation }
    });
    printed.rows("embedding history", |epoch: v1::Epoch| epoch);
    printed.rows("embedding show", |residual: v1::Residual| residual);
    printed.shown("embedding show", |mut shown: v1::ShowEmbeddingResponse| {
        shown.epoch.get_or_insert_default();
        shown
    });
    // Before the first map, the dashboard's JSON contains no epoch.
    printed.answers.add("embedding show", serde_json::to_value(v1::ShowEmbeddingResponse::default()).unwrap());
    printed.shown("embedding export", embedding::Export::of);
    printed.rows("batches list", |batch: v1::Batch| batch);
    printed.shown("batches show", |mut shown: v1::ShowBatchResponse| {
        // The generated policy and constraints are removed, because their values are out of bounds.
        (shown.policy, shown.constraints) = (None, None);
        show_and_policy::ShownBatch::try_from(shown).unwrap()
    });
    printed.answers.add("batches show", batch_with_every_setting());
    printed.shown("status", |status: v1::ShowStatusResponse| status);
    printed.rows("sites list", list::SiteRow);
    printed.rows("sites circuits", |circuit: v1::OpenCircuit| circuit);
    printed.shown("sites show", |site: v1::ShowSiteResponse| site);
    printed.shown("explain", |explained: v1::ExplainResponse| explained);
    printed.shown("events", |event: v1::Event| event);
    printed.shown("plan", |plan: v1::PlanResponse| plan);
    printed.rows("report assignments", assignments_and_hosts::AssignmentRow);
    printed.rows("report agents", |row: v1::AgentRow| row);
    printed.rows("report throughput", |slice: v1::GrowthSlice| slice);
    printed.rows("report throughput --by agent", |row: v1::AgentThroughput| row);
    printed.rows("report throughput --by strategy", |row: v1::StrategyThroughput| row);
    printed.shown("report throughput", |answer| throughput_and_agents::Shown::of("autumn".into(), Some(2), answer));
    printed.also("report throughput", |answer| throughput_and_agents::Shown::of("autumn".into(), None, answer));
    printed.rows("report accuracy", |row: v1::AccuracyRow| row);
    printed.rows("report failures", |row: v1::FailureRow| row);
    printed.rows("report hosts", |row: v1::HostRow| row);
    printed.words("service", |service| v1::Agent { service, ..Default::default() });
    printed.words("state", |state| v1::Enrolment { state, ..Default::default() });
    printed.words("state", |state| v1::Way { state, ..Default::default() });
    printed.words("cause", |reason| {
        let failure = Some(v1::MeasurementFailure { reason, ..Default::default() });
        v1::Way { failure, ..Default::default() }
    });
    printed.words("kind", |kind| v1::Attention { kind, ..Default::default() });
    printed.words("reason_kind", |reason_kind| list::SiteRow(v1::AssignmentRow { reason_kind, ..Default::default() }));
    printed.words("wait_cause", |cause| {
        let wait = Some(v1::Wait { cause, ..Default::default() });
        list::SiteRow(v1::AssignmentRow { wait, ..Default::default() })
    });

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/output/printed.txt");
    let schemas = printed.answers.document();
    if std::env::var_os("UPDATE_PRINTED").is_some() {
        std::fs::write(&path, &printed.text).unwrap();
        std::fs::write(schemas::path(), &schemas).unwrap();
    }
    same(&schemas, &schemas::path());
    same(&printed.text, &path);
}

/// Checks that a text equals the committed file.
fn same(text: &str, path: &Path) {
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    for (number, (line, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(line, expected, "line {} of {}", number + 1, path.display());
    }
    assert_eq!(text, expected, "UPDATE_PRINTED=1 writes {}", path.display());
}

fn batch_with_every_setting() -> serde_json::Value {
    let patterns = Some(v1::PathPatterns { patterns: vec!["/a".into()] });
    let policy = v1::CrawlPolicy {
        include: patterns.clone(),
        exclude: patterns,
        contact_url: Some("https://example.org/bot".into()),
        user_agent: Some("StudyBot/1.2".into()),
        recrawl_interval: Some(Duration { seconds: 86_400, nanos: 0 }),
        ..v1::CrawlPolicy::default()
    };
    let constraints = v1::Constraints {
        countries: vec!["CN".into()],
        carriers: vec!["CERNET".into()],
        tags: vec!["a".into()],
        bytes_per_day: Some(1),
        ..v1::Constraints::default()
    };
    let shown = v1::ShowBatchResponse {
        policy: Some(policy),
        constraints: Some(constraints),
        ..v1::ShowBatchResponse::default()
    };
    serde_json::to_value(show_and_policy::ShownBatch::try_from(shown).unwrap()).unwrap()
}

const MANY: u64 = 123_456_789;
const LONG: &str = "https://www.department-of-something-quite-long.inner-mongolia.example.edu.cn:8443 at \
                    2001:0db8:85a3:0000:0000:8a2e:0370:7334: 连接被对方拒绝 (os error 111)";

fn fits(printed: &str) {
    for line in printed.lines() {
        assert!(console::measure_text_width(line) <= View::plain().columns, "{line}\nin\n{printed}");
    }
    assert!(!printed.is_empty());
}

impl Contract {
    /// Checks the width of a table with two messages: one with long values, and an empty one.
    fn table<M: Message + Default, R: Row>(&self, row: impl Fn(M) -> R) {
        fits(&output::table(&[row(self.filled()), row(M::default())], &View::plain()));
    }
}

#[test]
fn no_line_of_a_table_is_wider_than_it_may_be() {
    let long = Contract::read(Some((12, LONG)));
    for service in [v1::ServiceState::Paused, v1::ServiceState::NeverConnected] {
        long.table(|agent| v1::Agent { service: service.into(), ..agent });
    }
    for group in [v1::ReportGroup::City, v1::ReportGroup::Day] {
        // The rows are grouped by one property. Rows with all properties would be wider
        // than a terminal.
        let city = if group == v1::ReportGroup::City { LONG } else { "" }.to_owned();
        let day = if group == v1::ReportGroup::Day { "2026-11-24" } else { "" }.to_owned();
        let (agent, carrier) = (String::new(), String::new());
        long.table(|row| v1::AccuracyRow {
            agent: agent.clone(),
            carrier: carrier.clone(),
            city: city.clone(),
            day: day.clone(),
            ..row
        });
    }
    long.table(|row: v1::FailureRow| row);
    long.table(|row: v1::HostRow| row);
    long.table(|row: v1::AgentError| row);
    long.table(|row: v1::AgentLease| row);
    long.table(|row: v1::AgentRefusal| row);
    long.table(|row| v1::AgentRow { assigned: 1_234_567, complete: 1_234_567, pages: MANY, ..row });
    long.table(|row| v1::AgentThroughput { sites: MANY, pages: MANY, ..row });
    long.table(|row: v1::OpenCircuit| row);
    long.table(|row| v1::Batch { open: MANY, done: MANY, failed: MANY, cancelled: MANY, ..row });
    long.table(|row: v1::Candidate| row);
    long.table(|row: v1::Enrolment| row);
    long.table(|row: v1::Epoch| row);
    long.table(|row| v1::GrowthSlice { sites: MANY, pages: MANY, ..row });
    long.table(|row: v1::Landmark| row);
    long.table(|row: v1::LandmarkWorth| row);
    long.table(|row: v1::PlannedAgent| row);
    long.table(|row: v1::Residual| row);
    long.table(|row: v1::SiteMeasurement| row);
    long.table(|row: v1::StrategyThroughput| row);
    long.table(|row| v1::BatchStatus { sites: MANY, ended: MANY, failed: MANY, crawling: MANY, ..row });
    long.table(|row: v1::UnreachedAgent| row);
    long.table(|row: v1::Way| row);
    long.table(|row| list::SiteRow(v1::AssignmentRow { pages: u32::MAX, ..row }));
    long.table(|row| assignments_and_hosts::AssignmentRow(v1::AssignmentRow { pages: u32::MAX, ..row }));
}

#[test]
fn no_line_of_a_text_is_wider_than_it_may_be() {
    let (long, view) = (Contract::read(Some((12, LONG))), View::plain());
    let failed = v1::WayState::Failed.into();
    let ways = vec![v1::Way { state: failed, ..long.filled() }; 30];
    fits(&view.fold(&reach::both(&ways, &view).unwrap()));
    fits(&list_and_show::text(&list_and_show::Shown::new(long.filled(), ways), &view).unwrap());
    fits(&view.fold(&events::line(&long.filled(), &view)));
    fits(&show_and_explain::text(&long.filled(), &view).unwrap());
    fits(&status::text(&long.filled(), &view).unwrap());
    fits(&show_and_explain::explanation_text(&long.filled(), &view).unwrap());
    let batch = v1::ShowBatchResponse { policy: None, constraints: None, ..long.filled() };
    fits(&show_and_policy::text(&show_and_policy::ShownBatch::try_from(batch).unwrap(), &view).unwrap());
    let grown = v1::ThroughputResponse { growth: vec![long.filled(); 500], ..long.filled() };
    fits(&throughput_and_agents::text(&throughput_and_agents::Shown::of(LONG.into(), None, grown), &view));
    for change in ["stays", "removed"] {
        let agents = vec![v1::PlannedAgent { change: change.into(), ..long.filled() }];
        fits(&plan::text(&v1::PlanResponse { agents, ..long.filled() }, true, &view).unwrap());
    }
}
