//! Generates `proto/generated` from the contract, without a system `protoc`, and compares it with
//! the committed files. Builds use the committed files, so they do not need the generator. Messages
//! that commands print get `serde::Serialize`, and enums get names for programs.

use std::fmt::Write;
use std::path::Path;

use prost::Message as _;
use prost_types::field_descriptor_proto::Type;
use prost_types::{EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use super::{COMMAND, UPDATE, compile, root};

/// Messages that commands print as JSON and CSV. The order of fields is that of the .proto file. A
/// time is printed in RFC 3339, a duration in milliseconds as `NAME_ms`, and an enum by its name.
const PRINTED: &str = "AccuracyRow Agent AgentError AgentLease AgentRefusal AgentRow AgentSession AgentThroughput Batch BatchChange BatchProgress \
    Candidate Coverage CrawlProgress Diversity ElectionExplanation Ending Enrolment Epoch Estimate Event ExcludedAgents \
    ExplainResponse ExplainedCandidate ExplainedTask FailureRow GlobePosition GrowthSlice HostRow Landmark LandmarkWorth LeftOutAgent OpenCircuit \
    PlacedAgent PlanResponse PlannedAgent PlannedLoad PlannedOutlook PlannedSuggestion Residual ShowContactUrlResponse \
    ShowEmbeddingResponse ShowSiteResponse SiteMeasurement SiteOrder SitePlacement ResolvedAddress SiteTask SiteVerdict \
    StrategyThroughput ThroughputResponse UnreachedAgent Way ShowStatusResponse SchedulerStatus DiskSpace DatabaseStatus \
    FleetStatus AgentCount LandmarksStatus MapStatus BatchStatus Attention";

/// Fields that are printed under another name.
const RENAMED: [(&str, &str); 17] = [
    ("AgentThroughput.megabytes_per_minute", "mb_per_min"),
    ("BatchProgress.wait", "wait_cause"),
    ("BatchStatus.megabytes_per_minute", "mb_per_min"),
    ("BatchStatus.sites_per_minute", "sites_per_min"),
    ("ElectionExplanation.landmarks", "worth"),
    ("Ending.tasks", "sites"),
    ("ExplainedTask.wait", "wait_cause"),
    ("GrowthSlice.megabytes_per_minute", "mb_per_min"),
    ("GrowthSlice.sites_per_minute", "sites_per_min"),
    ("LeftOutAgent.name", "agent"),
    ("PlannedAgent.name", "agent"),
    ("ShowEmbeddingResponse.landmarks", "landmark_names"),
    ("SitePlacement.coordinate", "coordinate_ms"),
    ("SiteTask.wait", "wait_cause"),
    ("StrategyThroughput.megabytes_per_minute", "mb_per_min"),
    ("ThroughputResponse.megabytes_per_minute", "mb_per_min"),
    ("ThroughputResponse.sites_per_minute", "sites_per_min"),
];

/// Fields that a function of `src/json.rs` prints, with the name of this function.
const PRINTED_BY: [(&str, &str); 30] = [
    ("Agent.capacity", "some"),
    ("Agent.tags", "joined"),
    ("AgentSession.end_cause", "some"),
    ("AgentThroughput.busy", "length"),
    ("AgentThroughput.crawling", "length"),
    ("BatchProgress.wait", "wait"),
    ("Ending.kind", "kind"),
    ("Event.agent", "some"),
    ("Event.batch", "some"),
    ("Event.cause", "some"),
    ("Event.incarnation", "some"),
    ("Event.round", "some"),
    ("Event.session_id", "some"),
    ("Event.site", "some"),
    ("Event.task_id", "some"),
    ("Event.token", "some"),
    ("ExplainedTask.wait", "wait"),
    ("FailureRow.reason_kind", "kind"),
    ("GrowthSlice.until", "length"),
    ("PlanResponse.after", "or_default"),
    ("PlanResponse.before", "or_default"),
    ("PlanResponse.suggestions", "ranked"),
    ("ShowContactUrlResponse.contact_url", "some"),
    ("ShowSiteResponse.alias_of", "some"),
    ("ShowSiteResponse.origin", "some"),
    ("SitePlacement.coordinate", "rounded"),
    ("SiteTask.wait", "wait"),
    ("StrategyThroughput.crawling", "length"),
    ("ElectionExplanation.carriers", "or_default"),
    ("ElectionExplanation.cities", "or_default"),
];

/// Exceptions: fields that are not printed, and messages whose fields are printed among those of
/// the outer message.
const OTHERWISE: [(&str, &str); 7] = [
    ("BatchProgress.batch", "skip"),
    ("BatchProgress.waiting_for_it", "skip"),
    ("HostRow.more", "skip"),
    ("ShowEmbeddingResponse.epoch", "flatten"),
    ("ThroughputResponse.begun_at", "skip"),
    ("ThroughputResponse.until", "skip"),
    ("Way.failure", "flatten, serialize_with = \"crate::json::failure\""),
];

/// Writes the code generated from the contract into a folder.
fn generate(descriptors: FileDescriptorSet, folder: &Path) {
    std::fs::write(folder.join("words.rs"), words_of(&descriptors).unwrap()).unwrap();
    std::fs::write(folder.join("descriptors.bin"), without_source(descriptors.clone()).encode_to_vec()).unwrap();
    let mut build = tonic_prost_build::configure().out_dir(folder).emit_rerun_if_changed(false);
    let printed: Vec<&str> = PRINTED.split_whitespace().collect();
    for message in descriptors.file.iter().flat_map(|file| &file.message_type) {
        if printed.contains(&message.name()) {
            build = build.type_attribute(format!(".landfall.v1.{}", message.name()), "#[derive(serde::Serialize)]");
            for field in &message.field {
                let name = format!("{}.{}", message.name(), field.name());
                let attribute = attribute(&name, field);
                if !attribute.is_empty() {
                    build = build.field_attribute(format!(".landfall.v1.{name}"), format!("#[serde({attribute})]"));
                }
            }
        }
    }
    build.compile_fds(descriptors).unwrap();
}

/// Removes source positions, so that an edit of a .proto file does not change the whole generated
/// file.
fn without_source(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    descriptors.file.iter_mut().for_each(|file| file.source_code_info = None);
    descriptors
}

#[test]
fn the_generated_code_is_that_of_the_contract() {
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    std::fs::create_dir_all(&fresh).unwrap();
    generate(compile(), &fresh);
    for file in ["landfall.v1.rs", "words.rs", "descriptors.bin"] {
        let (fresh, committed) = (std::fs::read(fresh.join(file)).unwrap(), root().join("generated").join(file));
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(committed, fresh).unwrap();
        } else {
            let same = std::fs::read(committed).is_ok_and(|committed| committed == fresh);
            assert!(same, "proto/generated/{file} is older than the .proto files: {UPDATE}=1 {COMMAND} writes it");
        }
    }
}

fn find(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(field, _)| *field == name).map(|(_, what)| *what)
}

/// The serde attributes of a field.
fn attribute(name: &str, field: &FieldDescriptorProto) -> String {
    if let Some(otherwise) = find(&OTHERWISE, name) {
        return otherwise.to_owned();
    }
    let duration = (field.type_name() == ".google.protobuf.Duration").then(|| format!("{}_ms", field.name()));
    let renamed = find(&RENAMED, name).map(str::to_owned).or(duration).map(|name| format!("rename = \"{name}\""));
    let by = match (find(&PRINTED_BY, name), field.r#type(), field.type_name()) {
        (by, Type::Enum, path) => Some(format!("{}::<{}, _>", by.unwrap_or("word"), rust_path(path))),
        (Some(by), ..) => Some(by.to_owned()),
        (None, _, ".google.protobuf.Timestamp") => Some("time".to_owned()),
        (None, _, ".google.protobuf.Duration") => Some("millis".to_owned()),
        _ => None,
    };
    let by = by.map(|by| format!("serialize_with = \"crate::json::{by}\""));
    renamed.into_iter().chain(by).collect::<Vec<_>>().join(", ")
}

/// The Rust path of a contract type. A type that is nested in a message is in a module with the
/// message's name.
fn rust_path(path: &str) -> String {
    let mut names: Vec<String> = path.trim_start_matches(".landfall.v1.").split('.').map(str::to_owned).collect();
    let last = names.len() - 1;
    for message in &mut names[..last] {
        let snake = message.chars().map(|c| if c.is_uppercase() { format!("_{}", c.to_lowercase()) } else { c.into() });
        *message = snake.collect::<String>().trim_start_matches('_').to_owned();
    }
    format!("crate::v1::{}", names.join("::"))
}

/// Generates `Word` for each enum. A word is the value's name without the enum's name, such as
/// `never-connected`.
fn words_of(descriptors: &FileDescriptorSet) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let mut write = |path: &str, item: &EnumDescriptorProto| {
        writeln!(text, "impl Word for {} {{\n    fn word(self) -> &'static str {{", rust_path(path))?;
        writeln!(text, "        match self as i32 {{")?;
        let prefix = item.value.first().map_or("", |first| first.name().trim_end_matches("UNSPECIFIED"));
        for value in &item.value[1..] {
            let word = value.name().trim_start_matches(prefix).to_lowercase().replace('_', "-");
            writeln!(text, "            {} => \"{word}\",", value.number())?;
        }
        writeln!(text, "            _ => \"\",\n        }}\n    }}\n}}")
    };
    for file in descriptors.file.iter().filter(|file| file.package() == "landfall.v1") {
        for item in &file.enum_type {
            write(item.name(), item)?;
        }
        for message in &file.message_type {
            for item in &message.enum_type {
                write(&format!("{}.{}", message.name(), item.name()), item)?;
            }
        }
    }
    Ok(text)
}
