//! SELECT.

use crate::schema::{Column, Table, Type};
use crate::statement::Writer;

/// A SELECT on a table.
pub(crate) fn select(writer: &mut Writer<'_>, table: &Table) -> &'static str {
    rows(writer, table);
    "select"
}

fn rows(writer: &mut Writer<'_>, table: &Table) {
    writer.words("SELECT");
    let json = writer.one_in(8);
    if json {
        writer.words("JSON");
    }
    let groups = !json && table.key > table.partition && writer.one_in(8);
    let distinct = !groups && writer.one_in(12);
    if distinct {
        writer.words("DISTINCT");
        let key = table.key().iter().take(table.partition);
        writer.each(key, ",", |writer, column| writer.name(column.name));
    } else if groups {
        let key = table.key().iter().take(table.partition);
        writer.each(key, ",", |writer, column| writer.name(column.name));
        writer.token(",");
        aggregate(writer, table);
    } else {
        selectors(writer, table);
    }
    writer.words("FROM");
    writer.table(table);
    let near = table
        .columns
        .iter()
        .find(|column| column.kind == Type::Vector);
    if let Some(near) = near.filter(|_| !distinct && writer.one_in(3)) {
        return nearest(writer, near);
    }
    let filters = !distinct && conditions(writer, table, groups);
    if groups {
        writer.words("GROUP BY");
        let key = table.key().iter().take(table.partition);
        writer.each(key, ",", |writer, column| writer.name(column.name));
    }
    limits(writer, distinct, groups);
    if filters {
        writer.words("ALLOW FILTERING");
    }
}

/// ORDER BY … ANN, whose order the server chooses.
fn nearest(writer: &mut Writer<'_>, column: &Column) {
    writer.is_certain = false;
    writer.words("ORDER BY");
    writer.name(column.name);
    writer.words("ANN OF");
    writer.key(column.kind);
    writer.words("LIMIT");
    writer.number(9);
}

fn limits(writer: &mut Writer<'_>, distinct: bool, groups: bool) {
    if !distinct && !groups && writer.one_in(6) {
        writer.words("PER PARTITION LIMIT");
        limit(writer);
    }
    if writer.one_in(4) {
        writer.words("LIMIT");
        limit(writer);
    }
}

fn limit(writer: &mut Writer<'_>) {
    let n = writer.random.below(9) as i32 + 1;
    match writer.binds != crate::statement::Binds::Nothing && writer.one_in(2) {
        true => writer.bound(Some(n.to_be_bytes().to_vec())),
        false => writer.token(&n.to_string()),
    }
}

fn selectors(writer: &mut Writer<'_>, table: &Table) {
    match writer.random.below(4) {
        0 => writer.token("*"),
        1 => aggregate(writer, table),
        _ => {
            let columns = writer.some(table.columns, 4);
            writer.each(columns, ",", |writer, column| {
                selector(writer, table, column);
                if writer.one_in(5) {
                    writer.words("AS");
                    let alias = writer
                        .random
                        .word(&["x", "An Alias", "from", "keyspace_name"]);
                    writer.name(alias);
                }
            });
        }
    }
}

/// A function of rows. All columns of a selection are, then.
fn aggregate(writer: &mut Writer<'_>, table: &Table) {
    let (name, column) = match writer.random.below(4) {
        0 => return call(writer, "count", |writer| writer.token("*")),
        1 => return call(writer, "COUNT", |writer| writer.token("1")),
        2 => ("max", table.columns.first()),
        _ => ("min", table.columns.last()),
    };
    call(writer, name, |writer| {
        if let Some(column) = column {
            writer.name(column.name);
        }
    });
}

fn call(writer: &mut Writer<'_>, function: &str, argument: impl FnOnce(&mut Writer<'_>)) {
    let is_function = function.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    match is_function && !matches!(function, "count" | "ttl" | "token") && writer.one_in(6) {
        true => writer.qualified("system", function),
        false => writer.words(function),
    }
    writer.token("(");
    argument(writer);
    writer.token(")");
}

fn selector(writer: &mut Writer<'_>, table: &Table, column: &Column) {
    let named = |writer: &mut Writer<'_>| writer.name(column.name);
    let is_key = table.key().iter().any(|key| key.name == column.name);
    match (column.kind, writer.random.below(5)) {
        (Type::Map, 0) => {
            named(writer);
            writer.token("[");
            writer.key(Type::Text);
            writer.token("]");
        }
        (Type::Place, 0) => {
            named(writer);
            writer.token(".");
            writer.name("zip");
        }
        (Type::Int, 0) => {
            call(writer, "CAST", |writer| {
                named(writer);
                writer.words("AS text");
            });
        }
        (Type::Int, 1) => {
            named(writer);
            let times = writer.one_in(2);
            writer.token(if times { "*" } else { "+" });
            writer.number(9);
        }
        (Type::Blob, 0) => call(writer, "blobAsText", named),
        (Type::Timestamp, 0) => call(writer, "toDate", named),
        (Type::Vector, 0) => call(writer, "similarity_cosine", |writer| {
            named(writer);
            writer.token(",");
            writer.key(Type::Vector);
        }),
        (Type::Text | Type::Int | Type::Double, 2) if !is_key => {
            // LWTs choose their own times, and rows that expire tell the time that is left.
            writer.is_certain = false;
            let lives = writer.one_in(2);
            call(writer, if lives { "ttl" } else { "WRITETIME" }, named);
        }
        (_, 3) => call(writer, "toJson", named),
        (_, 4) if is_key => {
            let key = table.key().iter().take(table.partition);
            call(writer, "token", |writer| {
                writer.each(key, ",", |writer, column| writer.name(column.name));
            });
        }
        _ => named(writer),
    }
}

/// WHERE and ORDER BY, or nothing; where rows are grouped, without an order. True: rows have to be filtered.
fn conditions(writer: &mut Writer<'_>, table: &Table, groups: bool) -> bool {
    match writer.random.below(8) {
        0 => return false,
        1 => {
            writer.words("WHERE");
            tokens(writer, table);
            return false;
        }
        2 => {
            writer.words("WHERE");
            if let Some(column) = table.others().first() {
                writer.name(column.name);
                writer.token("=");
                writer.key(column.kind);
            }
            return true;
        }
        _ => {}
    }
    writer.words("WHERE");
    key(writer, table, table.key);
    let rest = table.key().len() > table.partition;
    if rest && !groups && writer.one_in(6) {
        writer.words("ORDER BY");
        let column = table.key().get(table.partition).map_or("", |c| c.name);
        writer.name(column);
        let falls = writer.one_in(2);
        writer.words(if falls { "DESC" } else { "ASC" });
    }
    false
}

fn tokens(writer: &mut Writer<'_>, table: &Table) {
    writer.words("token");
    writer.token("(");
    let key = || table.key().iter().take(table.partition);
    writer.each(key(), ",", |writer, column| writer.name(column.name));
    writer.token(")");
    let than = writer.random.word(&[">", "<=", ">="]);
    writer.token(than);
    match writer.one_in(2) {
        true => {
            let token = writer.random.any() as i64;
            match writer.binds == crate::statement::Binds::Nothing {
                true => writer.token(&token.to_string()),
                false => writer.bound(Some(token.to_be_bytes().to_vec())),
            }
        }
        false => {
            writer.words("token");
            writer.token("(");
            writer.each(key(), ",", |writer, column| writer.key(column.kind));
            writer.token(")");
        }
    }
}

/// Conditions on a key, whose last columns may be missing or ranges.
pub(crate) fn key(writer: &mut Writer<'_>, table: &Table, most: usize) {
    let rest = most.saturating_sub(table.partition) as u64;
    let exact = table.partition + writer.random.below(rest + 1) as usize;
    writer.each(
        table.key().iter().take(exact).enumerate(),
        "AND",
        |writer, (nth, column)| {
            writer.name(column.name);
            match nth + 1 == exact && writer.one_in(5) {
                true => writer.in_keys(column.kind),
                false => {
                    writer.token("=");
                    writer.key(column.kind);
                }
            }
        },
    );
    let behind = table.key().get(exact..most).unwrap_or_default();
    let Some(next) = behind.first().filter(|_| writer.one_in(3)) else {
        return;
    };
    writer.words("AND");
    let than = writer.random.word(&[">", "<=", ">=", "<"]);
    if behind.len() > 1 && writer.one_in(2) {
        // Several columns at once.
        writer.token("(");
        writer.each(behind, ",", |writer, column| writer.name(column.name));
        writer.token(")");
        writer.token(than);
        writer.token("(");
        writer.each(behind, ",", |writer, column| writer.key(column.kind));
        writer.token(")");
    } else {
        writer.name(next.name);
        writer.token(than);
        writer.key(next.kind);
    }
}

/// A read of the server's own tables.
pub(crate) fn system(writer: &mut Writer<'_>) -> &'static str {
    let (keyspace, table, columns) = *writer.random.of(&[
        ("system_schema", "keyspaces", "keyspace_name"),
        ("system_schema", "tables", "keyspace_name"),
        ("system_schema", "columns", "keyspace_name"),
        ("system_schema", "types", "keyspace_name"),
    ]);
    writer.words("SELECT");
    if writer.one_in(4) {
        writer.words("JSON");
    }
    writer.name(columns);
    if writer.one_in(3) {
        writer.words("AS");
        writer.name("ks");
    }
    writer.words("FROM");
    writer.whole(keyspace, table);
    writer.words("WHERE");
    writer.name("keyspace_name");
    writer.token("=");
    let keyspace = writer.keyspace.to_owned();
    match writer.binds == crate::statement::Binds::Nothing {
        true => writer.token(&format!("'{keyspace}'")),
        false => writer.bound(Some(keyspace.into_bytes())),
    }
    "select"
}
