//! Derives the JSON schemas of the answers from examples. The examples are made from messages that
//! together contain all fields, an empty message at each depth, and each value of every enum.
//!
//! `docs/reference/json-schemas.json` contains the schemas for `--format json` and for the
//! dashboard's JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use chrono::DateTime;
use serde_json::{Map, Value, json};

/// The example values of each answer, by the answer's name.
#[derive(Debug, Default)]
pub(super) struct Answers(BTreeMap<String, Vec<Value>>);

impl Answers {
    /// Sets the example values of an answer, and replaces earlier values. If the JSON of a command
    /// differs from its table rows, this function is called after the rows were recorded.
    pub(super) fn set(&mut self, name: &str, values: Vec<Value>) {
        self.0.insert(key(name), values);
    }

    /// Adds a value that the generated messages lack.
    pub(super) fn add(&mut self, name: &str, value: Value) {
        self.0.get_mut(&key(name)).expect("a known answer").push(value);
    }

    pub(super) fn document(&self) -> String {
        let schemas: Map<String, Value> =
            self.0.iter().map(|(name, values)| (name.clone(), schema(&values.iter().collect::<Vec<_>>()))).collect();
        let document = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Answers of Landfall for programs",
            "description": "By command: agents-list is an element of `landfall agents list --format json`. Releases add \
                            properties and never rename or remove them.",
            "$defs": schemas,
        });
        let mut text = String::new();
        write(&document, "", &mut text);
        text + "\n"
    }
}

pub(super) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/json-schemas.json")
}

/// A command's name, in characters that OpenAPI permits.
fn key(name: &str) -> String {
    name.replace(" --", "-").replace(' ', "-")
}

/// The schema that all these values satisfy. A property is required if every object has it.
fn schema(values: &[&Value]) -> Value {
    let mut types: BTreeSet<&str> = values.iter().map(|value| type_of(value)).collect();
    if types.contains("number") {
        types.remove("integer");
    }
    let mut schema = Map::new();
    let listed: Vec<&str> = types.iter().copied().collect();
    schema.insert("type".into(), if let [one] = listed[..] { json!(one) } else { json!(listed) });
    let mut texts = values.iter().filter_map(|value| value.as_str()).peekable();
    if texts.peek().is_some() && texts.all(|text| DateTime::parse_from_rfc3339(text).is_ok()) {
        schema.insert("format".into(), json!("date-time"));
    }
    let elements: Vec<&Value> = values.iter().filter_map(|value| value.as_array()).flatten().collect();
    if !elements.is_empty() {
        schema.insert("items".into(), self::schema(&elements));
    }
    let objects: Vec<&Map<String, Value>> = values.iter().filter_map(|value| value.as_object()).collect();
    if !objects.is_empty() {
        let names: BTreeSet<&String> = objects.iter().flat_map(|object| object.keys()).collect();
        let property = |name: &String| {
            let values: Vec<&Value> = objects.iter().filter_map(|object| object.get(name)).collect();
            (name.clone(), self::schema(&values))
        };
        let properties: Map<String, Value> = names.iter().map(|name| property(name)).collect();
        schema.insert("properties".into(), properties.into());
        let required = names.iter().filter(|name| objects.iter().all(|object| object.contains_key(**name)));
        schema.insert("required".into(), required.map(|name| json!(name)).collect());
    }
    schema.into()
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Writes JSON. An object without inner objects is written on one line.
fn write(value: &Value, indent: &str, text: &mut String) {
    let object = value.as_object().filter(|object| object.values().any(Value::is_object));
    let Some(object) = object else {
        text.push_str(&value.to_string());
        return;
    };
    let deeper = format!("{indent}  ");
    text.push('{');
    for (index, (name, value)) in object.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        text.push_str(&format!("{comma}\n{deeper}{}: ", json!(name)));
        write(value, &deeper, text);
    }
    text.push_str(&format!("\n{indent}}}"));
}

#[test]
fn a_property_is_required_only_if_every_object_has_it() {
    let values = [json!({"a": 1, "b": "x"}), json!({"a": 1.5}), json!({"a": null})];
    let expected = json!({
        "type": "object",
        "properties": {"a": {"type": ["null", "number"]}, "b": {"type": "string"}},
        "required": ["a"],
    });
    assert_eq!(schema(&values.iter().collect::<Vec<_>>()), expected);
    let times = [json!(["2026-11-25T14:00:00.000Z"]), json!([])];
    let expected = json!({"type": "array", "items": {"type": "string", "format": "date-time"}});
    assert_eq!(schema(&times.iter().collect::<Vec<_>>()), expected);
}
