//! Statements at random go to Cassandra twice: directly, and through steps that have nothing to do with them. The answers
//! are the same, byte for byte, and so are the rows that the writes have left.
//!
//! Each way has a keyspace of its own, with a name of the same length, so that both begin with the same rows and stay
//! alike. `UNDERPASS_STATEMENTS` says how many statements go through all steps at once, and `UNDERPASS_STATEMENTS_ALONE`
//! how many through each step alone: a few, and none.

mod odd;
mod peer;

use std::{fmt::Write, thread, time::Instant};

use cql_edit::Incoming;
use grammar::{Statement, TABLES, schema, statement};
use peer::{Answer, ERROR, Peer, RESULT};
use sandbox::{Cgroup, run_in};

use super::{cassandra::Cassandra, protect::Keys};

/// The conversations that are held at the same time, each in keyspaces of its own: of who asks directly, and of who is
/// seen.
const CONVERSATIONS: [Conversation; 4] = [
    Conversation {
        version: 4,
        prepares: false,
        keyspaces: ["gena", "genb"],
    },
    Conversation {
        version: 4,
        prepares: true,
        keyspaces: ["genc", "gend"],
    },
    Conversation {
        version: 5,
        prepares: false,
        keyspaces: ["gene", "genf"],
    },
    Conversation {
        version: 5,
        prepares: true,
        keyspaces: ["geng", "genh"],
    },
];

/// Statements that go through all steps at once.
const FEW: u64 = 400;

/// Steps that have nothing to do with the statements.
const STEPS: [&str; 17] = [
    "{ transform = \"throttle\", rate = 1000000 }",
    "{ transform = \"guard\", refuse = [\"unknown\", \"roles\", \"ddl\"], max_in = 100000, max_batch = 1000 }",
    "{ transform = \"guard\", tables = [\"gen*\", \"system*\"] }",
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

/// Steps that cannot stand beside all others.
const ALONE: [&str; 6] = [
    "{ transform = \"rewrite\", keyspaces = { nowhere = \"elsewhere\" }, tables = { \"genb.nothing\" = \"genb.anything\" } }",
    "{ transform = \"rewrite\", addresses = \"dialled\" }",
    "{ transform = \"tag\", service = \"suite\", comment = true }",
    "{ transform = \"mirror\", to = \"127.0.0.1:1\", what = [\"reads\", \"writes\"] }",
    "{ transform = \"protect\", columns = { \"genb.nothing\" = [\"v\", \"d\"] }, keys = \"$KEYS\" }",
    "{ transform = \"coalesce\", tables = { \"genb.nothing\" = { partition_key = [\"k\"], clustering = [\"c\"], columns = [\"v\"] } } }",
];

/// Seeds of a soak's round, sixteen for each pipeline: more than there are steps.
const PIPELINES: u64 = 1_000;

/// A number of statements, if it is set.
fn set(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The number of statements for each step alone.
fn alone() -> Option<u64> {
    set("UNDERPASS_STATEMENTS_ALONE")
}

/// Every step by itself, with its keys in this file.
fn by_themselves(keys: &Keys) -> Vec<String> {
    let file = keys.file().display().to_string();
    let all = STEPS.iter().chain(&ALONE);
    all.map(|step| step.replace("$KEYS", &file)).collect()
}

/// Statements after which tables are made anew: Cassandra has room for as many that are prepared, and forgets them with
/// their tables.
const MOST_PREPARED: u64 = 10_000;

/// Bytes of differences after which no more are looked for.
const MOST_TOLD: usize = 20_000;

/// How a conversation goes.
#[derive(Clone, Copy, Debug)]
struct Conversation {
    version: u8,
    prepares: bool,
    keyspaces: [&'static str; 2],
}

/// The statements of a conversation.
#[derive(Clone, Copy, Debug)]
struct Statements {
    seed: u64,
    count: u64,
}

#[test]
fn answers_are_those_without_the_agent() {
    let test = "differential::answers_are_those_without_the_agent";
    let count = set("UNDERPASS_STATEMENTS").unwrap_or(FEW);
    compared(test, &[STEPS.join(",\n")], count);
}

/// Only where the time for it is given.
#[test]
fn answers_through_each_step_are_those_without_it() {
    let test = "differential::answers_through_each_step_are_those_without_it";
    let keys = Keys::new();
    if let Some(count) = alone() {
        compared(test, &by_themselves(&keys), count);
    }
}

/// Holds all conversations through each pipeline.
fn compared(test: &str, pipelines: &[String], count: u64) {
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let mut owner = Peer::begin(&cassandra, 4);
    let (mut differences, begun) = (String::new(), Instant::now());
    let mut since_made = u64::MAX;
    for (nth, steps) in (0..).zip(pipelines) {
        if since_made >= MOST_PREPARED {
            make(&mut owner);
            since_made = 0;
        }
        since_made += count;
        let cgroup = Cgroup::new().unwrap();
        let more = format!("pipeline = [\n{steps},\n]");
        let agent = cassandra.agent_with(&cgroup, "enrich", "closed", &more);
        let count = count / CONVERSATIONS.len() as u64;
        let (cassandra, cgroup) = (&cassandra, &cgroup);
        let held = thread::scope(|scope| {
            let seeds = (sandbox::seed() * PIPELINES + nth) * 16..;
            let held = seeds.zip(CONVERSATIONS).map(|(seed, conversation)| {
                let statements = Statements { seed, count };
                scope.spawn(move || compare(cassandra, cgroup, conversation, statements))
            });
            let held: Vec<_> = held.collect();
            let told = held.into_iter().map(|one| one.join().unwrap());
            told.collect::<String>()
        });
        drop(agent);
        let left = CONVERSATIONS.map(|conversation| left(&mut owner, conversation));
        println!("{count} statements in each of four conversations: {steps}");
        for told in [&held, &left.concat()] {
            if !told.is_empty() {
                println!("{told}");
                let _ = writeln!(differences, "{steps}\n{told}");
            }
        }
    }
    for keyspace in CONVERSATIONS.iter().flat_map(|one| one.keyspaces) {
        owner.done(&format!("DROP KEYSPACE {keyspace}"));
    }
    println!(
        "{} pipelines in {} s",
        pipelines.len(),
        begun.elapsed().as_secs()
    );
    assert!(differences.is_empty(), "{differences}");
}

/// Makes the tables anew.
fn make(owner: &mut Peer) {
    for keyspace in CONVERSATIONS.iter().flat_map(|one| one.keyspaces) {
        owner.done(&format!("DROP KEYSPACE IF EXISTS {keyspace}"));
        for create in schema(keyspace) {
            owner.done(&create);
        }
    }
}

/// Asks both ways. Returns what differs, for people.
fn compare(
    cassandra: &Cassandra,
    cgroup: &Cgroup,
    conversation: Conversation,
    statements: Statements,
) -> String {
    let Conversation {
        version,
        prepares,
        keyspaces,
    } = conversation;
    let seen = run_in(None, Some(cgroup), || Peer::begin(cassandra, version));
    let mut peers = [Peer::begin(cassandra, version), seen.unwrap()];
    for (peer, keyspace) in peers.iter_mut().zip(keyspaces) {
        peer.done(&format!("USE {keyspace}"));
    }
    let (mut differences, mut asked, mut accepted) = (String::new(), 0, 0);
    for n in 0..statements.count {
        let [direct, through] = [0, 1].map(|way| {
            let made = statement(statements.seed, n, keyspaces[way]);
            let answers = peers[way].asks(&made, n, prepares);
            (made, answers)
        });
        accepted += u64::from(direct.1.last().is_some_and(|last| last.opcode == RESULT));
        asked += 1;
        if let Some(why) = differ(keyspaces, &direct, &through) {
            let _ = writeln!(
                differences,
                "{conversation:?} {statements:?} {n}: {:?}\n{why}",
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
        "{accepted} of {asked} are legal ({conversation:?}, {statements:?}); {differences}"
    );
    differences
}

/// The rows that both ways have left in the tables, read directly. Returns how they differ, for people.
fn left(owner: &mut Peer, conversation: Conversation) -> String {
    let (mut differences, mut rows) = (String::new(), 0);
    for table in TABLES {
        let [direct, through] = conversation.keyspaces.map(|keyspace| {
            let all = format!("SELECT JSON * FROM {keyspace}.\"{}\"", table.name);
            let answer = owner.done(&all);
            rows += answer.json_rows().unwrap();
            (answer.meaning(keyspace), answer)
        });
        if direct.0 != through.0 {
            let _ = writeln!(
                differences,
                "{conversation:?}: the rows of {}\ndirectly: {:?}\nthrough:  {:?}\n",
                table.name, direct.1, through.1
            );
        }
    }
    // Otherwise it would be empty tables that are compared.
    assert!(rows > 0, "nothing was written ({conversation:?})");
    differences
}

/// How the answers differ.
fn differ(
    keyspaces: [&str; 2],
    direct: &(Statement, Vec<Answer>),
    through: &(Statement, Vec<Answer>),
) -> Option<String> {
    let is_same = |(one, other): (&Answer, &Answer)| {
        one.opcode == other.opcode
            && (!direct.0.is_certain && one.opcode != ERROR
                || one.meaning(keyspaces[0]) == other.meaning(keyspaces[1]))
    };
    let (one, other) = (&direct.1, &through.1);
    let same = one.len() == other.len() && one.iter().zip(other).all(is_same);
    (!same).then(|| format!("directly: {one:?}\nthrough:  {other:?}\n"))
}
