//! JSON Schema of the policy file, for editors and for `docs/config.md`.
//!
//! The types that read the file ([`super::raw`], the settings of each step) are the schema, too, so that neither knows a
//! key that the other does not. `tests.rs` holds what the schema says of a key against what the parser does with it;
//! `page.rs` writes `docs/config.md`, `crd.rs` the CRDs of the chart, and `to.rs` what these say of destinations.

#[cfg(test)]
mod crd;
#[cfg(test)]
mod page;
#[cfg(test)]
pub(super) mod tests;
#[cfg(test)]
mod to;

use std::borrow::Cow;

use cql_edit::transforms;
use schemars::{
    JsonSchema, Schema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{Transform, transform_subschemas},
};
use serde_json::{Value, json};
use steps::{effects, lookup, protect, reporters};

use super::raw::RawConfig;

/// JSON Schema (draft 7, which most editors read) of the policy file.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft07()
        .with(|settings| settings.inline_subschemas = true)
        .with_transform(Plain);
    settings
        .into_generator()
        .into_root_schema_for::<RawConfig>()
        .to_value()
}

/// A step of a pipeline: the schemas of all steps, each with its name in `transform`.
pub(super) struct Step;

impl JsonSchema for Step {
    fn schema_name() -> Cow<'static, str> {
        "Step".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let listed = [
            transforms::TransformSettings::json_schema(generator),
            effects::EffectSettings::json_schema(generator),
            reporters::ReporterSettings::json_schema(generator),
            Unlisted::json_schema(generator),
        ];
        let mut steps: Vec<Value> = listed
            .iter()
            .filter_map(|steps| steps.get("oneOf")?.as_array())
            .flatten()
            .cloned()
            .collect();
        steps.sort_by_key(|step| name_of(step).to_owned());
        let mut schema = Schema::default();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("required".to_owned(), json!(["transform"]));
        schema.insert("oneOf".to_owned(), Value::Array(steps));
        schema
    }
}

/// Steps that are in no list: their settings have no `transform` of their own.
#[derive(JsonSchema)]
#[schemars(tag = "transform", rename_all = "snake_case")]
#[expect(dead_code, reason = "only the schema is made of it")]
enum Unlisted {
    Lookup(lookup::LookupSettings),
    Protect(protect::ProtectSettings),
}

/// The name of the step that a schema describes.
fn name_of(step: &Value) -> &str {
    let name = step.pointer("/properties/transform/const");
    name.and_then(Value::as_str).unwrap_or_default()
}

/// Takes out what Rust's types say and a TOML file cannot: null, and the widths of integers.
#[derive(Clone, Debug)]
struct Plain;

impl Transform for Plain {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(object) = schema.as_object_mut() else {
            return;
        };
        object.remove("format");
        if let Some(Value::Array(types)) = object.get_mut("type") {
            types.retain(|kind| kind != "null");
            if let [only] = &types[..] {
                let only = only.clone();
                object.insert("type".to_owned(), only);
            }
        }
        if let Some(Value::Array(values)) = object.get_mut("enum") {
            values.retain(|value| !value.is_null());
        }
        if object.get("default").is_some_and(Value::is_null) {
            object.remove("default");
        }
        let Some(Value::Array(choices)) = object.get_mut("anyOf") else {
            return;
        };
        choices.retain(|choice| choice.get("type") != Some(&json!("null")));
        if let [Value::Object(only)] = &choices[..] {
            let only = only.clone();
            object.remove("anyOf");
            for (key, value) in only {
                object.entry(key).or_insert(value);
            }
        }
    }
}
