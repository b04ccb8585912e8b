//! Statements at random go to Cassandra twice: directly, and through steps that have nothing to do with them. The answers
//! are the same, byte for byte, and so are the rows that the writes have left.
//!
//! Each way has a keyspace of its own, with a name of the same length, so that both begin with the same rows and stay
//! alike. Without `UNDERPASS_STATEMENTS` a few statements go through all steps at once; it says how many go through
//! these, and then through each step alone.

mod odd;
mod peer;

use std::{fmt::Write, time::Instant};

use cql_edit::Incoming;
use grammar::{Statement, TABLES, schema, statement};
use peer::{Answer, ERROR, Peer, RESULT};
use sandbox::{Cgroup, run_in};

use super::cassandra::Cassandra;

/// The keyspaces: of those who ask directly, and of those who are seen.
const KEYSPACES: [&str; 2] = ["gena", "genb"];

/// Statements that go through all steps at once.
const FEW: u64 = 400;

/// Steps that have nothing to do with the statements.
const STEPS: [&str; 17] = [
    "{ transform = \"throttle\", rate = 1000000 }",
    "{ transform = \"guard\", refuse = [\"unknown\", \"roles\", \"ddl\"], max_in = 100000, max_batch = 1000 }",
    "{ transform = \"guard\", tables = [\"genb.*\", \"system*\"] }",
    "{ transform = \"consistency\", at_least = \"ONE\" }",
    "{ transform = \"paging\", at_most = 5000 }",
    "{ transform = \"rewrite\", max_ttl = \"7300d\", timestamps = { max_ahead = \"1s\" } }",
    "{ transform = \"lookup\" }",
    "{ transform = \"tag\", service = \"suite\" }",
    "{ transform = \"tracing\", one_in = 4294967295 }",
    "{ transform = \"stats\" }",
    "{ transform = \"slowlog\", over = \"20s\" }",
    "{ transform = \"count\" }",
    "{ transform = \"audit\", file = \"$FOLDER/audit\", statement = true }",
    "{ transform = \"trace\", endpoint = \"http://127.0.0.1:1\", sample = 0 }",
    "{ transform = \"debug\", file = \"$FOLDER/debug\", values = true, per_second = 100000 }",
    "{ transform = \"cache\", redis = \"127.0.0.1:1\", tables = [\"genb.nothing\"], ttl = \"30s\" }",
    "{ transform = \"fold\" }",
];

/// Steps that cannot stand beside all others, or that only a whole run takes.
const ALONE: [&str; 6] = [
    "{ transform = \"rewrite\", keyspaces = { nowhere = \"elsewhere\" }, tables = { \"genb.nothing\" = \"genb.anything\" } }",
    "{ transform = \"rewrite\", addresses = \"dialled\" }",
    "{ transform = \"tag\", service = \"suite\", comment = true }",
    "{ transform = \"mirror\", to = \"127.0.0.1:1\", what = [\"reads\", \"writes\"] }",
    "{ transform = \"protect\", columns = { \"genb.nothing\" = [\"v\", \"d\"] }, keys = \"$FOLDER/keys\" }",
    "{ transform = \"coalesce\", tables = { \"genb.nothing\" = { partition_key = [\"k\"], clustering = [\"c\"], columns = [\"v\"] } } }",
];

/// Seeds of a soak's round, sixteen for each pipeline: more than there are steps.
const PIPELINES: u64 = 1_000;

/// The number of statements for each step alone.
fn many() -> Option<u64> {
    std::env::var("UNDERPASS_STATEMENTS").ok()?.parse().ok()
}

/// Bytes of differences after which no more are looked for.
const MOST_TOLD: usize = 20_000;

/// How a conversation goes.
#[derive(Clone, Copy, Debug)]
struct Kind {
    version: u8,
    prepares: bool,
    seed: u64,
    count: u64,
}

#[test]
fn answers_are_those_without_the_agent() {
    let test = "differential::answers_are_those_without_the_agent";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let mut owner = Peer::begin(&cassandra, 4);
    let mut pipelines = vec![STEPS.join(",\n")];
    if many().is_some() {
        pipelines.extend(STEPS.iter().chain(&ALONE).map(ToString::to_string));
    }
    let (mut differences, mut statements) = (String::new(), 0);
    let begun = Instant::now();
    for (nth, steps) in (0..).zip(&pipelines) {
        // Cassandra has room for as many prepared statements as there are now, and forgets them with their tables.
        for keyspace in KEYSPACES {
            owner.done(&format!("DROP KEYSPACE IF EXISTS {keyspace}"));
            for create in schema(keyspace) {
                owner.done(&create);
            }
        }
        let cgroup = Cgroup::new().unwrap();
        let more = format!("pipeline = [\n{steps},\n]");
        let agent = cassandra.agent_with(&cgroup, "enrich", "closed", &more);
        let count = many().unwrap_or(FEW) / 4;
        for (version, prepares) in [(4, false), (4, true), (5, false), (5, true)] {
            let seed = (sandbox::seed() * PIPELINES + nth) * 16
                + u64::from(version) * 2
                + u64::from(prepares);
            let kind = Kind {
                version,
                prepares,
                seed,
                count,
            };
            differences += &compare(&cassandra, &cgroup, kind, steps);
            statements += kind.count;
        }
        drop(agent);
        differences += &left(&mut owner, steps);
    }
    println!(
        "{statements} statements, through {} pipelines: {} s",
        pipelines.len(),
        begun.elapsed().as_secs()
    );
    for keyspace in KEYSPACES {
        owner.done(&format!("DROP KEYSPACE {keyspace}"));
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Asks both ways. Returns what differs, for people.
fn compare(cassandra: &Cassandra, cgroup: &Cgroup, kind: Kind, steps: &str) -> String {
    let seen = run_in(None, Some(cgroup), || Peer::begin(cassandra, kind.version));
    let mut peers = [Peer::begin(cassandra, kind.version), seen.unwrap()];
    for (peer, keyspace) in peers.iter_mut().zip(KEYSPACES) {
        peer.done(&format!("USE {keyspace}"));
    }
    let (mut differences, mut asked, mut accepted) = (String::new(), 0, 0);
    for n in 0..kind.count {
        let [direct, through] = [0, 1].map(|way| {
            let made = statement(kind.seed, n, KEYSPACES[way]);
            let answers = peers[way].asks(&made, n, kind.prepares);
            (made, answers)
        });
        accepted += u64::from(direct.1.last().is_some_and(|last| last.opcode == RESULT));
        asked += 1;
        if let Some(why) = differ(&direct, &through) {
            let _ = writeln!(
                differences,
                "{steps}\n{kind:?} statement {n}: {:?}\n{why}",
                through.0.text
            );
        }
        if differences.len() > MOST_TOLD {
            break;
        }
    }
    // Otherwise it would be errors that are compared.
    assert!(
        accepted * 10 > asked * 6,
        "{accepted} of {asked} are legal ({steps}, {kind:?}); {differences}"
    );
    differences
}

/// The rows that both ways have left in the tables, read directly. Returns how they differ, for people.
fn left(owner: &mut Peer, steps: &str) -> String {
    let (mut differences, mut rows) = (String::new(), 0);
    for table in TABLES {
        let [direct, through] = KEYSPACES.map(|keyspace| {
            let all = format!("SELECT JSON * FROM {keyspace}.\"{}\"", table.name);
            let answer = owner.done(&all);
            rows += answer.json_rows().unwrap();
            (answer.meaning(keyspace), answer)
        });
        if direct.0 != through.0 {
            let _ = writeln!(
                differences,
                "{steps}\nthe rows of {}\ndirectly: {:?}\nthrough:  {:?}\n",
                table.name, direct.1, through.1
            );
        }
    }
    // Otherwise it would be empty tables that are compared.
    assert!(rows > 0, "nothing was written ({steps})");
    differences
}

/// How the answers differ.
fn differ(direct: &(Statement, Vec<Answer>), through: &(Statement, Vec<Answer>)) -> Option<String> {
    let is_same = |(one, other): (&Answer, &Answer)| {
        one.opcode == other.opcode
            && (!direct.0.is_certain && one.opcode != ERROR
                || one.meaning(KEYSPACES[0]) == other.meaning(KEYSPACES[1]))
    };
    let (one, other) = (&direct.1, &through.1);
    let same = one.len() == other.len() && one.iter().zip(other).all(is_same);
    (!same).then(|| format!("directly: {one:?}\nthrough:  {other:?}\n"))
}
