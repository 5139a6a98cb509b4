//! Compares answers with their JSON schemas, more strictly than programs should: a property that
//! the schema lacks is an error too.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use chrono::DateTime;
use serde_json::{Value, json};

/// The differences between a value and a schema, one sentence each. References are looked up in
/// `document`.
pub(crate) fn differences(value: &Value, schema: &Value, document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(value, schema, document, "answer", &mut found);
    found
}

fn compare(value: &Value, schema: &Value, document: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(reference) = schema.get("$ref") {
        let path = reference.as_str().unwrap().strip_prefix('#').unwrap();
        let named = document.pointer(path).unwrap_or_else(|| panic!("{path} is not in the document"));
        return compare(value, named, document, at, found);
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.iter().map(|one| one.as_str().unwrap()).collect(),
        one => vec![one.as_str().unwrap_or_else(|| panic!("{at}: a schema without a type: {schema}"))],
    };
    if !types.iter().any(|one| is(value, one)) {
        found.push(format!("{at} is {value}, not {}", types.join(" or ")));
        return;
    }
    if let (Some("date-time"), Some(text)) = (schema["format"].as_str(), value.as_str())
        && DateTime::parse_from_rfc3339(text).is_err()
    {
        found.push(format!("{at} is '{text}', not a time"));
    }
    for (index, element) in value.as_array().into_iter().flatten().enumerate() {
        compare(element, &schema["items"], document, &format!("{at}[{index}]"), found);
    }
    let Some(object) = value.as_object() else { return };
    for (name, value) in object {
        match schema["properties"].get(name) {
            Some(schema) => compare(value, schema, document, &format!("{at}.{name}"), found),
            None => found.push(format!("{at}.{name} is not in the schema")),
        }
    }
    for name in schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()) {
        if !object.contains_key(name) {
            found.push(format!("{at}.{name} is missing"));
        }
    }
}

fn is(value: &Value, type_name: &str) -> bool {
    match type_name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unknown type {other}"),
    }
}

#[test]
fn a_missing_an_added_and_a_changed_property_are_found() {
    let document = json!({"$defs": {
        "row": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "at": {"type": ["string", "null"], "format": "date-time"},
                "ms": {"type": "number"},
                "few": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["name", "at"],
        },
    }});
    let schema = json!({"type": "array", "items": {"$ref": "#/$defs/row"}});
    let good = json!({"name": "a", "at": "2026-11-25T14:00:00.000Z", "ms": 1, "few": [1]});
    for (row, said) in [
        (good.clone(), &[][..]),
        (json!({"name": "a", "at": null}), &[]),
        (json!({"name": "a"}), &["answer[0].at is missing"]),
        (json!({"name": "a", "at": "today"}), &["answer[0].at is 'today', not a time"]),
        (json!({"name": 1, "at": null}), &["answer[0].name is 1, not string"]),
        (json!({"name": "a", "at": 1}), &["answer[0].at is 1, not string or null"]),
        (json!({"name": "a", "at": null, "few": [1.5]}), &["answer[0].few[0] is 1.5, not integer"]),
        (json!({"name": "a", "at": null, "new": 1}), &["answer[0].new is not in the schema"]),
        (json!([]), &["answer[0] is [], not object"]),
    ] {
        assert_eq!(differences(&json!([row]), &schema, &document), said, "{row}");
    }
    assert_eq!(differences(&good, &schema, &document), [format!("answer is {good}, not array")]);
}
