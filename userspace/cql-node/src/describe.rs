//! DESCRIBE: since Cassandra 4.0 the server writes the statements that cqlsh shows.

use super::ast::{Describe, TableName};
use super::database::Database;
use super::failure::{Failure, Result};
use super::response::{ColumnSpec, Metadata, MetadataMode, RowsWriter};
use super::schema::{ColumnKind, Keyspace, TableDef};
use super::types::{CqlType, Native};

/// Writes the Rows result of a DESCRIBE statement.
pub(super) fn describe(
    db: &Database,
    what: &Describe,
    current: Option<&str>,
    out: &mut Vec<u8>,
) -> Result<()> {
    if matches!(what, Describe::Cluster) {
        let row = ["underpass testkit", "Murmur3Partitioner", "SimpleSnitch"].map(str::to_owned);
        put_rows(out, &["cluster", "partitioner", "snitch"], &[row.into()]);
        return Ok(());
    }
    let elements = elements(db, what, current)?;
    let lists_names = matches!(
        what,
        Describe::Keyspaces | Describe::Tables | Describe::Nothing
    );
    let rows: Vec<Vec<String>> = elements
        .into_iter()
        .map(|e| {
            let mut row = vec![name(&e.keyspace), e.kind.to_owned(), name(&e.name)];
            row.extend((!lists_names).then_some(e.statement));
            row
        })
        .collect();
    let columns = ["keyspace_name", "type", "name", "create_statement"];
    put_rows(
        out,
        columns
            .get(..if lists_names { 3 } else { 4 })
            .unwrap_or_default(),
        &rows,
    );
    Ok(())
}

struct Element {
    keyspace: String,
    kind: &'static str,
    name: String,
    statement: String,
}

fn elements(db: &Database, what: &Describe, current: Option<&str>) -> Result<Vec<Element>> {
    let all = || db.system.keyspaces().iter().chain(db.keyspaces.values());
    Ok(match what {
        Describe::Cluster | Describe::Nothing => Vec::new(),
        Describe::Keyspaces => all().map(keyspace_element).collect(),
        Describe::Schema => db.keyspaces.values().flat_map(with_tables).collect(),
        Describe::Tables => match current {
            None => all().flat_map(tables).collect(),
            Some(name) => tables(keyspace(db, name)?),
        },
        Describe::Keyspace(name) => {
            let name = name.as_deref().or(current);
            with_tables(keyspace(
                db,
                name.ok_or_else(|| {
                    Failure::invalid("No keyspace specified and no current keyspace")
                })?,
            )?)
        }
        Describe::Table(table) => vec![table_element(&db.table(table, current)?.0.def)],
        Describe::Anything(TableName {
            keyspace: None,
            table,
        }) if db.has_keyspace(table) => with_tables(keyspace(db, table)?),
        Describe::Anything(table) => vec![table_element(&db.table(table, current)?.0.def)],
    })
}

fn keyspace<'a>(db: &'a Database, name: &str) -> Result<&'a Keyspace> {
    let found = db.keyspaces.get(name).or_else(|| db.system.keyspace(name));
    found.ok_or_else(|| Failure::invalid(format!("'{name}' not found in keyspaces")))
}

fn with_tables(keyspace: &Keyspace) -> Vec<Element> {
    std::iter::once(keyspace_element(keyspace))
        .chain(tables(keyspace))
        .collect()
}

fn tables(keyspace: &Keyspace) -> Vec<Element> {
    keyspace
        .tables
        .values()
        .map(|t| table_element(&t.def))
        .collect()
}

fn keyspace_element(keyspace: &Keyspace) -> Element {
    let options: Vec<String> = keyspace
        .replication
        .iter()
        .map(|(k, v)| format!("{}: {}", quote(k), quote(v)))
        .collect();
    let statement = format!(
        "CREATE KEYSPACE {} WITH replication = {{{}}} AND durable_writes = {};",
        name(&keyspace.name),
        options.join(", "),
        keyspace.durable_writes
    );
    Element {
        keyspace: keyspace.name.clone(),
        kind: "keyspace",
        name: keyspace.name.clone(),
        statement,
    }
}

fn table_element(def: &TableDef) -> Element {
    Element {
        keyspace: def.keyspace.clone(),
        kind: "table",
        name: def.name.clone(),
        statement: create_statement(def),
    }
}

fn create_statement(def: &TableDef) -> String {
    let names_of = |wanted: fn(ColumnKind) -> bool| -> Vec<String> {
        def.columns
            .iter()
            .filter(|c| wanted(c.kind))
            .map(|c| name(&c.name))
            .collect()
    };
    let partition = names_of(|k| k == ColumnKind::Partition);
    let clustering = names_of(|k| matches!(k, ColumnKind::Clustering { .. }));
    let mut text = format!("CREATE TABLE {}.{} (", name(&def.keyspace), name(&def.name));
    let single = partition.len() == 1 && clustering.is_empty();
    for column in &def.columns {
        let key = if single && column.kind == ColumnKind::Partition {
            " PRIMARY KEY"
        } else {
            ""
        };
        text += &format!("\n    {} {}{key},", name(&column.name), column.cql_type);
    }
    if single {
        text.pop();
    } else {
        let partition = if partition.len() > 1 {
            format!("({})", partition.join(", "))
        } else {
            partition.join("")
        };
        let key: Vec<String> = std::iter::once(partition)
            .chain(clustering.iter().cloned())
            .collect();
        text += &format!("\n    PRIMARY KEY ({})", key.join(", "));
    }
    text += "\n)";
    let order: Vec<String> = def
        .columns
        .iter()
        .filter_map(|c| match c.kind {
            ColumnKind::Clustering { descending } => Some(format!(
                "{} {}",
                name(&c.name),
                if descending { "DESC" } else { "ASC" }
            )),
            ColumnKind::Partition | ColumnKind::Regular => None,
        })
        .collect();
    let mut options = Vec::new();
    if !order.is_empty() {
        options.push(format!("CLUSTERING ORDER BY ({})", order.join(", ")));
    }
    options.push(format!("comment = {}", quote(&def.comment)));
    text + " WITH " + &options.join("\n    AND ") + ";"
}

/// A name as CQL wants it: quoted unless it is in lower case.
fn name(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn put_rows(out: &mut Vec<u8>, columns: &[&str], rows: &[Vec<String>]) {
    let spec = |c: &&str| ColumnSpec {
        name: (*c).to_owned(),
        cql_type: CqlType::Native(Native::Text),
    };
    let specs: Vec<ColumnSpec> = columns.iter().map(spec).collect();
    let mut writer = RowsWriter::begin(
        out,
        &Metadata::new("system", "describe", &specs),
        MetadataMode::Full,
    );
    for row in rows {
        writer.row(out, row.iter().map(|cell| Some(cell.as_bytes())));
    }
    writer.finish(out, None);
}
