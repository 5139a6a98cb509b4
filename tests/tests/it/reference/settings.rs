//! The page of the settings, which is generated from the example files. The tests also compare the
//! examples with the types that read settings files.
//!
//! In an example, the comment above a key explains the key. The last line of the comment is `Type:
//! TYPE, RANGE.`. RANGE is missing if there is no range, and is `required` for a key without a
//! default.

use std::collections::BTreeSet;
use std::path::Path;

use super::{ROOT, code, compare, row};

/// A key of an example.
struct Key {
    section: String,
    name: String,
    value: String,
    /// Whether the key is commented out, because it is absent by default.
    is_absent: bool,
    meaning: String,
    kind: String,
    /// Words in the error message about a value out of range; `None` if the key has no range.
    range: Option<String>,
    is_required: bool,
}

struct Section {
    name: String,
    about: String,
    is_absent: bool,
}

struct Example {
    about: String,
    sections: Vec<Section>,
    keys: Vec<Key>,
    /// The text with all keys, including those that are commented out.
    full: String,
}

impl Example {
    fn read(file: &str) -> Self {
        let text = std::fs::read_to_string(Path::new(ROOT).join("ops").join(file)).unwrap();
        let (about, rest) = text.split_once("\n\n").unwrap();
        let mut example = Self {
            about: joined(about.lines().filter_map(|line| line.strip_prefix("# "))),
            sections: vec![Section { name: String::new(), about: String::new(), is_absent: false }],
            keys: Vec::new(),
            full: text.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n").collect(),
        };
        let mut comment: Vec<&str> = Vec::new();
        for line in rest.lines() {
            match (line.strip_prefix("# "), line.strip_prefix("#: ")) {
                (Some(said), _) => comment.push(said),
                (None, absent) if !line.is_empty() => {
                    example.take(absent.unwrap_or(line), absent.is_some(), &std::mem::take(&mut comment));
                }
                _ => assert!(comment.is_empty(), "{file}: a comment without a key: {comment:?}"),
            }
        }
        example
    }

    fn take(&mut self, line: &str, is_absent: bool, comment: &[&str]) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let section = Section { name: name.to_owned(), about: joined(comment.iter().copied()), is_absent };
            assert!(!section.about.is_empty(), "[{name}] has no comment");
            return self.sections.push(section);
        }
        let (name, value) = line.split_once(" = ").unwrap_or_else(|| panic!("neither key nor section: {line}"));
        let (kind, meaning) = comment.split_last().unwrap_or_else(|| panic!("{name} has no comment"));
        let kind = kind.strip_prefix("Type: ").and_then(|kind| kind.strip_suffix('.'));
        let kind = kind.unwrap_or_else(|| panic!("the comment of {name} does not end with its type"));
        let (kind, range) = kind.split_once(", ").map_or((kind, None), |(kind, range)| (kind, Some(range)));
        let section = self.sections.last().unwrap();
        self.keys.push(Key {
            section: section.name.clone(),
            name: name.to_owned(),
            value: value.to_owned(),
            is_absent: is_absent && !section.is_absent,
            meaning: joined(meaning.iter().copied()),
            kind: kind.to_owned(),
            range: range.filter(|range| *range != "required").map(str::to_owned),
            is_required: range == Some("required"),
        });
    }

    /// The full example in which one key has another value, or is missing if `value` is `None`.
    fn with(&self, key: &Key, value: Option<&str>) -> String {
        let mut table: toml::Table = self.full.parse().unwrap();
        let section = match key.section.as_str() {
            "" => &mut table,
            name => table[name].as_table_mut().unwrap(),
        };
        section.remove(&key.name).unwrap();
        if let Some(value) = value {
            section.extend(format!("{} = {value}", key.name).parse::<toml::Table>().unwrap());
        }
        table.to_string()
    }
}

fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.collect::<Vec<_>>().join(" ")
}

/// Reads the text of a settings file as its program does.
type Load = fn(&str) -> Result<(), String>;

/// Both example files, and the functions that read them.
fn files() -> [(&'static str, Example, Load); 2] {
    [
        ("landfall.toml", Example::read("landfall.example.toml"), |text| {
            loaded(text, |path| landfall_scheduler::config::Config::load(path).map(drop))
        }),
        ("agent.toml", Example::read("agent.example.toml"), |text| {
            loaded(text, |path| landfall_agent::config::Config::load(path).map(drop))
        }),
    ]
}

fn loaded<E: std::error::Error + Send + Sync + 'static>(
    text: &str,
    load: impl Fn(&Path) -> Result<(), E>,
) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.toml");
    std::fs::write(&path, text).unwrap();
    load(&path).map_err(|error| format!("{:#}", anyhow::Error::new(error)))
}

/// The names that an error message lists as expected.
fn expected(error: &str) -> BTreeSet<String> {
    let (_, list) = error.split_once("expected ").unwrap_or_else(|| panic!("no list of keys: {error}"));
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_examples_name_every_key_of_the_programs() {
    for (file, example, load) in files() {
        load(&example.full).unwrap();
        for section in &example.sections {
            let head = if section.name.is_empty() { String::new() } else { format!("[{}]\n", section.name) };
            let error = load(&format!("{head}no_such_key = 1\n")).unwrap_err();
            let own = example.keys.iter().filter(|key| key.section == section.name).map(|key| key.name.clone());
            let inner = example.sections.iter().filter(|_| section.name.is_empty()).map(|inner| inner.name.clone());
            let named: BTreeSet<String> = own.chain(inner).filter(|name| !name.is_empty()).collect();
            assert_eq!(named, expected(&error), "{file}, section [{}]", section.name);
        }
    }
}

#[test]
fn the_examples_name_every_range_and_every_key_without_a_default() {
    let (mut ranges, mut required) = (0, 0);
    for (file, example, load) in files() {
        for key in &example.keys {
            let missing = load(&example.with(key, None));
            let is_missed = missing.as_ref().is_err_and(|error| error.contains(&format!("`{}`", key.name)));
            assert_eq!(is_missed, key.is_required, "{file}: {}: {missing:?}", key.name);
            required += usize::from(is_missed);
            let Some(range) = &key.range else { continue };
            ranges += 1;
            let (inside, outside) = bounds(&key.kind, range);
            for value in inside {
                let read = load(&example.with(key, Some(&value)));
                assert!(!read.as_ref().is_err_and(|error| error.contains(range.as_str())), "{}: {read:?}", key.name);
            }
            for value in outside {
                let error = load(&example.with(key, Some(&value))).unwrap_err();
                assert!(
                    error.contains(range.as_str()) && error.contains(&key.name),
                    "{file}: {} = {value}: {error}",
                    key.name
                );
            }
        }
    }
    assert!(ranges > 40 && required == 6, "{ranges} ranges, {required} required keys");
}

/// Values at the bounds of a range, and values just outside the range.
fn bounds(kind: &str, range: &str) -> (Vec<String>, Vec<String>) {
    let (least, most) = match range.split_once(" to ") {
        Some((least, most)) => (number(least), Some(number(most))),
        None => (number(range.strip_suffix(" or more").unwrap()), None),
    };
    let written = |number: i128| if kind == "duration" { format!("'{number}ms'") } else { number.to_string() };
    let below = (least > 0).then(|| written(least - 1));
    let inside = [Some(least), most].into_iter().flatten().map(written).collect();
    (inside, below.into_iter().chain(most.map(|most| written(most + 1))).collect())
}

/// Parses a number, a duration (to milliseconds), or a size (to bytes).
fn number(text: &str) -> i128 {
    const UNITS: [(&str, i128); 7] = [
        ("ms", 1),
        (" MiB", 1 << 20),
        (" GiB", 1 << 30),
        ("s", 1000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (digits, factor) = unit.unwrap_or((text, &1));
    digits.parse::<i128>().unwrap_or_else(|_| panic!("not a bound: {text}")) * factor
}

#[test]
fn the_page_lists_every_setting() {
    let mut page =
        "# Settings of the files\n\nThis page is printed from the example files that are installed, and tests \
                    compare those with the types that read\nthe files. For how to change a setting, see \
                    [settings](../operate/settings.md).\n"
            .to_owned();
    for (file, example, _) in files() {
        page.push_str(&format!("\n## {file}\n\n{}\n", example.about));
        for section in &example.sections {
            if !section.name.is_empty() {
                page.push_str(&format!("\n### {file}: `[{}]`\n\n{}\n", section.name, section.about));
            }
            page.push_str("\n| key | type, range | default | meaning |\n|---|---|---|---|\n");
            let of_section = example.keys.iter().filter(|key| key.section == section.name);
            page.extend(of_section.map(described));
        }
    }
    compare("configuration.md", &page);
}

fn described(key: &Key) -> String {
    let default = match (key.is_required, key.is_absent) {
        (true, _) => format!("required, such as {}", code(&key.value)),
        (_, true) => format!("absent; such as {}", code(&key.value)),
        _ => code(&key.value),
    };
    let range = key.range.as_ref().map_or_else(String::new, |range| format!(", {range}"));
    row(&[code(&key.name), format!("{}{range}", key.kind), default, key.meaning.clone()])
}
