//! The tables drivers and cqlsh read to learn about a cluster. Their rows are made up of the
//! node's state whenever one is selected from.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use super::ast::{SchemaStatement, Statement, Term};
use super::clients::Client;
use super::database::Database;
use super::failure::{Failure, Result};
use super::literal;
use super::parse::parse;
use super::plan_modify::put_key_component;
use super::ring::RingNode;
use super::schema::{Column, ColumnKind, Keyspace, TableDef, uuid_of};
use super::store::{Memory, Table};
use super::system_table::SystemTable;
use super::versions::{CQL_VERSION, RELEASE_VERSION};

/// Definitions, as Cassandra 5.0 has them; columns nobody reads are left out.
const DEFINITIONS: &str = include_str!("system.cql");

/// Keyspaces that Cassandra tells of in `system_virtual_schema` instead of `system_schema`.
const VIRTUAL_KEYSPACES: [&str; 2] = ["system_views", "system_virtual_schema"];

/// The table of peers with their ports.
pub(super) const PEERS_V2: &str = "peers_v2";

/// The definitions, each with an empty table for plans to stand on.
#[derive(Debug)]
pub(super) struct System {
    keyspaces: Vec<Keyspace>,
}

/// A row: the columns that are not null.
type SystemRow = Vec<(&'static str, Term)>;

impl System {
    pub(super) fn new(memory: &Rc<Memory>) -> Result<Self> {
        let mut keyspaces: Vec<Keyspace> = Vec::new();
        for text in DEFINITIONS
            .split_inclusive(';')
            .filter(|t| !t.trim().is_empty())
        {
            let Statement::Schema(SchemaStatement::CreateTable {
                name,
                columns,
                comment,
                ..
            }) = parse(text)?
            else {
                return Err(Failure::server(
                    "system.cql holds something else than tables",
                ));
            };
            let keyspace = name.keyspace.unwrap_or_default();
            if keyspaces.last().is_none_or(|k| k.name != keyspace) {
                let replication = [(
                    "class".to_owned(),
                    "org.apache.cassandra.locator.LocalStrategy".to_owned(),
                )];
                keyspaces.push(Keyspace {
                    name: keyspace.clone(),
                    replication: replication.into(),
                    durable_writes: true,
                    tables: std::collections::BTreeMap::new(),
                });
            }
            let def = TableDef::new(&keyspace, &name.table, columns, comment);
            if let Some(last) = keyspaces.last_mut() {
                last.tables
                    .insert(name.table, Rc::new(Table::new(def, Rc::clone(memory))));
            }
        }
        Ok(Self { keyspaces })
    }

    /// Leaves what Cassandra 3 has.
    pub(super) fn remove_peers_v2(&mut self) {
        for keyspace in self.keyspaces.iter_mut().filter(|k| k.name == "system") {
            keyspace.tables.remove(PEERS_V2);
        }
    }

    pub(super) fn has_keyspace(&self, name: &str) -> bool {
        self.keyspaces.iter().any(|k| k.name == name)
    }

    pub(super) fn keyspace(&self, name: &str) -> Option<&Keyspace> {
        self.keyspaces.iter().find(|k| k.name == name)
    }

    pub(super) fn keyspaces(&self) -> &[Keyspace] {
        &self.keyspaces
    }

    pub(super) fn table(&self, keyspace: &str, table: &str) -> Option<(&Rc<Table>, SystemTable)> {
        let found = self.keyspace(keyspace)?.tables.get(table)?;
        let of_virtual = keyspace == "system_virtual_schema";
        let kind = match (keyspace, table) {
            ("system", "local") => SystemTable::Local,
            ("system", "peers") => SystemTable::Peers { v2: false },
            ("system", PEERS_V2) => SystemTable::Peers { v2: true },
            ("system_views", "clients") => SystemTable::Clients,
            ("system_schema" | "system_virtual_schema", "keyspaces") => {
                SystemTable::Keyspaces { of_virtual }
            }
            ("system_schema" | "system_virtual_schema", "tables") => {
                SystemTable::Tables { of_virtual }
            }
            ("system_schema" | "system_virtual_schema", "columns") => {
                SystemTable::Columns { of_virtual }
            }
            ("system_schema", "scylla_keyspaces") => SystemTable::ScyllaKeyspaces,
            _ => SystemTable::Empty,
        };
        Some((found, kind))
    }
}

impl SystemTable {
    /// The table with its rows as of now.
    pub(super) fn table(self, db: &Database, def: &TableDef) -> Result<Table> {
        // Made for one statement and bounded by what it tells of: outside the node's limit.
        let memory = Rc::new(Memory {
            used: Cell::new(0),
            max: usize::MAX,
        });
        let def = TableDef::new(
            &def.keyspace,
            &def.name,
            def.columns.clone(),
            def.comment.clone(),
        );
        let table = Table::new(def, memory);
        for row in self.rows(db) {
            put_row(&table, &row)?;
        }
        Ok(table)
    }

    fn rows(self, db: &Database) -> Vec<SystemRow> {
        let listed = |of_virtual: bool| {
            let all = db.system.keyspaces().iter().chain(db.keyspaces.values());
            all.filter(move |k| VIRTUAL_KEYSPACES.contains(&k.name.as_str()) == of_virtual)
        };
        match self {
            Self::Local => vec![local(db)],
            Self::Peers { v2 } => db.ring().peers().map(|node| peer(db, &node, v2)).collect(),
            Self::Clients => db.clients.snapshot().iter().map(client).collect(),
            Self::Keyspaces { of_virtual } => listed(of_virtual)
                .map(|k| keyspace(k, of_virtual))
                .collect(),
            Self::Tables { of_virtual } => listed(of_virtual)
                .flat_map(|k| k.tables.values())
                .map(|t| table(&t.def, of_virtual))
                .collect(),
            Self::Columns { of_virtual } => listed(of_virtual)
                .flat_map(|k| k.tables.values())
                .flat_map(|t| columns(&t.def))
                .collect(),
            Self::ScyllaKeyspaces => {
                let name = |name: &str| ("keyspace_name", text(name));
                let all = db.keyspaces.keys();
                all.map(|keyspace| vec![name(keyspace), ("initial_tablets", number(1))])
                    .collect()
            }
            Self::Empty => Vec::new(),
        }
    }
}

fn put_row(table: &Table, row: &SystemRow) -> Result<()> {
    let mut key = Vec::new();
    let mut key_values = Vec::new();
    let mut changes = Vec::new();
    for (i, column) in table.def.columns.iter().enumerate() {
        let Some((_, term)) = row.iter().find(|(name, _)| *name == column.name) else {
            continue;
        };
        let mut value = Vec::new();
        literal::encode(term, &column.cql_type, &mut value)?;
        if i < table.def.key_len {
            put_key_component(column, &value, &mut key)?;
            key_values.push(value.into_boxed_slice());
        } else {
            changes.push((i, Some(value.into())));
        }
    }
    table.upsert(&key, key_values.into_iter(), changes, true)
}

fn text(s: impl Into<String>) -> Term {
    Term::Text(s.into())
}

fn number(n: impl ToString) -> Term {
    Term::Number(n.to_string())
}

fn text_map<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Term {
    Term::Map(pairs.into_iter().map(|(k, v)| (text(k), text(v))).collect())
}

fn local(db: &Database) -> SystemRow {
    let (ip, port) = (text(db.addr.ip().to_string()), number(db.addr.port()));
    vec![
        ("key", text("local")),
        ("bootstrapped", text("COMPLETED")),
        ("broadcast_address", ip.clone()),
        ("broadcast_port", number(7000)),
        ("cluster_name", text("underpass testkit")),
        ("cql_version", text(CQL_VERSION)),
        ("data_center", text("datacenter1")),
        ("gossip_generation", number(1)),
        ("host_id", host_id(db.addr)),
        ("listen_address", ip.clone()),
        ("listen_port", number(7000)),
        ("native_protocol_version", text(db.max_version.to_string())),
        (
            "partitioner",
            text("org.apache.cassandra.dht.Murmur3Partitioner"),
        ),
        ("rack", text("rack1")),
        ("release_version", text(RELEASE_VERSION)),
        ("rpc_address", ip),
        ("rpc_port", port),
        ("schema_version", Term::Uuid(db.schema_version())),
        ("tokens", tokens(db.ring().own_token())),
    ]
}

fn host_id(addr: SocketAddr) -> Term {
    Term::Uuid(host_uuid(addr))
}

/// The node's id.
pub(super) fn host_uuid(addr: SocketAddr) -> [u8; 16] {
    uuid_of(&[b"host", addr.to_string().as_bytes()])
}

fn tokens(token: i64) -> Term {
    Term::Set(vec![text(token.to_string())])
}

/// `v2`: as Cassandra has it since 4.0, with ports.
fn peer(db: &Database, node: &RingNode, v2: bool) -> SystemRow {
    let ip = text(node.addr.ip().to_string());
    let mut row = vec![
        ("peer", ip.clone()),
        ("data_center", text("datacenter1")),
        ("host_id", host_id(node.addr)),
        ("rack", text("rack1")),
        ("release_version", text(RELEASE_VERSION)),
        ("schema_version", Term::Uuid(db.schema_version())),
        ("tokens", tokens(node.token)),
    ];
    match v2 {
        true => row.extend([
            ("peer_port", number(7000)),
            ("native_address", ip),
            ("native_port", number(node.addr.port())),
        ]),
        false => row.push(("rpc_address", ip)),
    }
    row
}

fn client(client: &Client) -> SystemRow {
    let user = client.user.clone().unwrap_or_else(|| "anonymous".into());
    let mut row = vec![
        ("address", text(client.peer.ip().to_string())),
        ("port", number(client.peer.port())),
        (
            "connection_stage",
            text(if client.version == 0 {
                "established"
            } else {
                "ready"
            }),
        ),
        ("hostname", text(client.peer.ip().to_string())),
        ("protocol_version", number(client.version)),
        ("request_count", number(client.requests)),
        ("ssl_enabled", Term::Bool(false)),
        ("username", text(user)),
    ];
    let optional = [
        ("driver_name", &client.driver_name),
        ("driver_version", &client.driver_version),
        ("keyspace_name", &client.keyspace),
    ];
    row.extend(
        optional
            .into_iter()
            .filter_map(|(name, value)| Some((name, text(value.as_ref()?)))),
    );
    row
}

fn keyspace(keyspace: &Keyspace, of_virtual: bool) -> SystemRow {
    let mut row = vec![("keyspace_name", text(&keyspace.name))];
    if !of_virtual {
        let options = keyspace
            .replication
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()));
        let class = |(k, v)| {
            if k == "class" {
                (k, full_class_name(v))
            } else {
                (k, v.to_owned())
            }
        };
        let options = options.map(class).map(|(k, v)| (text(k), text(v)));
        row.push(("durable_writes", Term::Bool(keyspace.durable_writes)));
        row.push(("replication", Term::Map(options.collect())));
    }
    row
}

/// Drivers tell replication strategies by their full name.
fn full_class_name(class: &str) -> String {
    if class.contains('.') {
        class.to_owned()
    } else {
        format!("org.apache.cassandra.locator.{class}")
    }
}

fn table(def: &TableDef, of_virtual: bool) -> SystemRow {
    let mut row = vec![
        ("keyspace_name", text(&def.keyspace)),
        ("table_name", text(&def.name)),
        ("comment", text(&def.comment)),
    ];
    if of_virtual {
        return row;
    }
    row.extend([
        ("additional_write_policy", text("99p")),
        ("bloom_filter_fp_chance", number(0.01)),
        (
            "caching",
            text_map([("keys", "ALL"), ("rows_per_partition", "NONE")]),
        ),
        ("cdc", Term::Bool(false)),
        (
            "compaction",
            text_map([(
                "class",
                "org.apache.cassandra.db.compaction.SizeTieredCompactionStrategy",
            )]),
        ),
        ("compression", text_map([("enabled", "false")])),
        ("crc_check_chance", number(1.0)),
        ("default_time_to_live", number(0)),
        ("extensions", Term::Map(Vec::new())),
        ("flags", Term::Set(vec![text("compound")])),
        ("gc_grace_seconds", number(864_000)),
        ("id", Term::Uuid(def.id)),
        ("max_index_interval", number(2048)),
        ("memtable_flush_period_in_ms", number(0)),
        ("min_index_interval", number(128)),
        ("read_repair", text("BLOCKING")),
        ("speculative_retry", text("99p")),
    ]);
    row
}

fn columns(def: &TableDef) -> Vec<SystemRow> {
    let row = |(i, column): (usize, &Column)| {
        let (kind, position, order) = match column.kind {
            ColumnKind::Partition => ("partition_key", i.to_string(), "none"),
            ColumnKind::Clustering { descending } => {
                let order = if descending { "desc" } else { "asc" };
                ("clustering", (i - def.partition_len).to_string(), order)
            }
            ColumnKind::Regular => ("regular", "-1".to_owned(), "none"),
        };
        vec![
            ("keyspace_name", text(&def.keyspace)),
            ("table_name", text(&def.name)),
            ("column_name", text(&column.name)),
            ("clustering_order", text(order)),
            (
                "column_name_bytes",
                Term::Blob(column.name.clone().into_bytes()),
            ),
            ("kind", text(kind)),
            ("position", Term::Number(position)),
            ("type", text(column.cql_type.to_string())),
        ]
    };
    def.columns.iter().enumerate().map(row).collect()
}
