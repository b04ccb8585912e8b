//! Tests of the parser, and jobs for other tests.

use super::*;

const FILE: &str = r#"
title = "A mix"
database = "node"
protocol = "cql"
client = "raw"
threads = 2
connections = 4
rate = 5000
create = ["CREATE KEYSPACE k"]
clear = ["DROP KEYSPACE k"]
fill = "write"

[origin]
name = "somebody"
url = "https://example.org"

[keys]
count = 1000
distribution = "zipfian"

[[operation]]
name = "write"
weight = 1
steps = [{ statement = { cql = "INSERT INTO k.t (a, b) VALUES (?, ?)", bind = ["key", "value:34"] } }]

[[operation]]
name = "read"
weight = 9
steps = [
    { statement = { cql = "SELECT b FROM k.t WHERE a = ?", bind = ["key"] } },
    { batch = { cql = "DELETE FROM k.t WHERE a = ? AND c = '?'", bind = ["key:text"], count = 3, keys = true } },
]

[[published]]
system = "a database"
hardware = "unknown"
url = "https://example.org"
op_s = 19500
"#;

/// A job of one operation on the table `k.t`, which binds these.
pub fn job(binds: &[&str]) -> Job {
    let bind = |text: &&str| Bind::try_from((*text).to_owned()).unwrap();
    let statement = Step::Statement {
        cql: "INSERT INTO k.t (a, b) VALUES (?, ?)".into(),
        bind: binds.iter().map(bind).collect(),
    };
    let mut job = parse("mix", FILE).unwrap().variants.remove(0).job;
    job.rate = None;
    job.operations.truncate(1);
    job.operations[0].steps = vec![statement];
    job
}

fn error(text: &str) -> String {
    format!("{:#}", parse("mix", text).unwrap_err())
}

#[test]
fn a_file_is_one_variant_of_its_name() {
    let workload = parse("mix", FILE).unwrap();
    let [variant] = &workload.variants[..] else {
        panic!("{:?}", workload.variants)
    };
    assert_eq!(
        (&*variant.id, variant.nodes, variant.quick),
        ("mix", 1, false)
    );
    let job = &variant.job;
    assert_eq!((job.threads, job.connections, job.depth), (2, 4, 1));
    assert_eq!(job.rate, Some(5000.0));
    assert_eq!(job.operations.len(), 2);
    assert_eq!(workload.published[0].op_s, Some(19500.0));
    let json = serde_json::to_string(job).unwrap();
    assert_eq!(serde_json::from_str::<Job>(&json).unwrap(), *job);
}

#[test]
fn variants_change_what_they_name() {
    let text = format!(
        "{FILE}{}",
        r#"
[[variant]]
name = "readers"
rate = 100.5
nodes = 3
quick = true
connections = 6
operation.read.weight = 0
operation.read.connections = 6
operation.write.weight = 0
keys.distribution = "latest"

[[variant]]
name = "4-0"
depth = 8
operation.read.weight = 0
"#
    );
    let variants = parse("mix", &text).unwrap().variants;
    let ids: Vec<_> = variants.iter().map(|v| &*v.id).collect();
    assert_eq!(ids, ["mix-readers", "mix-4-0"]);
    let readers = &variants[0];
    assert_eq!((readers.nodes, readers.quick), (3, true));
    assert_eq!(readers.job.rate, Some(100.5));
    assert_eq!(readers.job.keys.distribution, Distribution::Latest);
    assert_eq!(readers.job.keys.count, 1000);
    // The writer is kept to fill.
    let operations = &readers.job.operations;
    assert_eq!(operations.len(), 2);
    assert!(!operations[0].is_active() && operations[1].connections == 6);
    // A reader that neither works nor fills is left out.
    let names: Vec<_> = variants[1]
        .job
        .operations
        .iter()
        .map(|o| &*o.name)
        .collect();
    assert_eq!(names, ["write"]);
    assert_eq!(
        (variants[1].job.depth, variants[1].job.rate),
        (8, Some(5000.0))
    );
}

#[test]
fn mistakes_are_named() {
    let with = |from: &str, to: &str| {
        assert!(FILE.contains(from), "{from}");
        error(&FILE.replacen(from, to, 1))
    };
    let more = |lines: &str| error(&format!("{FILE}\n{lines}"));
    for (error, wanted) in [
        (with("title", "tilte"), "unknown field `tilte`"),
        (with("\"write\"", "\"fill\""), "no operation \"fill\""),
        (with("threads = 2", "threads = 0"), "threads = 0"),
        (with("threads = 2", "threads = 5"), "fewer than threads = 5"),
        (with("rate = 5000", "rate = 0"), "rate = 0"),
        (with("rate = 5000", "depth = 0"), "depth = 0"),
        (
            with("rate = 5000", "nodes = 9"),
            "4 connections are too few for 9 nodes",
        ),
        (with("\"node\"", "\"redis\""), "Redis does not speak Cql"),
        (with("count = 1000", "count = 0"), "count = 0"),
        (with("\"zipfian\"", "\"zipf\""), "unknown variant `zipf`"),
        (
            with("bind = [\"key\", \"value:34\"]", "bind = [\"key\"]"),
            "2 `?` and 1 to bind",
        ),
        (with("value:34", "value:x"), "value:x: not a number"),
        (
            with("value:34", "value:34000000"),
            "34000000 bytes are more",
        ),
        (with("value:34", "blob:34"), "no such value"),
        (
            with("count = 3", "count = 0"),
            "operation \"read\": count = 0",
        ),
        (
            with("\"read\"", "\"write\""),
            "operation \"write\" is there twice",
        ),
        (
            with("weight = 9", "connections = 5"),
            "want more connections",
        ),
        (
            with("weight = 9", "connections = 4"),
            "no connection is left",
        ),
        (
            with("weight = 9", "weight = 9\nconnections = 1"),
            "a weight and connections",
        ),
        (more("[[variant]]\nname = \"a b\""), "\"a b\" is no name"),
        (
            more("[[variant]]\nname = \"a\"\n[[variant]]\nname = \"a\""),
            "variant \"a\" is there twice",
        ),
        (
            more("[[variant]]\nname = \"a\"\noperation.none.weight = 1"),
            "no operation \"none\" to change",
        ),
        (
            more("[[variant]]\nname = \"a\"\ndatabase = \"cassandra\"\nnodes = 2"),
            "only embedded nodes",
        ),
        (more("variant = \"b\""), "there is no variant \"b\""),
    ] {
        assert!(error.contains(wanted), "{error:?} does not say {wanted:?}");
    }
    let idle = FILE.replace("weight = 1", "").replace("weight = 9", "");
    assert!(
        error(&idle).contains("no operation has a weight"),
        "{}",
        error(&idle)
    );
    let own = FILE
        .replace("weight = 1", "connections = 1")
        .replace("weight = 9", "connections = 2");
    assert!(
        error(&own).contains("1 connections have nothing to do"),
        "{}",
        error(&own)
    );
}

#[test]
fn folders_are_read_by_name_and_ids_are_unique() {
    let folder = tempfile::tempdir().unwrap();
    let empty = format!("{:#}", read(folder.path()).unwrap_err());
    assert!(empty.contains("no workload in"), "{empty}");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("b.toml", FILE);
    write("a.toml", FILE);
    write("notes.md", "not a workload");
    let names: Vec<_> = read(folder.path())
        .unwrap()
        .into_iter()
        .map(|w| w.name)
        .collect();
    assert_eq!(names, ["a", "b"]);
    write("a-x.toml", FILE);
    write("a.toml", &format!("{FILE}\n[[variant]]\nname = \"x\""));
    let twice = format!("{:#}", read(folder.path()).unwrap_err());
    assert!(twice.contains("a-x is there twice"), "{twice}");
    write("a-x.toml", "title = 1");
    let wrong = format!("{:#}", read(folder.path()).unwrap_err());
    assert!(wrong.contains("a-x.toml"), "{wrong}");
}

#[test]
fn the_workloads_of_this_project_are_right() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads");
    let has_any = std::fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some());
    if has_any {
        let workloads = read(&folder).unwrap();
        assert!(!workloads.is_empty());
    }
}
