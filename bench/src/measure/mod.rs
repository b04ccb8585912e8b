//! `underpass-bench measure`: all that the README claims, in one run, into one file.

mod connects;
mod machine;
pub mod results;

use std::{
    fs,
    path::{Path as FilePath, PathBuf},
};

use anyhow::Context;

use crate::{
    client::raw,
    cql::Connection,
    demo::seconds,
    order::{Hello, Job, Load},
    path::Path,
    rig::{Cgroups, Database, Given, Rig, Round, compare},
};
use machine::{Machine, Source, Versions};
use results::{AgentRss, Cassandra, Comparison, Results, SCHEMA, Settings};

/// Of each client; each has one connection with one request in flight.
const THREADS: usize = 8;
/// Of each path on the embedded node, before the first counted round.
const WARM_UP_SECONDS: f64 = 2.0;
const CLIENT: &str = "CQL v4 over blocking sockets, one request in flight on each connection; \
                      prepared statements; rows of 10-byte keys and five columns of 34 bytes";

/// Options of `measure`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    given: Given,
    /// Where the results go
    #[arg(long, value_name = "FILE", default_value = "bench/results/slice.json")]
    out: PathBuf,
    /// Interleaved rounds
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long each path works in a round, under each load
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// How long each path warms Cassandra up, under each load: its JVM compiles as it goes
    #[arg(long, default_value_t = 15.0, value_parser = seconds)]
    warm_up: f64,
}

/// The command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // First: what it says must not depend on how long the rest takes.
    let (source, date) = (Source::find()?, machine::date()?);
    let connects = connects::measure()?;
    let node = on_node(args)?;
    let cassandra = match args.given.database() {
        Some(database) => Some(on_cassandra(args, &database)?),
        None => None,
    };
    let results = Results {
        schema: SCHEMA,
        date,
        source,
        machine: Machine::find()?,
        versions: Versions::find()?,
        settings: Settings {
            rounds: args.rounds,
            seconds: args.seconds,
            threads: THREADS,
            client: CLIENT.to_owned(),
        },
        node,
        cassandra,
        connects,
    };
    write(&results, &args.out)
}

fn on_node(args: &Args) -> anyhow::Result<Comparison> {
    let database = Database::embedded()?;
    raw::fill(database.address, None)?;
    let cgroups = Cgroups::new()?;
    let mut rig = Rig::start(&cgroups, &hello(&database))?;
    compare(&mut rig, Load::Mixed, WARM_UP_SECONDS, 0)?;
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        let round = compare(&mut rig, Load::Mixed, args.seconds, number as usize)?;
        say("embedded node", Load::Mixed, number, &round);
        rounds.push(round);
    }
    rig.stop()?;
    Ok(Comparison::new(&rounds))
}

fn on_cassandra(args: &Args, database: &Database) -> anyhow::Result<Cassandra> {
    let credentials = database.credentials.as_ref();
    let mut connection = Connection::open(database.address, credentials)?;
    let version = connection.text("SELECT release_version FROM system.local")?;
    raw::fill(database.address, credentials)?;
    let measured = under_both_loads(args, database);
    raw::clear(database.address, credentials)?;
    let ([read, write], agent_rss_peak_kib) = measured?;
    Ok(Cassandra {
        version,
        read: Comparison::new(&read),
        write: Comparison::new(&write),
        agent_rss_peak_kib,
    })
}

/// Rounds of reads, rounds of writes, and the agent's memory.
fn under_both_loads(
    args: &Args,
    database: &Database,
) -> anyhow::Result<([Vec<Round>; 2], AgentRss)> {
    let cgroups = Cgroups::new()?;
    let mut rig = Rig::start(&cgroups, &hello(database))?;
    let start = machine::rss_peak_kib(rig.agent.pid())?;
    machine::forget_rss_peak(rig.agent.pid())?;
    for load in [Load::Read, Load::Write] {
        let round = compare(&mut rig, load, args.warm_up, 0)?;
        say("Cassandra", load, 0, &round);
    }
    let mut rounds = [Vec::new(), Vec::new()];
    for number in 1..=args.rounds {
        for (load, rounds) in [Load::Read, Load::Write].into_iter().zip(&mut rounds) {
            let round = compare(&mut rig, load, args.seconds, number as usize)?;
            say("Cassandra", load, number, &round);
            rounds.push(round);
        }
    }
    let under_load = machine::rss_peak_kib(rig.agent.pid())?;
    rig.stop()?;
    Ok((rounds, AgentRss { start, under_load }))
}

fn hello(database: &Database) -> Hello {
    Hello {
        target: database.address,
        credentials: database.credentials.clone(),
        job: Job::Raw { threads: THREADS },
    }
}

fn say(what: &str, load: Load, number: u32, round: &Round) {
    let direct = &round.answers.direct;
    let each = Path::ALL.map(|path| {
        let answer = round.answers.of(path);
        format!(
            "{path} {:.0} op/s ({:.3}) p50 {:.1} µs ({:.3})",
            answer.op_s(),
            answer.op_s() / direct.op_s(),
            answer.latencies.quantile_us(0.5),
            answer.latencies.quantile_us(0.5) / direct.latencies.quantile_us(0.5),
        )
    });
    let load = format!("{load:?}").to_lowercase();
    let round = if number == 0 {
        "warm-up".to_owned()
    } else {
        format!("round {number}")
    };
    println!("{what}, {load}, {round}: {}", each.join(", "));
}

fn write(results: &Results, out: &FilePath) -> anyhow::Result<()> {
    if let Some(folder) = out.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut text = serde_json::to_string_pretty(results)?;
    text.push('\n');
    fs::write(out, text).with_context(|| format!("cannot write {}", out.display()))?;
    println!("written: {}", out.display());
    Ok(())
}
