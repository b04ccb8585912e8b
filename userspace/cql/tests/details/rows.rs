//! A result as cassandra-protocol writes it.

use cassandra_protocol::frame::message_result::{
    BodyResResultRows, CTuple, CUdt, ColSpec, ColType, ColTypeOption, ColTypeOptionValue,
    ResResultBody, RowsMetadata, RowsMetadataFlags, TableSpec,
};
use cassandra_protocol::frame::{Serialize, Version};
use cassandra_protocol::types::{CBytes, CBytesShort};

pub fn version(version: u8) -> Version {
    match version {
        3 => Version::V3,
        4 => Version::V4,
        _ => Version::V5,
    }
}

/// A result with a column of every shape of type.
pub fn rows_body(
    version: Version,
    rows: i32,
    metadata: bool,
    global: bool,
    more: bool,
    changed: bool,
) -> Vec<u8> {
    let table = TableSpec {
        ks_name: "ks".into(),
        table_name: "t".into(),
    };
    let plain = |id| ColTypeOption { id, value: None };
    let of = |id, value| ColTypeOption {
        id,
        value: Some(value),
    };
    let int = || Box::new(plain(ColType::Int));
    let list = of(ColType::List, ColTypeOptionValue::CList(int()));
    let types = vec![
        plain(ColType::Varchar),
        of(ColType::Custom, ColTypeOptionValue::CString("class".into())),
        of(
            ColType::Set,
            ColTypeOptionValue::CSet(Box::new(list.clone())),
        ),
        of(
            ColType::Map,
            ColTypeOptionValue::CMap(int(), Box::new(list.clone())),
        ),
        of(
            ColType::Udt,
            ColTypeOptionValue::UdtType(CUdt {
                ks: "ks".into(),
                udt_name: "u".into(),
                descriptions: vec![("f".into(), list.clone()), ("g".into(), *int())],
            }),
        ),
        of(
            ColType::Tuple,
            ColTypeOptionValue::TupleType(CTuple {
                types: vec![list, *int()],
            }),
        ),
    ];
    let columns_count = types.len() as i32;
    let mut flags = RowsMetadataFlags::empty();
    flags.set(RowsMetadataFlags::GLOBAL_TABLE_SPACE, global);
    flags.set(RowsMetadataFlags::HAS_MORE_PAGES, more);
    flags.set(RowsMetadataFlags::NO_METADATA, !metadata);
    flags.set(RowsMetadataFlags::METADATA_CHANGED, changed);
    let column = |(at, col_type)| ColSpec {
        table_spec: (!global).then(|| table.clone()),
        name: format!("c{at}"),
        col_type,
    };
    let metadata = RowsMetadata {
        flags,
        columns_count,
        paging_state: more.then(|| CBytes::new(vec![1; 40])),
        new_metadata_id: changed.then(|| CBytesShort::new(vec![2; 16])),
        global_table_spec: (metadata && global).then(|| table.clone()),
        col_specs: match metadata {
            true => types.into_iter().enumerate().map(column).collect(),
            false => Vec::new(),
        },
    };
    let row = vec![CBytes::new(b"x".to_vec()); columns_count as usize];
    let rows = BodyResResultRows {
        metadata,
        rows_count: rows,
        rows_content: vec![row; rows as usize],
        protocol_version: version,
    };
    ResResultBody::Rows(rows).serialize_to_vec(version)
}
