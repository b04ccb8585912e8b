//! The bodies of responses (`native_protocol_v5.spec`, section 4.2).

use super::body::{put_bytes, put_count, put_i32, put_short_bytes, put_string, put_u16};
use super::failure::{Detail, Failure};
use super::schema::TableDef;
use super::scylla::Asked;
use super::types::{CqlType, Native};

pub(super) const ERROR: u8 = 0x00;
pub(super) const READY: u8 = 0x02;
pub(super) const AUTHENTICATE: u8 = 0x03;
pub(super) const SUPPORTED: u8 = 0x06;
pub(super) const RESULT: u8 = 0x08;
pub(super) const EVENT: u8 = 0x0C;
pub(super) const AUTH_SUCCESS: u8 = 0x10;

const KIND_VOID: i32 = 1;
const KIND_ROWS: i32 = 2;
const KIND_SET_KEYSPACE: i32 = 3;
const KIND_PREPARED: i32 = 4;
const KIND_SCHEMA_CHANGE: i32 = 5;

const GLOBAL_TABLES_SPEC: i32 = 0x01;
const HAS_MORE_PAGES: i32 = 0x02;
const NO_METADATA: i32 = 0x04;
const METADATA_CHANGED: i32 = 0x08;

/// A column of a result, or a marker of a statement.
#[derive(Debug, Clone)]
pub(super) struct ColumnSpec {
    pub(super) name: String,
    pub(super) cql_type: CqlType,
}

/// Metadata of a result, encoded once.
#[derive(Debug, Clone, Default)]
pub(super) struct Metadata {
    pub(super) count: usize,
    /// `<global_table_spec><col_spec_1>…`
    encoded: Vec<u8>,
    pub(super) id: [u8; 16],
}

impl Metadata {
    pub(super) fn new(keyspace: &str, table: &str, columns: &[ColumnSpec]) -> Self {
        let mut encoded = Vec::new();
        put_string(&mut encoded, keyspace);
        put_string(&mut encoded, table);
        for column in columns {
            put_string(&mut encoded, &column.name);
            column.cql_type.put_option(&mut encoded);
        }
        let id = super::schema::digest(&[&encoded]);
        Self {
            count: columns.len(),
            encoded,
            id,
        }
    }

    pub(super) fn of_table(def: &TableDef, columns: &[ColumnSpec]) -> Self {
        Self::new(&def.keyspace, &def.name, columns)
    }
}

/// How the metadata of a Rows result is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetadataMode {
    Full,
    Skip,
    /// v5: the client's idea of it is out of date.
    Changed,
}

/// A Rows result under way: metadata with room for the paging state, then rows.
#[derive(Debug)]
pub(super) struct RowsWriter {
    flags_at: usize,
    count_at: usize,
    rows: usize,
}

impl RowsWriter {
    pub(super) fn begin(out: &mut Vec<u8>, metadata: &Metadata, mode: MetadataMode) -> Self {
        put_i32(out, KIND_ROWS);
        let flags_at = out.len();
        let flags = match mode {
            MetadataMode::Full => GLOBAL_TABLES_SPEC,
            MetadataMode::Skip => NO_METADATA,
            MetadataMode::Changed => GLOBAL_TABLES_SPEC | METADATA_CHANGED,
        };
        put_i32(out, flags);
        put_count(out, metadata.count);
        if mode == MetadataMode::Changed {
            put_short_bytes(out, &metadata.id);
        }
        if mode != MetadataMode::Skip {
            out.extend_from_slice(&metadata.encoded);
        }
        let count_at = out.len();
        put_i32(out, 0);
        Self {
            flags_at,
            count_at,
            rows: 0,
        }
    }

    pub(super) fn row<'a>(
        &mut self,
        out: &mut Vec<u8>,
        cells: impl Iterator<Item = Option<&'a [u8]>>,
    ) {
        self.rows += 1;
        cells.for_each(|cell| put_bytes(out, cell));
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Writes the row count, and if there are more pages, the state to ask for them with.
    pub(super) fn finish(self, out: &mut Vec<u8>, paging_state: Option<&[u8]>) {
        let rows = i32::try_from(self.rows).unwrap_or(i32::MAX);
        if let Some(field) = out.get_mut(self.count_at..self.count_at + 4) {
            field.copy_from_slice(&rows.to_be_bytes());
        }
        let Some(state) = paging_state else { return };
        // The state stands between the column count and the rest; whether there is one is
        // known only now. Moving a page's bytes once costs less than encoding rows twice.
        let state_at = self.flags_at + 8;
        let mut encoded = Vec::with_capacity(state.len() + 4);
        put_bytes(&mut encoded, Some(state));
        out.splice(state_at..state_at, encoded);
        let has_more = u8::try_from(HAS_MORE_PAGES).unwrap_or(0);
        if let Some(low_byte) = out.get_mut(self.flags_at + 3) {
            *low_byte |= has_more;
        }
    }
}

pub(super) fn put_void(out: &mut Vec<u8>) {
    put_i32(out, KIND_VOID);
}

pub(super) fn put_set_keyspace(out: &mut Vec<u8>, keyspace: &str) {
    put_i32(out, KIND_SET_KEYSPACE);
    put_string(out, keyspace);
}

/// `[applied]`, and when a condition did not hold, the row as it is.
pub(super) fn put_applied(
    out: &mut Vec<u8>,
    def: &TableDef,
    existing: Option<&[Option<Box<[u8]>>]>,
    applied: bool,
) {
    let boolean = CqlType::Native(Native::Boolean);
    let mut columns = vec![ColumnSpec {
        name: "[applied]".into(),
        cql_type: boolean,
    }];
    if existing.is_some() {
        columns.extend(def.columns.iter().map(|c| ColumnSpec {
            name: c.name.clone(),
            cql_type: c.cql_type.clone(),
        }));
    }
    let mut rows = RowsWriter::begin(out, &Metadata::of_table(def, &columns), MetadataMode::Full);
    let applied = [u8::from(applied)];
    let cells = existing.unwrap_or_default().iter().map(|c| c.as_deref());
    rows.row(out, std::iter::once(Some(&applied[..])).chain(cells));
    rows.finish(out, None);
}

/// A prepared statement, as its client is told of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreparedResult<'a> {
    pub(super) id: &'a [u8; 16],
    /// The bind markers.
    pub(super) markers: &'a Metadata,
    /// The markers that make up the partition key, in its order.
    pub(super) key_markers: &'a [u16],
    /// Columns of the rows; empty for all but a SELECT.
    pub(super) result: &'a Metadata,
    /// Whether it is a lightweight transaction.
    pub(super) is_conditional: bool,
}

/// Writes a PREPARED. `asked`: the extensions that its connection has.
pub(super) fn put_prepared(
    out: &mut Vec<u8>,
    prepared: &PreparedResult<'_>,
    version: u8,
    asked: &Asked,
) {
    put_i32(out, KIND_PREPARED);
    put_short_bytes(out, prepared.id);
    if version >= 5 || asked.metadata_id {
        put_short_bytes(out, &prepared.result.id);
    }
    let markers = prepared.markers;
    let global = match markers.count {
        0 => 0,
        _ => GLOBAL_TABLES_SPEC,
    };
    put_i32(out, global | asked.prepared_flags(prepared.is_conditional));
    put_count(out, markers.count);
    if version >= 4 {
        put_count(out, prepared.key_markers.len());
        prepared.key_markers.iter().for_each(|i| put_u16(out, *i));
    }
    if markers.count > 0 {
        out.extend_from_slice(&markers.encoded);
    }
    if prepared.result.count == 0 {
        put_i32(out, NO_METADATA);
        put_i32(out, 0);
    } else {
        put_i32(out, GLOBAL_TABLES_SPEC);
        put_count(out, prepared.result.count);
        out.extend_from_slice(&prepared.result.encoded);
    }
}

/// Change that a schema statement made, as results and events tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchemaChange {
    /// `CREATED` or `DROPPED`.
    pub(super) change: &'static str,
    pub(super) keyspace: String,
    /// None: the keyspace itself.
    pub(super) table: Option<String>,
}

impl SchemaChange {
    fn put(&self, out: &mut Vec<u8>) {
        put_string(out, self.change);
        put_string(
            out,
            if self.table.is_some() {
                "TABLE"
            } else {
                "KEYSPACE"
            },
        );
        put_string(out, &self.keyspace);
        if let Some(table) = &self.table {
            put_string(out, table);
        }
    }

    pub(super) fn put_result(&self, out: &mut Vec<u8>) {
        put_i32(out, KIND_SCHEMA_CHANGE);
        self.put(out);
    }

    pub(super) fn put_event(&self, out: &mut Vec<u8>) {
        put_string(out, "SCHEMA_CHANGE");
        self.put(out);
    }
}

/// Writes a SUPPORTED. `besides`: the options of a ScyllaDB, each with its one value.
pub(super) fn put_supported(out: &mut Vec<u8>, max_version: u8, besides: &[(&str, String)]) {
    let versions: Vec<String> = (super::versions::MIN_VERSION..=max_version)
        .map(|v| format!("{v}/v{v}"))
        .collect();
    let options: [(&str, &[String]); 3] = [
        ("COMPRESSION", &[]),
        ("CQL_VERSION", &[super::versions::CQL_VERSION.to_owned()]),
        ("PROTOCOL_VERSIONS", &versions),
    ];
    put_u16(
        out,
        u16::try_from(options.len() + besides.len()).unwrap_or(0),
    );
    for (name, values) in options {
        put_string(out, name);
        put_u16(out, u16::try_from(values.len()).unwrap_or(0));
        values.iter().for_each(|v| put_string(out, v));
    }
    for (name, value) in besides {
        put_string(out, name);
        put_u16(out, 1);
        put_string(out, value);
    }
}

pub(super) fn put_error(out: &mut Vec<u8>, failure: &Failure) {
    put_i32(out, failure.code);
    put_string(out, &failure.message);
    match &failure.detail {
        Detail::None => {}
        Detail::AlreadyExists { keyspace, table } => {
            put_string(out, keyspace);
            put_string(out, table);
        }
        Detail::Unprepared { id } => put_short_bytes(out, id),
        // Nobody but the coordinator has refused it.
        Detail::RateLimit { is_write } => out.extend([u8::from(*is_write), 1]),
    }
}
