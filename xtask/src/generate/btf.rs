//! The types named `up_*`, out of `bpftool btf dump -j`.
//!
//! Refused, because the other side of the ABI could not hold it safely: unions, bit fields,
//! pointers, floats, implicit padding, constants beyond u32.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Types and names that are ours start with this; constants with its upper case.
const PREFIX: &str = "up_";
const CONSTANT_PREFIX: &str = "UP_";
/// Names that Rust cannot use for a field as they are (those that C can).
const KEYWORDS: [&str; 24] = [
    "as", "async", "await", "crate", "dyn", "fn", "impl", "in", "let", "loop", "match", "mod",
    "move", "mut", "pub", "ref", "self", "super", "trait", "true", "type", "unsafe", "use",
    "where",
];
/// Typedefs, qualifiers, arrays and structs around one another in one field; far above need,
/// but BTF may be cyclic.
const MAX_DEPTH: usize = 16;

/// All of abi.h, in the order in which abi.c mentions it.
#[derive(Debug, Default)]
pub struct Abi {
    /// Each `enum up_*`.
    pub enums: Vec<Enum>,
    /// Each `struct up_*`.
    pub structs: Vec<Struct>,
}

/// `enum up_*`.
#[derive(Debug)]
pub struct Enum {
    /// The name in C.
    pub c_name: String,
    /// The members, without `UP_`.
    pub members: Vec<(String, u32)>,
}

/// A `struct up_*`.
#[derive(Debug)]
pub struct Struct {
    /// The name in C.
    pub c_name: String,
    /// The size in bytes.
    pub size: usize,
    /// The fields by offset; they fill the struct.
    pub fields: Vec<Field>,
}

/// A member of a struct.
#[derive(Debug)]
pub struct Field {
    /// The name, the same in C and Rust.
    pub name: String,
    /// The offset in bytes.
    pub offset: usize,
    /// The type in Rust: `u16`, `[[u8; 3]; 2]`, `Endpoint`.
    pub rust_type: String,
    /// The type as C spells it, typedefs and all: it tells `__be16` from `__u16`.
    pub c_type: String,
}

/// A type resolved as far as a field needs it.
struct Resolved {
    rust: String,
    c: String,
    size: usize,
}

/// Parses bpftool's JSON. An error names the type that cannot be had in Rust.
pub fn parse(json: &[u8]) -> Result<Abi> {
    let dump: Value = serde_json::from_slice(json).context("bpftool printed no JSON")?;
    let list = dump.get("types").and_then(Value::as_array);
    let types = list.context("no `types` in bpftool's output")?;
    let mut by_id = BTreeMap::new();
    for one in types {
        by_id.insert(number(one, "id")?, one);
    }
    let types_by_id = Types(by_id);
    let mut abi = Abi::default();
    for one in types {
        let name = name(one);
        if !name.starts_with(PREFIX) {
            continue;
        }
        match kind(one) {
            "ENUM" => abi
                .enums
                .push(parse_enum(one).with_context(|| format!("enum {name}"))?),
            "STRUCT" => abi.structs.push(
                types_by_id
                    .parse_struct(one)
                    .with_context(|| format!("struct {name}"))?,
            ),
            other => bail!("{name} is a {other}; only structs and enums may be named {PREFIX}*"),
        }
    }
    ensure!(!abi.structs.is_empty(), "no struct {PREFIX}* in the BTF");
    Ok(abi)
}

fn parse_enum(one: &Value) -> Result<Enum> {
    let mut members = Vec::new();
    for member in array(one, "values")? {
        let c_name = name(member);
        let short = c_name.strip_prefix(CONSTANT_PREFIX);
        let short = short.with_context(|| format!("{c_name} does not start with UP_"))?;
        let value = number(member, "val").and_then(|n| Ok(u32::try_from(n)?));
        members.push((
            short.to_owned(),
            value.with_context(|| format!("{c_name} does not fit into u32"))?,
        ));
    }
    Ok(Enum {
        c_name: name(one).to_owned(),
        members,
    })
}

/// The types by BTF id.
struct Types<'a>(BTreeMap<u64, &'a Value>);

impl Types<'_> {
    fn parse_struct(&self, one: &Value) -> Result<Struct> {
        let size = size(one, "size")?;
        let mut fields = Vec::new();
        let mut end = 0;
        for member in array(one, "members")? {
            let name = name(member);
            let (field, field_size) = self
                .parse_field(member)
                .with_context(|| format!("field {name}"))?;
            ensure!(
                field.offset == end,
                "{} bytes of implicit padding before {name}: make them a field",
                field.offset.saturating_sub(end)
            );
            end = field.offset + field_size;
            fields.push(field);
        }
        ensure!(
            end == size,
            "{} bytes of implicit padding at the end: make them a field",
            size.saturating_sub(end)
        );
        Ok(Struct {
            c_name: name(one).to_owned(),
            size,
            fields,
        })
    }

    /// The field and its size.
    fn parse_field(&self, member: &Value) -> Result<(Field, usize)> {
        let name = name(member);
        ensure!(
            !name.is_empty(),
            "it has no name: give its members to the struct itself"
        );
        ensure!(
            !KEYWORDS.contains(&name),
            "Rust has this as a keyword: rename it"
        );
        let is_bitfield = member
            .get("bitfield_size")
            .and_then(Value::as_u64)
            .unwrap_or(0)
            != 0;
        let bits = size(member, "bits_offset")?;
        ensure!(
            !is_bitfield && bits % 8 == 0,
            "bit fields are not supported"
        );
        let resolved = self.resolve(number(member, "type_id")?, MAX_DEPTH)?;
        let field = Field {
            name: name.to_owned(),
            offset: bits / 8,
            rust_type: resolved.rust,
            c_type: resolved.c,
        };
        Ok((field, resolved.size))
    }

    fn resolve(&self, id: u64, depth: usize) -> Result<Resolved> {
        let depth = depth
            .checked_sub(1)
            .context("types are nested too deeply")?;
        let one = *self
            .0
            .get(&id)
            .with_context(|| format!("no type with id {id}"))?;
        match kind(one) {
            "INT" => resolve_int(one),
            // An enum as a field is the number that it is on the wire.
            "ENUM" => Ok(Resolved {
                c: format!("enum {}", name(one)),
                ..resolve_sized(one, "u")?
            }),
            "TYPEDEF" => {
                let inner = self.resolve(number(one, "type_id")?, depth)?;
                Ok(Resolved {
                    c: name(one).to_owned(),
                    ..inner
                })
            }
            "CONST" | "VOLATILE" | "TYPE_TAG" => self.resolve(number(one, "type_id")?, depth),
            "ARRAY" => {
                let element = self.resolve(number(one, "type_id")?, depth)?;
                let count = size(one, "nr_elems")?;
                // C writes the outer dimension first: [2][3] is 2 arrays of 3.
                let (base, dimensions) = split_c_array(&element.c);
                Ok(Resolved {
                    rust: format!("[{}; {count}]", element.rust),
                    c: format!("{base}[{count}]{dimensions}"),
                    size: element.size * count,
                })
            }
            "STRUCT" if name(one).starts_with(PREFIX) => Ok(Resolved {
                rust: camel_case(name(one)),
                c: format!("struct {}", name(one)),
                size: size(one, "size")?,
            }),
            other => bail!("{other} {} is not supported", name(one)),
        }
    }
}

fn resolve_int(one: &Value) -> Result<Resolved> {
    match one.get("encoding").and_then(Value::as_str) {
        Some("SIGNED") => resolve_sized(one, "i"),
        Some("(none)" | "CHAR") => resolve_sized(one, "u"),
        // A C bool written as 2 would be undefined behaviour as a Rust one.
        other => bail!(
            "{} ({}) is not supported: take __u8",
            name(one),
            other.unwrap_or("?")
        ),
    }
}

fn resolve_sized(one: &Value, sign: &str) -> Result<Resolved> {
    let size = size(one, "size")?;
    ensure!(
        matches!(size, 1 | 2 | 4 | 8),
        "{} has {size} bytes",
        name(one)
    );
    Ok(Resolved {
        rust: format!("{sign}{}", size * 8),
        c: name(one).to_owned(),
        size,
    })
}

fn split_c_array(c_type: &str) -> (&str, &str) {
    let at = c_type.find('[').unwrap_or(c_type.len());
    c_type.split_at(at)
}

/// `up_target_key` becomes `TargetKey`.
pub fn camel_case(c_name: &str) -> String {
    let words = c_name.strip_prefix(PREFIX).unwrap_or(c_name).split('_');
    words
        .flat_map(|word| {
            let mut letters = word.chars();
            letters
                .next()
                .map(|first| first.to_ascii_uppercase())
                .into_iter()
                .chain(letters)
        })
        .collect()
}

fn kind(one: &Value) -> &str {
    one.get("kind").and_then(Value::as_str).unwrap_or_default()
}

fn name(one: &Value) -> &str {
    one.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn number(one: &Value, key: &str) -> Result<u64> {
    let value = one.get(key).and_then(Value::as_u64);
    value.with_context(|| format!("no number `{key}` in {one}"))
}

fn size(one: &Value, key: &str) -> Result<usize> {
    Ok(usize::try_from(number(one, key)?)?)
}

fn array<'a>(one: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    let value = one.get(key).and_then(Value::as_array);
    value.with_context(|| format!("no list `{key}` in {one}"))
}

#[cfg(test)]
mod tests;
