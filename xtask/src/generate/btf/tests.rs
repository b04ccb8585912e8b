//! Small dumps, written by hand in bpftool's form.

use serde_json::json;

use super::*;

/// The integers and typedefs that every dump below uses, plus the types of the case.
fn dump(types: Value) -> Vec<u8> {
    let mut all = json!([
        {"id": 1, "kind": "INT", "name": "unsigned char", "size": 1, "encoding": "(none)"},
        {"id": 2, "kind": "TYPEDEF", "name": "__u8", "type_id": 1},
        {"id": 3, "kind": "INT", "name": "unsigned short", "size": 2, "encoding": "(none)"},
        {"id": 4, "kind": "TYPEDEF", "name": "__u16", "type_id": 3},
        {"id": 5, "kind": "TYPEDEF", "name": "__be16", "type_id": 4},
        {"id": 6, "kind": "INT", "name": "long long", "size": 8, "encoding": "SIGNED"},
        {"id": 7, "kind": "INT", "name": "_Bool", "size": 1, "encoding": "BOOL"},
        {"id": 8, "kind": "ARRAY", "name": "(anon)", "type_id": 2, "index_type_id": 3, "nr_elems": 3},
        {"id": 9, "kind": "ARRAY", "name": "(anon)", "type_id": 8, "index_type_id": 3, "nr_elems": 2},
        {"id": 10, "kind": "PTR", "name": "(anon)", "type_id": 2},
        {"id": 11, "kind": "UNION", "name": "other", "size": 1, "members": []},
    ]);
    let list = all.as_array_mut().unwrap();
    list.extend(types.as_array().unwrap().iter().cloned());
    serde_json::to_vec(&json!({ "types": all })).unwrap()
}

/// A struct `up_made` of these (name, type, offset in bits), with id 20.
fn made(size: u64, members: &[(&str, u64, u64)]) -> Value {
    let members: Vec<Value> = members
        .iter()
        .map(|(name, id, bits)| json!({"name": name, "type_id": id, "bits_offset": bits}))
        .collect();
    json!({"id": 20, "kind": "STRUCT", "name": "up_made", "size": size, "members": members})
}

fn refusal(types: Value) -> String {
    format!("{:#}", parse(&dump(types)).unwrap_err())
}

#[test]
fn fields_keep_order_offset_and_both_names_of_the_type() {
    let outer = json!({"id": 21, "kind": "STRUCT", "name": "up_outer_one", "size": 16, "members": [
        {"name": "signed", "type_id": 6, "bits_offset": 0},
        {"name": "inner", "type_id": 20, "bits_offset": 64},
    ]});
    let inner = made(8, &[("port_be", 5, 0), ("grid", 9, 16)]);
    let abi = parse(&dump(json!([outer, inner]))).unwrap();
    let seen: Vec<_> = abi
        .structs
        .iter()
        .flat_map(|s| &s.fields)
        .map(|f| {
            (
                f.name.as_str(),
                f.offset,
                f.rust_type.as_str(),
                f.c_type.as_str(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("signed", 0, "i64", "long long"),
            ("inner", 8, "Made", "struct up_made"),
            ("port_be", 0, "u16", "__be16"),
            ("grid", 2, "[[u8; 3]; 2]", "__u8[2][3]"),
        ]
    );
}

#[test]
fn enum_members_lose_their_prefix() {
    let limits = json!({"id": 21, "kind": "ENUM", "name": "up_limit", "encoding": "UNSIGNED",
        "size": 4, "values": [{"name": "UP_MAX_RULES", "val": 1024}]});
    let abi = parse(&dump(json!([limits, made(1, &[("a", 2, 0)])]))).unwrap();
    assert_eq!(abi.enums[0].members, [("MAX_RULES".to_owned(), 1024)]);
}

#[test]
fn implicit_padding_is_refused() {
    let hole = refusal(json!([made(4, &[("a", 2, 0), ("b", 4, 16)])]));
    assert!(
        hole.contains("1 bytes of implicit padding before b"),
        "{hole}"
    );
    let end = refusal(json!([made(4, &[("a", 4, 0), ("b", 2, 16)])]));
    assert!(
        end.contains("1 bytes of implicit padding at the end"),
        "{end}"
    );
}

#[test]
fn what_rust_cannot_hold_is_refused_by_name() {
    for (id, word) in [(7, "_Bool"), (10, "PTR"), (11, "UNION")] {
        let text = refusal(json!([made(1, &[("odd", id, 0)])]));
        assert!(
            text.contains("struct up_made: field odd") && text.contains(word),
            "{text}"
        );
    }
    let text = refusal(json!([made(1, &[("type", 2, 0)])]));
    assert!(text.contains("keyword"), "{text}");
    let text = refusal(json!([{"id": 20, "kind": "UNION", "name": "up_u", "size": 1}]));
    assert!(text.contains("up_u is a UNION"), "{text}");
    let bits = json!({"id": 20, "kind": "STRUCT", "name": "up_made", "size": 1, "members": [
        {"name": "flag", "type_id": 2, "bits_offset": 0, "bitfield_size": 1}]});
    assert!(refusal(json!([bits])).contains("bit fields"));
    let negative = json!({"id": 20, "kind": "ENUM", "name": "up_e", "size": 4,
        "values": [{"name": "UP_X", "val": -1}]});
    assert!(refusal(json!([negative])).contains("UP_X does not fit"));
}

#[test]
fn a_cycle_of_typedefs_ends() {
    let text = refusal(json!([
        made(1, &[("round", 21, 0)]),
        {"id": 21, "kind": "TYPEDEF", "name": "a", "type_id": 22},
        {"id": 22, "kind": "TYPEDEF", "name": "b", "type_id": 21},
    ]));
    assert!(text.contains("nested too deeply"), "{text}");
}

#[test]
fn an_empty_dump_is_an_error() {
    assert!(parse(&dump(json!([]))).is_err());
    assert!(parse(b"{}").is_err());
    assert!(parse(b"").is_err());
}

#[test]
fn camel_case_of_names() {
    assert_eq!(camel_case("up_target_key"), "TargetKey");
    assert_eq!(camel_case("up_leg"), "Leg");
}
