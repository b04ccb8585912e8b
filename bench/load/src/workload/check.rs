//! The limits of a workload.

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};

use super::{Bind, Client, Database, Job, Operation, Protocol, Step, Topology, Variant, words};
use crate::{plan, values};

/// The number of stream ids of native protocol v4 (§2.3).
const MAX_DEPTH: usize = 32_768;
/// The most threads: more only wait for each other, on any machine that this runs on.
const MAX_THREADS: usize = 1_024;
/// The most connections: one process's descriptors, on systems that let it have no more.
const MAX_CONNECTIONS: usize = 60_000;
/// The most requests under way in one generator: each has a place in memory.
const MAX_IN_FLIGHT: usize = 1 << 20;
/// The most targets of one generator: the shortest sweep that is worth a plot ends far below.
const MAX_NODES: usize = 256;
/// The most keys: those of [`Bind::Key`] have ten digits.
const MAX_KEYS: u64 = 10_000_000_000;
/// The most statements of a batch, which counts them in two bytes; a pipeline of more is a mistake.
const MAX_COUNT: usize = 65_535;
/// The most bytes of a request: Cassandra refuses larger mutations by default.
const MAX_REQUEST_BYTES: usize = 16 << 20;
/// The most bytes of a value; one is far below.
const MAX_VALUE_BYTES: usize = 1 << 20;

/// Checks a part of an id, which becomes a file's name and a heading.
pub fn name(name: &str) -> anyhow::Result<()> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    ensure!(
        !name.is_empty() && name.bytes().all(fits),
        "{name:?} is no name: letters, digits, `-`, `_` and `.`"
    );
    Ok(())
}

/// A variant, as it is run.
pub fn variant(variant: &Variant) -> anyhow::Result<()> {
    let (database, job) = (variant.database, &variant.job);
    let fits = match database {
        Database::Node | Database::Cassandra => job.protocol != Protocol::Redis,
        Database::Redis => job.protocol != Protocol::Cql,
        Database::Listener => job.protocol == Protocol::Connect,
    };
    ensure!(fits, "a {database:?} does not speak {:?}", job.protocol);
    let nodes = variant.nodes;
    ensure!((1..=MAX_NODES).contains(&nodes), "nodes = {nodes}");
    ensure!(
        nodes == 1 || database == Database::Node,
        "only embedded nodes can be several"
    );
    let is_ours = matches!(database, Database::Node | Database::Listener);
    ensure!(
        variant.topology == Topology::Host || (nodes == 1 && is_ours),
        "behind a gateway is one server of the benchmark's own"
    );
    ensure!(
        variant.topology == Topology::Host || variant.paths.is_empty(),
        "behind a gateway all paths are compared"
    );
    self::job(job)?;
    for group in plan::groups(job)? {
        ensure!(
            job.client == Client::Driver || group.connections >= nodes,
            "{} connections are too few for {nodes} nodes",
            group.connections
        );
    }
    Ok(())
}

fn job(job: &Job) -> anyhow::Result<()> {
    let Job {
        threads,
        connections,
        depth,
        ..
    } = *job;
    ensure!((1..=MAX_THREADS).contains(&threads), "threads = {threads}");
    ensure!((1..=MAX_DEPTH).contains(&depth), "depth = {depth}");
    ensure!(
        (1..=MAX_CONNECTIONS).contains(&connections),
        "connections = {connections}"
    );
    let shares_connections = job.client == Client::Driver;
    ensure!(
        shares_connections || connections >= threads,
        "connections = {connections} are fewer than threads = {threads}"
    );
    ensure!(
        connections * depth <= MAX_IN_FLIGHT,
        "{connections} connections with {depth} requests each are more than {MAX_IN_FLIGHT}"
    );
    match job.rate {
        Some(rate) => {
            ensure!(rate.is_finite() && rate > 0.0, "rate = {rate}");
            ensure!(
                connections * depth >= threads,
                "depth × connections are fewer than threads = {threads}"
            );
        }
        None => ensure!(
            !shares_connections || depth == 1,
            "a thread that asks a driver waits for its answer: depth = {depth} needs a rate"
        ),
    }
    ensure!(
        (1..=MAX_KEYS).contains(&job.keys.count),
        "keys: count = {}",
        job.keys.count
    );
    let has_statements = !job.create.is_empty() || !job.clear.is_empty();
    ensure!(
        job.protocol == Protocol::Cql || !has_statements,
        "create and clear are for CQL"
    );
    match (job.protocol, job.client) {
        (Protocol::Connect, Client::Driver) => bail!("no driver only connects"),
        (Protocol::Connect, Client::Raw) => ensure!(
            connections == threads && depth == 1,
            "a thread makes one connection at a time: connections = threads, depth = 1"
        ),
        (Protocol::Redis, Client::Driver) => bail!("no driver of Redis is measured"),
        _ => {}
    }
    operations(job)
}

fn operations(job: &Job) -> anyhow::Result<()> {
    let mut names = BTreeSet::new();
    for operation in &job.operations {
        let in_operation = || format!("operation {:?}", operation.name);
        name(&operation.name)?;
        let is_new = names.insert(&*operation.name);
        ensure!(is_new, "operation {:?} is there twice", operation.name);
        self::operation(operation, job.protocol).with_context(in_operation)?;
    }
    ensure!(
        job.operations.iter().any(Operation::is_active),
        "no operation has a weight or connections"
    );
    if let Some(fill) = &job.fill {
        ensure!(
            job.protocol != Protocol::Connect,
            "nothing is filled by connecting"
        );
        ensure!(
            names.contains(&**fill),
            "fill: there is no operation {fill:?}"
        );
    }
    let has_driver_groups = job.client == Client::Driver;
    let has_own = job.operations.iter().any(|o| o.connections > 0);
    ensure!(
        !(has_driver_groups && has_own),
        "a driver chooses connections itself: operations cannot have their own"
    );
    Ok(())
}

fn operation(operation: &Operation, protocol: Protocol) -> anyhow::Result<()> {
    ensure!(
        operation.weight == 0 || operation.connections == 0,
        "it has a weight and connections of its own"
    );
    if protocol == Protocol::Connect {
        ensure!(operation.steps.is_empty(), "a connect() has no steps");
        return Ok(());
    }
    ensure!(!operation.steps.is_empty(), "it has no steps");
    for step in &operation.steps {
        match (protocol, step) {
            (Protocol::Cql, Step::Statement { cql, bind }) => statement(cql, bind)?,
            (
                Protocol::Cql,
                Step::Batch {
                    cql, bind, count, ..
                },
            ) => {
                self::count(*count)?;
                statement(cql, bind)?;
            }
            (Protocol::Redis, Step::Redis { command, count }) => {
                self::count(*count)?;
                ensure!(!command.is_empty(), "an empty command");
                for word in command {
                    for part in words::parse(word)? {
                        if let words::Part::Bind(bind) = part {
                            self::bind(bind)?;
                        }
                    }
                }
            }
            _ => bail!("a step of another protocol than {protocol:?}"),
        }
        let bytes = values::bytes(step);
        ensure!(
            bytes <= MAX_REQUEST_BYTES,
            "{bytes} bytes of values in a request are more than {MAX_REQUEST_BYTES}"
        );
    }
    Ok(())
}

fn count(count: usize) -> anyhow::Result<()> {
    ensure!((1..=MAX_COUNT).contains(&count), "count = {count}");
    Ok(())
}

fn statement(cql: &str, binds: &[Bind]) -> anyhow::Result<()> {
    let wanted = markers(cql);
    ensure!(
        wanted == binds.len(),
        "{cql}: {wanted} `?` and {} to bind",
        binds.len()
    );
    binds.iter().try_for_each(|bind| self::bind(*bind))
}

fn bind(bind: Bind) -> anyhow::Result<()> {
    match bind {
        Bind::Value(bytes) | Bind::Text(bytes) => ensure!(
            bytes <= MAX_VALUE_BYTES,
            "{bytes} bytes are more than {MAX_VALUE_BYTES}"
        ),
        Bind::Int(below) => ensure!(below > 0, "int:{below}: nothing is below it"),
        Bind::Key | Bind::KeyText | Bind::Bigint | Bind::Now => {}
    }
    Ok(())
}

/// `?` outside of quotes.
fn markers(cql: &str) -> usize {
    let mut quote = None;
    let mut markers = 0;
    for character in cql.chars() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (None, '?') => markers += 1,
            (Some(open), close) if open == close => quote = None,
            _ => {}
        }
    }
    markers
}
