//! `docs/config.md`, made of the schema. `UPDATE_DOCS=1 cargo test -p underpass --lib page` writes it again.

use std::{fmt::Write as _, fs, path::PathBuf};

use serde_json::{Map, Value};

use super::{name_of, schema};

const HEAD: &str = "# Configuration

Every key of the policy file, written by a test from the schema that also checks the file. `underpass check FILE` says
what is wrong with a file, and where. A key that is not listed here is an error.

The rules of every `*.toml` in the folder `conf.d` beside the file follow those of the file, in the order of the files'
names; so do `[[incoming]]` and `[[xdp]]`. Other tables are in the main file alone.

`underpass schema > underpass.schema.json` writes the same as JSON Schema. Editors with a TOML language server (Even
Better TOML, Taplo, Tombi) complete and check a file that begins with `#:schema ./underpass.schema.json`.

A *duration* is a whole number and a unit: `500ms`, `2s`, `1m`, `2h`, `1d`.
Key names with `_ms`, `_bytes` and the like say the unit of a number.

";

/// Tables of the file, as a user writes them, with the place of their schemas.
const TABLES: [(&str, &str); 18] = [
    ("[agent]", "/properties/agent"),
    ("[[rule]]", "/properties/rule/items"),
    (
        "`trigger` of a rule",
        "/properties/rule/items/properties/trigger",
    ),
    (
        "`limit` of a rule",
        "/properties/rule/items/properties/limit",
    ),
    (
        "`when` of a rule or of a step",
        "/properties/rule/items/properties/when",
    ),
    (
        "`tls` of a rule",
        "/properties/rule/items/properties/tls/anyOf/1",
    ),
    (
        "`upstream_tls` of a rule",
        "/properties/rule/items/properties/upstream_tls",
    ),
    ("[log]", "/properties/log"),
    ("[host]", "/properties/host"),
    ("[policy]", "/properties/policy"),
    ("[limits]", "/properties/limits"),
    ("[otlp]", "/properties/otlp"),
    ("[default]", "/properties/default"),
    ("[[incoming]]", "/properties/incoming/items"),
    ("[[cluster]]", "/properties/cluster/items"),
    ("[health]", "/properties/health"),
    ("[containers]", "/properties/containers"),
    ("[[xdp]]", "/properties/xdp/items"),
];

/// Where the steps of a pipeline are.
pub(super) const STEPS: &str = "/properties/rule/items/properties/pipeline/items/oneOf";

#[test]
fn the_page_is_what_the_schema_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
    let page = page(&schema());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/config.md is stale: set UPDATE_DOCS=1 and run this test again"
    );
}

#[test]
fn the_page_has_every_table() {
    let schema = schema();
    let tables = schema.pointer("/properties").and_then(Value::as_object);
    for table in tables.unwrap().keys() {
        let place = format!("/properties/{table}");
        let has = TABLES.iter().any(|(_, listed)| {
            let rest = listed.strip_prefix(&place);
            rest.is_some_and(|rest| rest.is_empty() || rest == "/items")
        });
        assert!(has, "TABLES lacks {table}");
    }
}

fn page(schema: &Value) -> String {
    let mut page = HEAD.to_owned();
    for (name, place) in TABLES {
        let table = schema.pointer(place).unwrap();
        let title = name
            .strip_prefix('[')
            .map_or(name.to_owned(), |_| format!("`{name}`"));
        let _ = writeln!(page, "## {title}\n\n{}\n", text(table));
        keys(&mut page, table);
        example(&mut page, name, table);
    }
    page.push_str(
        "## Steps of a `pipeline`\n\nA step is a table with `transform`, its name, and its own keys \
         ([what steps do](pipelines.md)).\n\n",
    );
    for step in schema.pointer(STEPS).and_then(Value::as_array).unwrap() {
        let name = name_of(step);
        let _ = writeln!(page, "### `{name}`\n\n{}\n", text(step));
        keys(&mut page, step);
        let mut keys = String::new();
        for (key, value) in first_example(step).into_iter().flatten() {
            let _ = write!(keys, ", {key} = {}", toml(value));
        }
        let _ = writeln!(
            page,
            "```toml\npipeline = [{{ transform = \"{name}\"{keys} }}]\n```\n"
        );
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

/// A table of a table's keys: those that are needed first.
fn keys(page: &mut String, table: &Value) {
    let Some(properties) = table.get("properties").and_then(Value::as_object) else {
        return;
    };
    let is_needed = |key: &str| {
        let required = table.get("required").and_then(Value::as_array);
        required.is_some_and(|keys| keys.iter().any(|needed| needed == key))
    };
    let mut rows: Vec<_> = properties
        .iter()
        .filter(|(key, _)| *key != "transform")
        .collect();
    rows.sort_by_key(|(key, _)| (*key != "name", !is_needed(key)));
    if rows.is_empty() {
        page.push_str("No keys.\n\n");
        return;
    }
    page.push_str("| key | type | default | meaning |\n| --- | --- | --- | --- |\n");
    for (key, property) in rows {
        let default = match property.get("default") {
            _ if is_needed(key) => "needed".to_owned(),
            Some(default) if !is_empty(default) => format!("`{}`", toml(default)),
            _ => String::new(),
        };
        let mut meaning = text(property);
        if let Some(each) = property.pointer("/additionalProperties/properties") {
            let each = each.as_object().into_iter().flatten();
            let each =
                each.map(|(key, inner)| format!("`{key}` ({}): {}", kind(inner), text(inner)));
            let _ = write!(
                meaning,
                " Keys of each: {}",
                each.collect::<Vec<_>>().join(" ")
            );
        }
        let values = values(property);
        if values.iter().any(|(_, says)| !says.is_empty()) {
            let listed = values.iter().map(|(value, says)| match says.is_empty() {
                true => format!("`{value}`"),
                false => format!("`{value}`: {}", inner(says)),
            });
            let _ = write!(meaning, " {}.", listed.collect::<Vec<_>>().join("; "));
        }
        if let Some(example) = property.pointer("/examples/0") {
            let _ = write!(meaning, " Example: `{key} = {}`.", toml(example));
        }
        let cells = [format!("`{key}`"), kind(property), default, meaning];
        let _ = writeln!(
            page,
            "| {} |",
            cells.map(|cell| cell.replace('|', "\\|")).join(" | ")
        );
    }
    page.push('\n');
}

/// A table that a user could write.
fn example(page: &mut String, name: &str, table: &Value) {
    let Some(example) = first_example(table) else {
        return;
    };
    page.push_str("```toml\n");
    match name.strip_prefix('[') {
        Some(_) => {
            let _ = writeln!(page, "{name}");
            let mut lines: Vec<_> = example.iter().collect();
            lines.sort_by_key(|(key, _)| *key != "name");
            for (key, value) in lines {
                let _ = writeln!(page, "{key} = {}", toml(value));
            }
        }
        None => {
            let key = name.split('`').nth(1).unwrap_or_default();
            let _ = writeln!(page, "{key} = {}", toml(&Value::Object(example.clone())));
        }
    }
    page.push_str("```\n\n");
}

pub(super) fn first_example(table: &Value) -> Option<&Map<String, Value>> {
    table.pointer("/examples/0")?.as_object()
}

/// The description in one line. The longer part of it, behind an empty line, too.
fn text(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str);
    let paragraphs = text.unwrap_or_default().split("\n\n");
    let lines = paragraphs.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join(" ")
}

/// A sentence within another.
fn inner(says: &str) -> String {
    let says = says.trim_end_matches('.');
    let mut chars = says.chars();
    match (chars.next(), chars.next()) {
        (Some(first), Some(second)) if second.is_ascii_lowercase() || second == ' ' => {
            let rest = says.get(first.len_utf8()..).unwrap_or_default();
            format!("{}{rest}", first.to_lowercase())
        }
        _ => says.to_owned(),
    }
}

/// Describes the values that a key takes, with their bounds.
fn kind(property: &Value) -> String {
    let of = |key: &str| property.get(key);
    if let Some(choices) = of("anyOf").and_then(Value::as_array) {
        return choices.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    let values = values(property);
    if !values.is_empty() {
        return listed(&values);
    }
    let name = match (
        of("title").and_then(Value::as_str),
        of("type").and_then(Value::as_str),
    ) {
        (Some(title), _) => title.to_owned(),
        (None, Some("array")) => match of("items") {
            Some(items) if !self::values(items).is_empty() => {
                format!("list of {}", listed(&self::values(items)))
            }
            Some(items) => format!("list of {}s", kind(items)),
            None => "list".to_owned(),
        },
        (None, Some("object")) => "table".to_owned(),
        (None, Some(name)) => name.to_owned(),
        (None, None) => String::new(),
    };
    let number = |key: &str| of(key).map(toml);
    let (from, to) = (
        number("minimum").or_else(|| number("x-min")),
        number("maximum").or_else(|| number("x-max")),
    );
    let bounds = match (from, number("exclusiveMinimum"), to) {
        (Some(from), _, Some(to)) => format!(", {from} to {to}"),
        (Some(from), _, None) if from == "0" => String::new(),
        (Some(from), _, None) => format!(", {from} or more"),
        (None, Some(above), Some(to)) => format!(", above {above}, up to {to}"),
        (None, _, Some(to)) => format!(", up to {to}"),
        (None, _, None) => String::new(),
    };
    let length = match (of("maxLength"), of("maxItems")) {
        (Some(most), _) => format!(", up to {most} bytes"),
        (None, Some(most)) => format!(", up to {most}"),
        (None, None) => String::new(),
    };
    name + &bounds.replace('"', "") + &length
}

fn listed(values: &[(String, String)]) -> String {
    let values: Vec<_> = values
        .iter()
        .map(|(value, _)| format!("`{value}`"))
        .collect();
    values.join(", ")
}

/// Values that a key may have, each with what it means, if they can be counted.
fn values(property: &Value) -> Vec<(String, String)> {
    let named = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if let Some(values) = property.get("enum").and_then(Value::as_array) {
        return values
            .iter()
            .map(|value| (named(value), String::new()))
            .collect();
    }
    let choices = property.get("oneOf").and_then(Value::as_array);
    let choices = choices.into_iter().flatten();
    choices
        .filter_map(|choice| Some((named(choice.get("const")?), text(choice))))
        .collect()
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// A value as TOML, in one line.
pub(super) fn toml(value: &Value) -> String {
    match value {
        Value::Object(table) => {
            let keys = table.iter().map(|(key, value)| {
                let plain = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
                let key = if plain {
                    key.clone()
                } else {
                    format!("{key:?}")
                };
                format!("{key} = {}", toml(value))
            });
            format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
        }
        Value::Array(values) => {
            format!(
                "[{}]",
                values.iter().map(toml).collect::<Vec<_>>().join(", ")
            )
        }
        other => other.to_string(),
    }
}
