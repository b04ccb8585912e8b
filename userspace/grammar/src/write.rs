//! INSERT, UPDATE, DELETE, BATCH.

use crate::schema::{Column, TABLES, Table, Type};
use crate::select::key;
use crate::statement::{Binds, Writer};

/// Microseconds since 1970 of some day before now: rows that a condition has written are newer.
const SOME_DAY_US: u64 = 1_700_000_000_000_000;

/// USING, or nothing. `timed`: a timestamp may be there.
fn using(writer: &mut Writer<'_>, timed: bool, lives: bool) {
    let uses_ttl = lives && writer.one_in(4);
    let uses_time = timed && writer.one_in(4);
    if !uses_ttl && !uses_time {
        return;
    }
    writer.words("USING");
    if uses_ttl {
        writer.words("TTL");
        // Days: nothing expires while a test runs.
        let ttl = 864_000 + writer.random.below(1000) as i32;
        match writer.binds != Binds::Nothing && writer.one_in(2) {
            true => writer.bound(Some(ttl.to_be_bytes().to_vec())),
            false => writer.token(&ttl.to_string()),
        }
    }
    if uses_time {
        if uses_ttl {
            writer.words("AND");
        }
        writer.words("TIMESTAMP");
        let time = SOME_DAY_US + writer.random.below(1000);
        writer.token(&time.to_string());
    }
}

/// An INSERT, or an UPDATE where the table has counters.
pub(crate) fn insert(writer: &mut Writer<'_>, table: &Table) -> &'static str {
    insert_if(writer, table, true);
    if table.is_counter() {
        "update"
    } else {
        "insert"
    }
}

fn insert_if(writer: &mut Writer<'_>, table: &Table, alone: bool) {
    if table.is_counter() {
        return update_if(writer, table, alone);
    }
    writer.words("INSERT INTO");
    writer.table(table);
    if writer.one_in(6) {
        json(writer, table);
    } else {
        let mut columns: Vec<&Column> = table.key().iter().collect();
        columns.extend(writer.some(table.others(), 4));
        writer.token("(");
        writer.each(&columns, ",", |writer, column| writer.name(column.name));
        writer.token(")");
        writer.words("VALUES");
        writer.token("(");
        writer.each(
            columns.iter().enumerate(),
            ",",
            |writer, (nth, column)| match nth < table.key {
                true => writer.key(column.kind),
                false => writer.term(column.kind),
            },
        );
        writer.token(")");
    }
    let conditional = alone && writer.one_in(8);
    if conditional {
        writer.words("IF NOT EXISTS");
    }
    using(writer, alone && !conditional, true);
}

/// A row as JSON: its key, which may be followed by what becomes of the other columns.
fn json(writer: &mut Writer<'_>, table: &Table) {
    writer.words("JSON");
    let mut pairs = Vec::new();
    for column in table.key() {
        let value = match column.kind {
            Type::Text => "\"a\"".to_owned(),
            _ => writer.random.below(6).to_string(),
        };
        let quotes = match column.name.chars().any(char::is_uppercase) {
            true => format!("\"\\\"{}\\\"\"", column.name),
            false => format!("\"{}\"", column.name),
        };
        pairs.push(format!("{quotes}: {value}"));
    }
    let row = format!("{{{}}}", pairs.join(", "));
    let dollars = writer.one_in(2);
    match writer.binds {
        Binds::Nothing if dollars => writer.token(&format!("$${row}$$")),
        Binds::Nothing => writer.token(&format!("'{row}'")),
        _ => writer.bound(Some(row.into_bytes())),
    }
    match writer.random.below(4) {
        0 => writer.words("DEFAULT UNSET"),
        1 => writer.words("DEFAULT NULL"),
        _ => {}
    }
}

/// An UPDATE.
pub(crate) fn update(writer: &mut Writer<'_>, table: &Table) -> &'static str {
    update_if(writer, table, true);
    "update"
}

fn update_if(writer: &mut Writer<'_>, table: &Table, alone: bool) {
    let conditional = alone && !table.is_counter() && writer.one_in(6);
    writer.words("UPDATE");
    writer.table(table);
    let timed = alone && !conditional && !table.is_counter();
    using(writer, timed, !table.is_counter());
    writer.words("SET");
    let columns = writer.some(table.others(), 3);
    writer.each(columns, ",", assignment);
    writer.words("WHERE");
    whole_key(writer, table);
    if conditional {
        condition(writer, table);
    }
}

fn assignment(writer: &mut Writer<'_>, column: &Column) {
    writer.name(column.name);
    match (column.kind, writer.random.below(4)) {
        (Type::Counter, n) => {
            let sign = if n == 0 { "-" } else { "+" };
            writer.token("=");
            writer.name(column.name);
            writer.token(sign);
            writer.key(Type::Counter);
        }
        (Type::Map | Type::Set | Type::List, 0) => {
            writer.token("=");
            writer.name(column.name);
            writer.token("+");
            writer.key(column.kind);
        }
        (Type::Set | Type::List, 1) => {
            writer.token("=");
            writer.name(column.name);
            writer.token("-");
            writer.key(column.kind);
        }
        (Type::Map | Type::Set | Type::List, 2) => {
            writer.token("+=");
            writer.key(column.kind);
        }
        (Type::Map, 1) => {
            writer.token("[");
            writer.key(Type::Text);
            writer.token("]");
            writer.token("=");
            writer.term(Type::Int);
        }
        _ => {
            writer.token("=");
            writer.term(column.kind);
        }
    }
}

fn whole_key(writer: &mut Writer<'_>, table: &Table) {
    let last = table.key.saturating_sub(1);
    writer.each(
        table.key().iter().enumerate(),
        "AND",
        |writer, (nth, column)| {
            writer.name(column.name);
            match nth == last && table.key == 1 && writer.one_in(8) {
                true => writer.in_keys(column.kind),
                false => {
                    writer.token("=");
                    writer.key(column.kind);
                }
            }
        },
    );
}

fn condition(writer: &mut Writer<'_>, table: &Table) {
    writer.words("IF");
    if writer.one_in(3) {
        return writer.words("EXISTS");
    }
    let columns = writer.some(table.others(), 2);
    writer.each(columns, "AND", |writer, column| {
        writer.name(column.name);
        match column.kind {
            Type::Int | Type::Text if writer.one_in(3) => writer.in_keys(column.kind),
            Type::Int if writer.one_in(3) => {
                writer.token("!=");
                writer.key(column.kind);
            }
            _ => {
                writer.token("=");
                writer.term(column.kind);
            }
        }
    });
}

/// A DELETE.
pub(crate) fn delete(writer: &mut Writer<'_>, table: &Table) -> &'static str {
    delete_if(writer, table, true);
    "delete"
}

fn delete_if(writer: &mut Writer<'_>, table: &Table, alone: bool) {
    let conditional = alone && !table.is_counter() && writer.one_in(8);
    let some = conditional || writer.one_in(2);
    writer.words("DELETE");
    if some {
        let columns = writer.some(table.others(), 2);
        writer.each(columns, ",", |writer, column| {
            writer.name(column.name);
            if column.kind == Type::Map && writer.one_in(2) {
                writer.token("[");
                writer.key(Type::Text);
                writer.token("]");
            }
        });
    }
    writer.words("FROM");
    writer.table(table);
    using(writer, alone && !conditional && !table.is_counter(), false);
    writer.words("WHERE");
    match some {
        true => whole_key(writer, table),
        false => key(writer, table, table.key),
    }
    if conditional {
        condition(writer, table);
    }
}

/// A BATCH as one text.
pub(crate) fn batch(writer: &mut Writer<'_>, table: &Table) -> &'static str {
    let counters = table.is_counter();
    let kind = match writer.random.below(2) {
        _ if counters => "BEGIN COUNTER BATCH",
        0 => "BEGIN BATCH",
        _ => "BEGIN UNLOGGED BATCH",
    };
    writer.words(kind);
    if !counters {
        using(writer, true, false);
    }
    let n = writer.random.below(5);
    for _ in 0..n {
        let table = match counters || writer.one_in(2) {
            true => table,
            false => {
                let nth = writer.random.below(TABLES.len() as u64) as usize;
                TABLES
                    .get(nth)
                    .filter(|table| !table.is_counter())
                    .unwrap_or(table)
            }
        };
        match writer.random.below(3) {
            0 => insert_if(writer, table, false),
            1 => update_if(writer, table, false),
            _ if counters => update_if(writer, table, false),
            _ => delete_if(writer, table, false),
        }
        if writer.one_in(2) {
            writer.token(";");
        }
    }
    writer.words("APPLY BATCH");
    "batch"
}
