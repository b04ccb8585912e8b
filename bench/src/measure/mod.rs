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
    client::rows,
    cql::Connection,
    demo::seconds,
    order::{Hello, Job, Load},
    path::Path,
    rig::{Cgroups, Database, Given, Rig, Round, compare},
};
use machine::{Machine, Source, Versions};
use results::{AgentRss, Cassandra, Comparison, Loads, Results, SCHEMA, Settings};

/// Of each client.
const THREADS: usize = 8;
/// The least client there can be: what a path costs shows best.
const RAW: Job = Job::Raw { threads: THREADS };
/// The client that applications have.
const DRIVER: Job = Job::Stress { threads: THREADS };
/// Times as many rounds on the embedded node: a single round scatters by 3 to 5 %, and there
/// the bar is 2 %.
const NODE_ROUNDS: u32 = 3;
/// Of each path on the embedded node, before the first counted round.
const WARM_UP_SECONDS: f64 = 2.0;
/// Options of `measure`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    given: Given,
    /// Where the results go
    #[arg(long, value_name = "FILE", default_value = "bench/results/slice.json")]
    out: PathBuf,
    /// Interleaved rounds; three times as many on the embedded node
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
        },
        node,
        cassandra,
        connects,
    };
    write(&results, &args.out)
}

fn on_node(args: &Args) -> anyhow::Result<Comparison> {
    let database = Database::embedded()?;
    rows::fill(database.address, None)?;
    let cgroups = Cgroups::new()?;
    let mut rig = Rig::start(&cgroups, &hello(&database, RAW))?;
    compare(&mut rig, Load::Mixed, WARM_UP_SECONDS, 0)?;
    let mut rounds = Vec::new();
    for number in 1..=args.rounds * NODE_ROUNDS {
        rig.reconnect(number as usize)?;
        let round = compare(&mut rig, Load::Mixed, args.seconds, number as usize)?;
        say("embedded node, raw", Load::Mixed, number, &round);
        rounds.push(round);
    }
    rig.stop()?;
    Ok(Comparison::new(&rounds))
}

fn on_cassandra(args: &Args, database: &Database) -> anyhow::Result<Cassandra> {
    let credentials = database.credentials.as_ref();
    let mut connection = Connection::open(database.address, credentials)?;
    let version = connection.text("SELECT release_version FROM system.local")?;
    rows::fill(database.address, credentials)?;
    let measured = loads(args, database, "driver", DRIVER)
        .and_then(|driver| Ok((driver, loads(args, database, "raw", RAW)?)));
    rows::clear(database.address, credentials)?;
    let (driver, raw) = measured?;
    Ok(Cassandra {
        version,
        driver,
        raw,
    })
}

fn loads(args: &Args, database: &Database, name: &str, job: Job) -> anyhow::Result<Loads> {
    let name = format!("Cassandra, {name}");
    let cgroups = Cgroups::new()?;
    let mut rig = Rig::start(&cgroups, &hello(database, job))?;
    let start = machine::rss_peak_kib(rig.agent.pid())?;
    machine::forget_rss_peak(rig.agent.pid())?;
    for load in [Load::Read, Load::Write] {
        let round = compare(&mut rig, load, args.warm_up, 0)?;
        say(&name, load, 0, &round);
    }
    let [mut reads, mut writes] = [Vec::new(), Vec::new()];
    for number in 1..=args.rounds {
        rig.reconnect(number as usize)?;
        for (load, rounds) in [(Load::Read, &mut reads), (Load::Write, &mut writes)] {
            let round = compare(&mut rig, load, args.seconds, number as usize)?;
            say(&name, load, number, &round);
            rounds.push(round);
        }
    }
    let under_load = machine::rss_peak_kib(rig.agent.pid())?;
    rig.stop()?;
    Ok(Loads {
        read: Comparison::new(&reads),
        write: Comparison::new(&writes),
        agent_rss_peak_kib: AgentRss { start, under_load },
    })
}

fn hello(database: &Database, job: Job) -> Hello {
    Hello {
        target: database.address,
        credentials: database.credentials.clone(),
        job,
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
