//! The suites in Go, JavaScript and Java: the same cases with the same results, directly and through
//! a pipeline.

use std::{collections::BTreeMap, fs};

use sandbox::Cgroup;
use sandbox::skip;

use super::{
    adopted,
    cassandra::{Cassandra, PIPELINE, past_tcp},
    same,
    seen::{self, Kinds, kinds},
    suite::{self, Details},
};

/// A language's suite.
pub struct Program {
    /// Part of the keyspaces' names.
    pub name: &'static str,
    /// The environment variable with the program's path.
    pub variable: &'static str,
    /// By table, how many statements the driver prepares.
    pub prepares: &'static [(&'static str, u64)],
    /// Table, kind, how many: what only this driver sends.
    pub besides: &'static [(&'static str, &'static str, u64)],
}

impl Program {
    /// Without an agent: what the others are held to.
    pub fn directly(&self, test: &str, version: u8, compression: &str) {
        if let Some((program, cassandra)) = self.provided(test) {
            self.run(&program, &cassandra, None, "direct", version, compression);
        }
    }

    /// Runs the suite through a pipeline: the results are the same, and the agent has counted what
    /// was sent.
    pub fn through_a_pipeline(&self, test: &str, version: u8, compression: &str) {
        self.through(test, ("pipeline", PIPELINE), version, compression);
    }

    /// Does the same, and what is exchanged with the agent skips TCP.
    pub fn past_tcp_through_a_pipeline(&self, test: &str, version: u8) {
        self.through(test, ("past_tcp", &past_tcp()), version, "none");
    }

    fn through(&self, test: &str, (way, more): (&str, &str), version: u8, compression: &str) {
        let Some((program, cassandra)) = self.provided(test) else {
            return;
        };
        let cgroup = Cgroup::new().unwrap();
        let agent = cassandra.agent_with(&cgroup, "enrich", "open", more);
        let keyspace = self.run(
            &program,
            &cassandra,
            Some(&cgroup),
            way,
            version,
            compression,
        );
        seen::all_enriched(&agent);
        seen::skips_tcp_as_asked(&agent, more);
        seen::all_reported(&agent, more);
        let mut tables = seen::statements(&agent, &keyspace);
        // The keyspace itself, its type, USE: in no table.
        tables.remove("");
        assert_eq!(tables, self.counts());
        let mut transforms = seen::transforms(&agent);
        assert!(transforms.remove("changed").is_some(), "{transforms:?}");
        // A definition that may reach any table: that of the type.
        assert_eq!(transforms, [("would_refuse".to_owned(), 1.0)].into());
        let mut errors = seen::errors(&agent);
        let refused = errors.remove("bad_credentials").unwrap_or_default();
        assert!(refused >= 1.0, "no login was refused");
        let once = ["already_exists", "invalid", "syntax_error", "unprepared"];
        let once = once.map(|code| (code.to_owned(), 1.0));
        assert_eq!(errors, once.into());
    }

    /// Runs the suite, which connects before there is an agent. The agent that starts when it has prepared and executed
    /// statements finds its connections, and reads them from there on; the results are the same.
    pub fn adopted(&self, test: &str, version: u8) {
        let Some((program, cassandra)) = self.provided(test) else {
            return;
        };
        let keyspace = format!("underpass_{}_adopted_v{version}", self.name);
        let (version, schema) = (version.to_string(), suite::folder().join("schema.cql"));
        let args = ["--protocol", &version, "--compression", "none"];
        let schema = schema.to_str().unwrap();
        let args = [&args[..], &["--keyspace", &keyspace, "--schema", schema]].concat();
        let details = adopted::suite(&cassandra, &[program.as_ref()], &args);
        let cases = |details: &Details| details.keys().cloned().collect::<Vec<_>>();
        let mut wanted = expected();
        for case in ["keyspace", "drop", "connection"] {
            wanted.insert(case.into(), details[case].clone());
        }
        assert_eq!(details, wanted, "{:?}", cases(&details));
    }

    /// Runs the suite through reporters, inline and tapped, which tell the same.
    pub fn told_of_copies(&self, test: &str, version: u8, compression: &str) {
        let Some((program, cassandra)) = self.provided(test) else {
            return;
        };
        same::compare(&cassandra, |cgroup| {
            let cgroup = Some(cgroup);
            self.run(&program, &cassandra, cgroup, "same", version, compression);
        });
    }

    fn keyspace(&self, way: &str, version: u8, compression: &str) -> String {
        format!("underpass_{}_{way}_v{version}_{compression}", self.name)
    }

    fn provided(&self, test: &str) -> Option<(String, Cassandra)> {
        Some((
            skip::provided(test, self.variable)?,
            Cassandra::provided(test)?,
        ))
    }

    /// Runs the suite, whose report has to be as expected; its keyspace.
    fn run(
        &self,
        program: &str,
        cassandra: &Cassandra,
        cgroup: Option<&Cgroup>,
        way: &str,
        version: u8,
        compression: &str,
    ) -> String {
        let keyspace = self.keyspace(way, version, compression);
        let schema = suite::folder().join("schema.cql");
        let args = [
            "--protocol",
            &version.to_string(),
            "--compression",
            compression,
            "--keyspace",
            &keyspace,
            "--schema",
            schema.to_str().unwrap(),
        ];
        let details = suite::run(cassandra, cgroup, &[program.as_ref()], &args);
        let mut wanted = expected();
        wanted.insert("keyspace".into(), keyspace.clone().into());
        wanted.insert("drop".into(), keyspace.clone().into());
        let speaks = format!("v{version}, {compression}");
        wanted.insert("connection".into(), speaks.into());
        assert_eq!(details, wanted);
        keyspace
    }

    /// Statements that are to be counted, by table.
    fn counts(&self) -> BTreeMap<String, Kinds> {
        let mut counts = sent();
        for (table, number) in self.prepares {
            let before = counts.get_mut(*table).unwrap();
            before.insert("prepare".into(), *number);
        }
        for (table, kind, number) in self.besides {
            let before = counts.get_mut(*table).unwrap();
            *before.entry((*kind).to_owned()).or_default() += number;
        }
        counts
    }
}

/// Reports of all cases, in any language.
fn expected() -> Details {
    let file = suite::folder().join("expected.json");
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Statements that each of the applications sends, by table, but for those that its driver
/// prepares.
fn sent() -> BTreeMap<String, Kinds> {
    let row = || kinds([("create", 1), ("insert", 1), ("select", 1)]);
    let tables = [
        ("made", kinds([("create", 1), ("alter", 1), ("drop", 1)])),
        (
            "types",
            kinds([("create", 1), ("insert", 2), ("select", 3)]),
        ),
        (
            "simple",
            kinds([
                ("create", 1),
                ("insert", 2),
                ("update", 1),
                ("delete", 1),
                ("truncate", 1),
                ("select", 2),
            ]),
        ),
        (
            "prepared",
            kinds([("create", 1), ("insert", 300), ("select", 300)]),
        ),
        // One of the selects has to be prepared again.
        (
            "altered",
            kinds([
                ("create", 1),
                ("insert", 1),
                ("alter", 1),
                ("update", 1),
                ("select", 3),
            ]),
        ),
        (
            "batched",
            kinds([("create", 1), ("batch", 2), ("select", 1)]),
        ),
        (
            "counted",
            kinds([("create", 1), ("batch", 1), ("select", 1)]),
        ),
        ("conditional", kinds([("create", 1), ("insert", 2)])),
        // 550 rows, 100 a page.
        (
            "paged",
            kinds([("create", 1), ("insert", 550), ("select", 6)]),
        ),
        ("large", row()),
        ("traced", row()),
        // And once more, in vain.
        ("erring", kinds([("create", 2)])),
        ("wrong", kinds([("create", 1)])),
        ("per_request", row()),
        ("used", row()),
    ];
    tables
        .map(|(table, kinds)| (table.to_owned(), kinds))
        .into()
}
