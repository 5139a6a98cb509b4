//! Tests that the wire contract stays compatible.
//!
//! `contract.txt` has one line for each message, field, enum, value, service and call. Installed
//! agents may be older than their scheduler, so lines may be added, but never changed or removed.
//! The tests generate the same lines from the .proto files and compare them. Every element must
//! have a comment, because these comments document the contract.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

mod generated;
mod reference;

/// If this environment variable is set, the tests add new lines to `contract.txt`, and write the
/// generated code and `docs/reference/grpc.md` again.
const UPDATE: &str = "UPDATE_CONTRACT";
/// The command that runs these tests.
const COMMAND: &str = "cargo test --workspace --test contract";

/// The package that the tests guard. Files imported from other packages may change.
const PACKAGE: &str = "landfall.v1";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The .proto files, sorted, as paths relative to the crate.
fn proto_files() -> Vec<PathBuf> {
    let folder = Path::new("landfall/v1");
    let mut files: Vec<PathBuf> = fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| folder.join(entry.unwrap().file_name()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "proto"))
        .collect();
    files.sort();
    files
}

fn compile() -> FileDescriptorSet {
    protox::compile(proto_files(), [root()]).unwrap()
}

/// The files of the package `landfall.v1`.
fn guarded(set: &FileDescriptorSet) -> impl Iterator<Item = &FileDescriptorProto> {
    set.file.iter().filter(|file| file.package() == PACKAGE)
}

/// Generates the lines of the contract. A line has a key (kind and full name), ` : `, and the
/// properties that must not change.
fn render(set: &FileDescriptorSet) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in guarded(set) {
        for message in &file.message_type {
            render_message(PACKAGE, message, &mut lines);
        }
        for item in &file.enum_type {
            render_enum(PACKAGE, item, &mut lines);
        }
        for service in &file.service {
            render_service(service, &mut lines);
        }
    }
    lines
}

fn render_message(scope: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{scope}.{}", message.name());
    lines.insert(format!("message {name} :"));
    for field in &message.field {
        lines.insert(format!("field {name}.{} : {}", field.name(), render_field(message, field)));
    }
    for nested in &message.nested_type {
        render_message(&name, nested, lines);
    }
    for item in &message.enum_type {
        render_enum(&name, item, lines);
    }
}

/// The number, cardinality, type and oneof of a field.
fn render_field(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let cardinality = match field.label() {
        Label::Repeated => "repeated",
        Label::Required => "required",
        Label::Optional if field.proto3_optional() => "optional",
        Label::Optional => "singular",
    };
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().trim_start_matches('.').to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    // A proto3 `optional` field has a synthetic oneof, which is not part of the contract.
    let oneof = field
        .oneof_index
        .filter(|_| !field.proto3_optional())
        .and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?))
        .map(|oneof| format!(" oneof {}", oneof.name()));
    format!("{} {cardinality} {kind}{}", field.number(), oneof.unwrap_or_default())
}

fn render_enum(scope: &str, item: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{scope}.{}", item.name());
    lines.insert(format!("enum {name} :"));
    for value in &item.value {
        lines.insert(format!("value {name}.{} : {}", value.name(), value.number()));
    }
}

fn render_service(service: &ServiceDescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{PACKAGE}.{}", service.name());
    lines.insert(format!("service {name} :"));
    for rpc in &service.method {
        let side = |streaming: bool, kind: &str| {
            format!("({}{})", if streaming { "stream " } else { "" }, kind.trim_start_matches('.'))
        };
        lines.insert(format!(
            "rpc {name}.{} : {} returns {}",
            rpc.name(),
            side(rpc.client_streaming(), rpc.input_type()),
            side(rpc.server_streaming(), rpc.output_type())
        ));
    }
}

/// The differences between the .proto files and the snapshot.
#[derive(Debug, Default, PartialEq, Eq)]
struct Difference {
    /// One sentence per changed or removed line. Each such line breaks older agents.
    breaking: Vec<String>,
    /// New lines. They are accepted once they are in the snapshot.
    new: Vec<String>,
}

fn key(line: &str) -> &str {
    line.split_once(" :").map_or(line, |(key, _)| key)
}

fn compare(snapshot: &BTreeSet<String>, current: &BTreeSet<String>) -> Difference {
    let by_key: BTreeMap<&str, &String> = current.iter().map(|line| (key(line), line)).collect();
    let breaking: Vec<String> = snapshot
        .difference(current)
        .map(|line| match by_key.get(key(line)) {
            Some(now) => format!("changed: `{line}` is now `{now}`"),
            None => format!("removed: `{line}`"),
        })
        .collect();
    let known: BTreeSet<&str> = snapshot.iter().map(|line| key(line)).collect();
    let new = current.difference(snapshot).filter(|line| !known.contains(key(line))).cloned().collect();
    Difference { breaking, new }
}

fn read_snapshot(path: &Path) -> BTreeSet<String> {
    // The file is missing only before the first snapshot.
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Every element that has no leading comment, as `FILE: NAME`.
fn uncommented(set: &FileDescriptorSet) -> Vec<String> {
    let mut missing = Vec::new();
    for file in guarded(set) {
        let info = file.source_code_info.as_ref().expect("protox keeps the source's comments");
        let commented: BTreeSet<&[i32]> = info
            .location
            .iter()
            .filter(|location| !location.leading_comments().trim().is_empty())
            .map(|location| location.path.as_slice())
            .collect();
        let mut elements = Vec::new();
        for (index, message) in (0..).zip(&file.message_type) {
            message_elements(&[4, index], message.name(), message, &mut elements);
        }
        for (index, item) in (0..).zip(&file.enum_type) {
            enum_elements(&[5, index], item.name(), item, &mut elements);
        }
        for (index, service) in (0..).zip(&file.service) {
            elements.push((vec![6, index], service.name().to_owned()));
            for (rpc_index, rpc) in (0..).zip(&service.method) {
                elements.push((vec![6, index, 2, rpc_index], format!("{}.{}", service.name(), rpc.name())));
            }
        }
        for (path, name) in elements {
            if !commented.contains(path.as_slice()) {
                missing.push(format!("{}: {name}", file.name()));
            }
        }
    }
    missing
}

/// The path of an element as descriptor.proto numbers it, and the element's name for display.
type Element = (Vec<i32>, String);

fn message_elements(path: &[i32], name: &str, message: &DescriptorProto, elements: &mut Vec<Element>) {
    let below = |number: i32, index: i32| [path, &[number, index]].concat();
    elements.push((path.to_vec(), name.to_owned()));
    for (index, field) in (0..).zip(&message.field) {
        elements.push((below(2, index), format!("{name}.{}", field.name())));
    }
    let unwritten =
        |index| message.field.iter().any(|field| field.proto3_optional() && field.oneof_index == Some(index));
    for (index, oneof) in (0..).zip(&message.oneof_decl).filter(|(index, _)| !unwritten(*index)) {
        elements.push((below(8, index), format!("{name}.{}", oneof.name())));
    }
    for (index, nested) in (0..).zip(&message.nested_type) {
        message_elements(&below(3, index), &format!("{name}.{}", nested.name()), nested, elements);
    }
    for (index, item) in (0..).zip(&message.enum_type) {
        enum_elements(&below(4, index), &format!("{name}.{}", item.name()), item, elements);
    }
}

fn enum_elements(path: &[i32], name: &str, item: &EnumDescriptorProto, elements: &mut Vec<Element>) {
    elements.push((path.to_vec(), name.to_owned()));
    for (index, value) in (0..).zip(&item.value) {
        elements.push(([path, &[2, index]].concat(), format!("{name}.{}", value.name())));
    }
}

#[test]
fn nothing_in_the_contract_is_changed_or_removed() {
    let path = root().join("contract.txt");
    let snapshot = read_snapshot(&path);
    let current = render(&compile());
    let difference = compare(&snapshot, &current);
    assert!(
        difference.breaking.is_empty(),
        "the wire contract would break for agents and schedulers that are already out:\n  {}",
        difference.breaking.join("\n  ")
    );
    if std::env::var_os(UPDATE).is_some() {
        let text: String = snapshot.union(&current).map(|line| format!("{line}\n")).collect();
        fs::write(&path, text).unwrap();
        return;
    }
    assert!(
        difference.new.is_empty(),
        "the wire contract grew; `{UPDATE}=1 {COMMAND}` adds to proto/contract.txt:\n  {}",
        difference.new.join("\n  ")
    );
}

#[test]
fn every_element_of_the_contract_has_a_comment() {
    let missing = uncommented(&compile());
    assert!(missing.is_empty(), "without a leading comment:\n  {}", missing.join("\n  "));
}

/// The differences that are found after `mutate` has changed the real contract.
fn difference_after(mutate: impl FnOnce(&mut FileDescriptorSet)) -> Difference {
    let mut set = compile();
    let before = render(&set);
    mutate(&mut set);
    compare(&before, &render(&set))
}

fn message<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut DescriptorProto {
    set.file.iter_mut().flat_map(|file| &mut file.message_type).find(|message| message.name() == name).unwrap()
}

fn field<'a>(set: &'a mut FileDescriptorSet, of: &str, name: &str) -> &'a mut FieldDescriptorProto {
    message(set, of).field.iter_mut().find(|field| field.name() == name).unwrap()
}

#[test]
fn an_unchanged_contract_passes() {
    assert_eq!(difference_after(|_| ()), Difference::default());
}

#[test]
fn whatever_breaks_an_older_agent_is_caught() {
    type Mutation = fn(&mut FileDescriptorSet);
    let mutations: [(Mutation, &str); 8] = [
        (
            |set| field(set, "Heartbeat", "active_crawls").number = Some(7),
            "changed: `field landfall.v1.Heartbeat.active_crawls : 2 ",
        ),
        (
            |set| field(set, "HeldLease", "token").set_type(Type::String),
            "changed: `field landfall.v1.HeldLease.token : 2 singular int64` is now",
        ),
        (|set| field(set, "Register", "name").set_label(Label::Repeated), "changed: `field landfall.v1.Register.name "),
        (
            |set| field(set, "SessionRequest", "register").oneof_index = None,
            "changed: `field landfall.v1.SessionRequest.register ",
        ),
        (
            |set| message(set, "Welcome").field.retain(|field| field.name() != "kept"),
            "removed: `field landfall.v1.Welcome.kept ",
        ),
        (
            // A removed message is reported even if it has no fields.
            |set| {
                let files = set.file.iter_mut();
                files.for_each(|file| file.message_type.retain(|message| message.name() != "ListLandmarksRequest"));
            },
            "removed: `message landfall.v1.ListLandmarksRequest",
        ),
        (
            |set| {
                let mut enums = set.file.iter_mut().flat_map(|file| &mut file.enum_type);
                enums.find(|item| item.name() == "DistanceMetric").unwrap().value[1].number = Some(9);
            },
            "changed: `value landfall.v1.DistanceMetric.DISTANCE_METRIC_TTFB : 1` is now",
        ),
        (
            |set| {
                let mut services = set.file.iter_mut().flat_map(|file| &mut file.service);
                let service = services.find(|service| service.name() == "AgentService").unwrap();
                service.method[0].server_streaming = Some(true);
            },
            "changed: `rpc landfall.v1.AgentService.Enrol ",
        ),
    ];
    for (mutate, start) in mutations {
        let breaking = difference_after(mutate).breaking;
        assert!(matches!(&breaking[..], [one] if one.starts_with(start)), "{start}: {breaking:?}");
    }
}

#[test]
fn a_new_field_is_not_a_break_but_must_be_recorded() {
    let difference = difference_after(|set| {
        let mut added = field(set, "Heartbeat", "active_crawls").clone();
        added.name = Some("temperature".to_owned());
        added.number = Some(3);
        message(set, "Heartbeat").field.push(added);
    });
    assert!(difference.breaking.is_empty(), "{difference:?}");
    assert_eq!(difference.new, ["field landfall.v1.Heartbeat.temperature : 3 singular uint32"]);
}

#[test]
fn a_lost_comment_is_named() {
    let mut set = compile();
    for file in set.file.iter_mut().filter(|file| file.name() == "landfall/v1/agent.proto") {
        let info = file.source_code_info.as_mut().unwrap();
        info.location.iter_mut().find(|location| location.path == [6, 0, 2, 1]).unwrap().leading_comments = None;
    }
    assert_eq!(uncommented(&set), ["landfall/v1/agent.proto: AgentService.Session"]);
}
