//! The schema that a database tells, in the names that its client knows.

use super::*;

/// Rows of `system_schema.tables`.
fn schema(rows: &[[&str; 2]]) -> Vec<u8> {
    let mut body = [2_i32, 1, 3].map(i32::to_be_bytes).concat();
    body.extend([string("system_schema"), string("tables")].concat());
    for name in ["keyspace_name", "table_name", "comment"] {
        body.extend([string(name), vec![0, 0x0D]].concat());
    }
    body.extend((rows.len() as i32).to_be_bytes());
    for [keyspace, table] in rows {
        for cell in [keyspace, table, &"shop"] {
            body.extend(long_string(cell));
        }
    }
    body
}

#[test]
fn the_schema_is_that_of_the_client() {
    for kind in KINDS {
        let version = kind.version;
        let mut flow = rewrite(kind, RENAMES);
        let all = [
            ["other", "orders"],
            THEIRS,
            ["shop_v2", "x"],
            // Out of reach.
            ["shop", "y"],
            ["shop_v2", "orders"],
        ];
        let ours = [["other", "orders"], OURS, ["shop", "x"]];
        let text = "SELECT * FROM system_schema.tables";
        let got = asked(&mut flow, text, &schema(&all));
        assert_eq!(got, (text.to_owned(), schema(&ours)), "{kind:?}");
        // By names that are bound; by id, too.
        let text = "SELECT * FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?";
        let given = OURS.map(|name| Value::Some(name.as_bytes().to_vec()));
        let wanted = THEIRS.map(|name| Value::Some(name.as_bytes().to_vec()));
        let own = parameters(version, &given, None, None);
        let (_, got) = queried(&mut flow, &[long_string(text), own.clone()].concat());
        assert_eq!(bound(&got), wanted, "{kind:?}");
        assert_eq!(
            told(&mut flow, 7, RESULT, &schema(&[THEIRS])),
            schema(&[OURS])
        );
        prepares(&mut flow, text, b"id");
        let RequestBody::Execute(got) = flow.changed(EXECUTE, &execute_with(version, b"id", own))
        else {
            panic!("no EXECUTE")
        };
        assert_eq!(bound(&got.query_parameters), wanted, "{kind:?}");
        assert_eq!(
            told(&mut flow, 7, RESULT, &schema(&[THEIRS])),
            schema(&[OURS])
        );
        // By their columns' names, in another order.
        let names = ["table_name", "keyspace_name"];
        let turned = [given[1].clone(), given[0].clone()];
        let own = parameters(version, &turned, Some(&names), None);
        let (_, got) = queried(&mut flow, &[long_string(text), own].concat());
        let Some(QueryValues::NamedValues(got)) = got.values else {
            panic!("{:?}", got.values)
        };
        assert_eq!((&got[names[0]], &got[names[1]]), (&wanted[1], &wanted[0]));
        told(&mut flow, 7, RESULT, &schema(&[]));
        // A list of keyspaces.
        let list = |names: &[&str]| {
            let names = names.iter().flat_map(|name| long_string(name));
            let list = [(2_i32).to_be_bytes().to_vec(), names.collect()].concat();
            [Value::Some(list)]
        };
        let text = "SELECT * FROM system_schema.tables WHERE keyspace_name IN ?";
        let own = parameters(version, &list(&["shop", "other"]), None, None);
        let (_, got) = queried(&mut flow, &[long_string(text), own].concat());
        assert_eq!(bound(&got), list(&["shop_v2", "other"]), "{kind:?}");
        told(&mut flow, 7, RESULT, &schema(&[]));
        // A table whose keyspace is not known.
        let text = "SELECT * FROM system_schema.tables WHERE table_name = ? ALLOW FILTERING";
        let own = parameters(version, &given[1..], None, None);
        let (_, message) = refusal(&mut flow, QUERY, &[long_string(text), own].concat());
        assert!(message.contains("name the keyspace"), "{message}");
    }
}

/// Rows of texts.
fn texts_of(table: &str, columns: &[&str], rows: &[&[&str]]) -> Vec<u8> {
    let mut body = [2_i32, 1, columns.len() as i32]
        .map(i32::to_be_bytes)
        .concat();
    body.extend([string("system"), string(table)].concat());
    for name in columns {
        body.extend([string(name), vec![0, 0x0D]].concat());
    }
    body.extend((rows.len() as i32).to_be_bytes());
    for cell in rows.iter().copied().flatten() {
        body.extend(long_string(cell));
    }
    body
}

/// Rows in any form, and columns under any name.
#[test]
fn every_form_of_the_schema_is_that_of_the_client() {
    let json = |keyspace: &str, table: &str| {
        format!(
            "{{\"keyspace_name\": \"{keyspace}\", \"comment\": \"shop\\\"\", \"table_name\": \"{table}\"}}"
        )
    };
    for kind in KINDS {
        let mut flow = rewrite(kind, RENAMES);
        let mut holds = |text: &str,
                         expected: &str,
                         table: &str,
                         columns: &[&str],
                         theirs: &[&[&str]],
                         ours: &[&[&str]]| {
            let got = asked(&mut flow, text, &texts_of(table, columns, theirs));
            assert_eq!(got.0, expected, "{kind:?}");
            assert_eq!(got.1, texts_of(table, columns, ours), "{kind:?} {text}");
        };
        let (theirs, hidden) = (json(THEIRS[0], THEIRS[1]), json("shop", "y"));
        let told = json(OURS[0], OURS[1]);
        for select in [
            "SELECT JSON keyspace_name, comment, table_name",
            "SELECT JSON *",
            "select json*",
        ] {
            let text = format!("{select} FROM system_schema.tables");
            holds(
                &text,
                &text,
                "tables",
                &["[json]"],
                &[&[&hidden], &[&theirs], &["{oops"]],
                &[&[&told]],
            );
        }
        let text = "SELECT JSON keyspace_name AS k FROM system_schema.keyspaces WHERE keyspace_name='shop'";
        let sent = text.replace("'shop'", "'shop_v2'");
        holds(
            text,
            &sent,
            "keyspaces",
            &["[json]"],
            &[&["{\"k\": \"shop_v2\"}"]],
            &[&["{\"k\": \"shop\"}"]],
        );
        let text = "SELECT keyspace_name AS k, table_name AS \"T\" FROM system_schema.tables";
        holds(
            text,
            text,
            "tables",
            &["k", "T"],
            &[&THEIRS, &["shop", "y"]],
            &[&OURS],
        );
        // Its `table_name` is the keyspace.
        let columns = ["table_name", "index_name"];
        for text in [
            "SELECT * FROM system.\"IndexInfo\" WHERE table_name='shop' AND index_name='orders'",
            "SELECT*FROM system.\"IndexInfo\" WHERE table_name IN('shop')",
        ] {
            let sent = text.replace("'shop'", "'shop_v2'");
            holds(
                text,
                &sent,
                "IndexInfo",
                &columns,
                &[&["shop_v2", "orders"], &["shop", "a"], &["other", "b"]],
                &[&["shop", "orders"], &["other", "b"]],
            );
        }
        let text = "SELECT JSON table_name FROM system.\"IndexInfo\"";
        holds(
            text,
            text,
            "IndexInfo",
            &["[json]"],
            &[&["{\"table_name\": \"shop_v2\"}"]],
            &[&["{\"table_name\": \"shop\"}"]],
        );
        let text = "SELECT ks_name, table_name FROM system_distributed.partition_denylist WHERE ks_name='shop'";
        let sent = text.replace("'shop'", "'shop_v2'");
        holds(
            text,
            &sent,
            "partition_denylist",
            &["ks_name", "table_name"],
            &[&THEIRS],
            &[&OURS],
        );
    }
}
