//! The compiled objects' own type information (BTF) says the same as `abi.rs`: sizes and
//! offsets, for every struct that the programs share with the agent.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::{collections::HashMap, io::Write, process::Command};

use ebpf::abi;
use serde_json::Value;

/// `bpftool btf dump` of an object: struct name → (size, field → offset).
fn layouts_in_btf(name: &str, object: &[u8]) -> HashMap<String, (u64, HashMap<String, u64>)> {
    let path = std::env::temp_dir().join(format!("{name}-layout-{}.o", std::process::id()));
    std::fs::File::create(&path)
        .unwrap()
        .write_all(object)
        .unwrap();
    let dump = Command::new("bpftool")
        .args(["-j", "btf", "dump", "file"])
        .arg(&path)
        .output();
    std::fs::remove_file(&path).unwrap();
    let dump = dump.expect("bpftool is there: `cargo xtask setup` installs it");
    assert!(
        dump.status.success(),
        "{}",
        String::from_utf8_lossy(&dump.stderr)
    );
    let btf: Value = serde_json::from_slice(&dump.stdout).unwrap();
    let structs = btf["types"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|t| t["kind"] == "STRUCT");
    structs
        .map(|t| {
            let members = t["members"].as_array().unwrap().iter();
            let fields = members.map(|m| {
                let name = m["name"].as_str().unwrap().to_owned();
                (name, m["bits_offset"].as_u64().unwrap() / 8)
            });
            let name = t["name"].as_str().unwrap().to_owned();
            (name, (t["size"].as_u64().unwrap(), fields.collect()))
        })
        .collect()
}

/// Compares what both know, of which `needed` must be a part.
fn agree(name: &str, object: &[u8], needed: &[&str]) {
    let in_btf = layouts_in_btf(name, object);
    for (name, size, fields) in abi::LAYOUT {
        let Some((btf_size, btf_fields)) = in_btf.get(*name) else {
            continue;
        };
        assert_eq!(*size as u64, *btf_size, "{name}");
        assert_eq!(fields.len(), btf_fields.len(), "{name}");
        for (field, offset) in *fields {
            assert_eq!(
                btf_fields.get(*field),
                Some(&(*offset as u64)),
                "{name}.{field}"
            );
        }
    }
    let known = |needed: &&str| abi::LAYOUT.iter().any(|(name, ..)| name == needed);
    for needed in needed {
        assert!(in_btf.contains_key(*needed), "{needed} is not in {name}");
        assert!(known(needed), "{needed} is not in abi.rs");
    }
}

/// Each map's key and value types, and what travels through the ring.
#[test]
fn the_object_and_the_agent_agree_on_every_layout() {
    let needed = [
        "up_agent_settings",
        "up_policy",
        "up_flow",
        "up_connect",
        "up_release",
        "up_target_key",
        "up_rule",
        "up_endpoint",
        "up_remembered",
        "up_meter",
        "up_splice",
        "up_shortcut_end",
    ];
    agree("underpass", ebpf::OBJECT, &needed);
}

#[test]
fn the_edge_and_the_agent_agree_on_every_layout() {
    let needed = [
        "up_edge_settings",
        "up_edge_scheme",
        "up_edge_network4",
        "up_edge_network6",
        "up_edge_port",
        "up_edge_root",
        "up_edge_block",
        "up_edge_lengths",
        "up_edge_bucket",
        "up_edge_line",
        "up_edge_rule",
        "up_edge_rule_count",
        "up_edge_interface",
        "up_edge_source",
        "up_edge_backend",
        "up_edge_turns",
        "up_edge_tuple",
        "up_edge_flow",
    ];
    agree("edge", ebpf::EDGE_OBJECT, &needed);
}
