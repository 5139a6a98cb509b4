//! Generates `docs/reference/grpc.md` from the .proto files and their comments, and compares it
//! with the committed page.

use std::collections::BTreeMap;
use std::fmt::Write;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

use super::{COMMAND, PACKAGE, UPDATE, compile, guarded, root};

/// Maximum width of a line of text.
const WIDTH: usize = 100;

/// The first part of the page `docs/reference/grpc.md`.
const HEAD: &str = "\
# Reference of the gRPC interface

Package `landfall.v1`. Generated from the comments of [`proto/landfall/v1/`](../../proto/landfall/v1):
edit those. Releases add calls, messages, fields and values, and never change or remove them; a change
of this rule would be a package `landfall.v2` beside this one.

- **Address:** the scheduler's port, 7171 by default: without TLS on loopback, else with TLS. Then trust
  the authority `tls/ca.pem` of its data directory, and expect the name `landfall-scheduler`.
- **Authentication:** operators' calls need the metadata `authorization: Bearer OPERATOR-TOKEN`, agents' sessions
  `authorization: Bearer CREDENTIAL`. Calls of `grpc.health.v1.Health` and `AgentService.Enrol` need neither.
- **Discovery:** server reflection (`grpc.reflection.v1`) lists all of this to operators, for tools such as
  grpcurl. `grpc.health.v1.Health` answers for the server (the empty name) and for each service.
- **Absent fields:** a number or text that was not set is 0 or empty. Fields marked *optional*, messages and times
  may be absent; their comment says what that means.
- **An example** in Python: [examples/python](../../examples/python/README.md).

A call that fails ends with one of these codes, and with a sentence for people, which may change:

| code | meaning | repeat it? |
|---|---|---|
| `INVALID_ARGUMENT` | a field is wrong; the sentence names it | no |
| `NOT_FOUND` | a name is unknown; the sentence suggests the nearest | no |
| `FAILED_PRECONDITION` | the state forbids it, or several names begin so | after the state has changed |
| `UNAUTHENTICATED` | no token, a wrong or a replaced one | no |
| `PERMISSION_DENIED` | another machine was enrolled as this agent | no |
| `ABORTED` | another process is connected as this agent | no |
| `RESOURCE_EXHAUSTED` | a full disk, an agent that connects too often, or a request without a secret that is too large | later |
| `OUT_OF_RANGE` | a message is larger than its service takes: 64 KiB to 4 MiB | no |
| `DEADLINE_EXCEEDED` | the time of the call is over, or the client stopped sending | yes |
| `UNAVAILABLE` | the scheduler stops, its database does not answer, is read-only, or is on a full disk, or too many calls or wrong tokens came from this address | yes, after a pause |
| `INTERNAL` | the scheduler failed; its log has the cause | no |
";

/// The comments of a file. The key is the element's path as descriptor.proto numbers it.
struct Comments<'a>(BTreeMap<&'a [i32], &'a str>);

impl<'a> Comments<'a> {
    fn of(file: &'a FileDescriptorProto) -> Self {
        let info = file.source_code_info.as_ref().expect("protox keeps the source's comments");
        Self(info.location.iter().map(|place| (place.path.as_slice(), place.leading_comments())).collect())
    }

    /// The paragraphs of an element's comment, each on one line.
    fn paragraphs(&self, path: &[i32]) -> Vec<String> {
        let text = self.0.get(path).copied().unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines
            .split(|line| line.is_empty())
            .filter(|lines| !lines.is_empty())
            .map(|lines| escaped(&lines.join(" ")))
            .collect()
    }
}

/// Escapes characters that Markdown would read as markup, except in code.
fn escaped(text: &str) -> String {
    let part = |(index, part): (usize, &str)| match index % 2 {
        0 => part.replace('<', "&lt;"),
        _ => part.to_owned(),
    };
    text.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
}

/// Breaks a text into lines. All lines but the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            write!(lines, "\n{indent}{word}").unwrap();
            width = indent.len() + length;
        } else {
            let space = if width > 0 { " " } else { "" };
            write!(lines, "{space}{word}").unwrap();
            width += space.len() + length;
        }
    }
    lines
}

/// A link to the heading of a type.
fn link(path: &str) -> String {
    match path.strip_prefix(&format!(".{PACKAGE}.")) {
        Some(name) => format!("[{name}](#{})", anchor(name)),
        None => format!("`{}`", path.trim_start_matches('.')),
    }
}

/// The anchor that GitHub gives a heading.
fn anchor(name: &str) -> String {
    name.to_lowercase().replace('.', "")
}

fn type_of(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => link(field.type_name()),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    }
}

struct Page<'a> {
    text: String,
    comments: Comments<'a>,
}

impl Page<'_> {
    fn paragraphs(&mut self, path: &[i32]) {
        for paragraph in self.comments.paragraphs(path) {
            writeln!(self.text, "{}\n", wrapped(&paragraph, "")).unwrap();
        }
    }

    /// Writes a list item: the text `what`, followed by the element's comment.
    fn bullet(&mut self, indent: &str, what: &str, path: &[i32]) {
        let comment = self.comments.paragraphs(path).join(" ");
        let text = wrapped(&format!("- {what}: {comment}"), &format!("{indent}  "));
        writeln!(self.text, "{indent}{text}").unwrap();
    }

    fn service(&mut self, path: &[i32], service: &ServiceDescriptorProto) {
        writeln!(self.text, "### {}\n", service.name()).unwrap();
        self.paragraphs(path);
        for (index, call) in (0..).zip(&service.method) {
            let side = |streams: bool, path: &str| format!("{}{}", if streams { "stream of " } else { "" }, link(path));
            writeln!(self.text, "#### {}.{}\n", service.name(), call.name()).unwrap();
            let sent = side(call.client_streaming(), call.input_type());
            let answered = side(call.server_streaming(), call.output_type());
            writeln!(self.text, "{sent} → {answered}\n").unwrap();
            self.paragraphs(&[path, &[2, index]].concat());
        }
    }

    fn message(&mut self, path: &[i32], scope: &str, message: &DescriptorProto) {
        let name = format!("{scope}{}", message.name());
        let below = |number: i32, index: i32| [path, &[number, index]].concat();
        writeln!(self.text, "### {name}\n").unwrap();
        self.paragraphs(path);
        let mut oneof = None;
        for (index, field) in (0..).zip(&message.field) {
            let member = field.oneof_index.filter(|_| !field.proto3_optional());
            if let Some(choice) = member.filter(|_| member != oneof) {
                let choice_name = message.oneof_decl[usize::try_from(choice).unwrap()].name();
                self.bullet("", &format!("**{choice_name}** (oneof)"), &below(8, choice));
            }
            oneof = member;
            let label = match field.label() {
                Label::Repeated => ", repeated",
                _ if field.proto3_optional() => ", optional",
                _ => "",
            };
            let what = format!("**{}** ({}{label}, {})", field.name(), type_of(field), field.number());
            self.bullet(if member.is_some() { "  " } else { "" }, &what, &below(2, index));
        }
        if !message.field.is_empty() {
            self.text.push('\n');
        }
        for (index, nested) in (0..).zip(&message.nested_type) {
            self.message(&below(3, index), &format!("{name}."), nested);
        }
        for (index, item) in (0..).zip(&message.enum_type) {
            self.values(&below(4, index), &format!("{name}."), item);
        }
    }

    fn values(&mut self, path: &[i32], scope: &str, item: &EnumDescriptorProto) {
        writeln!(self.text, "### {scope}{}\n", item.name()).unwrap();
        self.paragraphs(path);
        for (index, value) in (0..).zip(&item.value) {
            self.bullet("", &format!("`{}` ({})", value.name(), value.number()), &[path, &[2, index]].concat());
        }
        self.text.push('\n');
    }
}

fn page(set: &FileDescriptorSet) -> String {
    let mut text = format!("{HEAD}\n## Services\n\n");
    for service in guarded(set).flat_map(|file| &file.service) {
        let calls = service
            .method
            .iter()
            .map(|call| format!("[{}](#{})", call.name(), anchor(&format!("{}.{}", service.name(), call.name()))));
        let listed =
            format!("- {}: {}", link(&format!(".{PACKAGE}.{}", service.name())), calls.collect::<Vec<_>>().join(", "));
        writeln!(text, "{}", wrapped(&listed, "  ")).unwrap();
    }
    for file in guarded(set) {
        let mut page = Page { text, comments: Comments::of(file) };
        writeln!(page.text, "\n## {}\n", file.name()).unwrap();
        // In descriptor.proto, path 12 is the `syntax` line. The comment above it describes the
        // file.
        page.paragraphs(&[12]);
        for (index, service) in (0..).zip(&file.service) {
            page.service(&[6, index], service);
        }
        for (index, message) in (0..).zip(&file.message_type) {
            page.message(&[4, index], "", message);
        }
        for (index, item) in (0..).zip(&file.enum_type) {
            page.values(&[5, index], "", item);
        }
        text = page.text.trim_end().to_owned() + "\n";
    }
    text
}

#[test]
fn the_reference_is_that_of_the_contract() {
    let (fresh, path) = (page(&compile()), root().join("../docs/reference/grpc.md"));
    if std::env::var_os(UPDATE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, fresh).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let differs = (1..).zip(fresh.lines().zip(committed.lines())).find(|(_, (fresh, committed))| fresh != committed);
    assert!(
        fresh == committed,
        "docs/reference/grpc.md is older than the .proto files: {UPDATE}=1 {COMMAND} writes it; first difference: {differs:?}"
    );
}

#[test]
fn the_reference_has_every_element_and_no_dead_link() {
    let (set, text) = (compile(), page(&compile()));
    let headings: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with("###"))
        .map(|line| anchor(line.trim_start_matches(['#', ' '])))
        .collect();
    for link in text.split("](#").skip(1).map(|rest| rest.split(')').next().unwrap()) {
        assert!(headings.iter().any(|heading| heading == link), "no heading has the anchor {link}");
    }
    for line in super::render(&set) {
        let (kind, name) = super::key(&line).split_once(' ').unwrap();
        let name = name.trim_start_matches("landfall.v1.");
        let last = name.rsplit('.').next().unwrap();
        let shown = match kind {
            "field" => format!("- **{last}** ("),
            "value" => format!("- `{last}` ("),
            "rpc" => format!("#### {name}\n"),
            _ => format!("### {name}\n"),
        };
        assert!(text.contains(&shown), "{line}");
    }
}
