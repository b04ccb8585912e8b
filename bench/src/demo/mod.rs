//! `underpass-bench demo`: what an operator sees of an application that was there first, a rule that is written and refuses, the cost
//! of each path at a fixed rate, and the proof that each flow took its path.

mod checks;
mod evidence;
mod order;
mod path;
mod rig;
mod shop;
mod show;
mod sockets;

use std::{net::SocketAddr, process::ExitCode};

use anyhow::{Context, ensure};
use load::{
    order::Credentials,
    workload::{Database, Topology},
};
use scylla::client::session::Session;
use tokio::runtime::Runtime;

pub use rig::SUBCOMMAND;
pub use shop::serve;

use crate::{
    databases::{Databases, Given},
    ways::Cgroups,
};
use evidence::Evidence;
use order::{Answer, Hello, Order, Work};
use path::{ByPath, Path};
use rig::{Rig, Round, Stage};

/// The number of requests at the same time, in each client.
const TASKS: usize = 8;
/// The seconds before the first counted round: connections, prepared statements, caches.
const WARM_UP_SECONDS: f64 = 1.0;
/// The seconds for which the application works while somebody looks at it.
const LOOKED_AT_SECONDS: f64 = 5.0;

/// Options of `demo`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    given: Given,
    /// Interleaved rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The seconds that each path works in a round
    #[arg(long, default_value_t = 1.0, value_parser = crate::seconds)]
    seconds: f64,
    /// The operations in a second, on each path: fewer than any path can do
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    rate: u32,
}

/// Runs the command. Success only if every check holds.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (name, database) = match args.given.cassandra {
        Some(_) => (
            "Cassandra",
            Databases::start(Database::Cassandra, 1, Topology::Host, &args.given)?,
        ),
        None => ("the embedded CQL node", Databases::node(1)?),
    };
    let to = *database
        .addresses
        .first()
        .context("a database without an address")?;
    show::step(&format!("{name} at {to}"));
    let credentials = database.credentials.as_ref();
    // This session does not go through the agent: the process is in none of the cgroups.
    let session = runtime.block_on(async {
        let session = shop::session(to, credentials).await?;
        shop::create(&session).await?;
        anyhow::Ok(session)
    })?;
    show::step("tables customers and orders, made by the scylla driver");
    let shown = demonstrate(args, to, credentials, &runtime, &session);
    let cleared = runtime.block_on(shop::clear(&session));
    let holds = shown?;
    cleared?;
    Ok(if holds {
        show::next();
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn demonstrate(
    args: &Args,
    to: SocketAddr,
    credentials: Option<&Credentials>,
    runtime: &Runtime,
    session: &Session,
) -> anyhow::Result<bool> {
    let cgroups = Cgroups::new(None)?;
    let hello = Hello {
        target: to,
        credentials: credentials.cloned(),
        tasks: TASKS,
    };
    show::step(&format!(
        "an application ({TASKS} tasks) dials {to}, and runs before the agent does"
    ));
    let stage = Stage::start(&cgroups, &hello)?;
    show::step(&format!(
        "an agent is attached: it found {} running connections, and reads them after {} ms",
        stage.found.connections,
        stage.found.after.as_millis()
    ));
    let guard = stage.guard()?;
    show::file(
        "a rule that is written now, for another application",
        &guard,
    );
    let truncate = format!("TRUNCATE {}.orders", shop::KEYSPACE);
    let refused = stage.execute(Path::Enrich, &truncate)?;
    show::statement(&truncate, refused.as_deref());
    show::command(&stage.agent, &["denied"])?;
    let left = runtime.block_on(shop::orders(session))?;
    let mut rig = stage.fill()?;
    show::step(&format!("four more applications, all dial {to}"));
    let looked_at = look(&mut rig, f64::from(args.rate))?;
    show::command(&rig.agent, &["flows", "--why"])?;
    let rounds = drive(args, &mut rig)?;
    let database_sees = runtime.block_on(clients(session));
    let mut sent = total(&rounds)?;
    sent.tap.add(looked_at)?;
    // What is refused is counted, too.
    sent.enrich.count_sent("orders", "truncate", 1);
    let evidence = Evidence::collect(&rig, to, sent, database_sees)?;
    let guarded = checks::guarded(refused.as_deref(), left);
    let checks = checks::all(&evidence);
    show::comparison(args.rate, rounds.get(1..).unwrap_or_default());
    let pins = rig.agent.pins().to_owned();
    rig.stop()?;
    let gone = checks::gone(&pins);
    Ok(show::checks(checks.iter().chain([&guarded, &gone])))
}

/// Looks at the application that was there first while it works, as an operator does.
fn look(rig: &mut Rig<'_>, per_second: f64) -> anyhow::Result<Answer> {
    let work = Work {
        seconds: LOOKED_AT_SECONDS,
        per_second,
        reports: true,
    };
    let application = &mut rig.applications.tap;
    application.say(&Order::Work(work))?;
    show::command(&rig.agent, &["top", "--once"])?;
    let slow = [
        "tail",
        "--slower-than",
        "1ms",
        "--filter",
        "table=underpass_demo.orders,kind=select",
        "--count",
        "1",
    ];
    show::command(&rig.agent, &slow)?;
    rig::answer(application, work)
}

/// The warm-up, and the rounds that count.
fn drive(args: &Args, rig: &mut Rig<'_>) -> anyhow::Result<Vec<Round>> {
    let rate = f64::from(args.rate);
    let mut rounds = vec![rig.round(WARM_UP_SECONDS, rate, 0)?];
    show::step(&format!(
        "{} interleaved rounds of {} s on each path, at {} op/s",
        args.rounds, args.seconds, args.rate
    ));
    for number in 1..=args.rounds {
        let round = rig.round(args.seconds, rate, number as usize)?;
        none_failed(&round, rig)?;
        rounds.push(round);
    }
    Ok(rounds)
}

/// A path that fails is not worth comparing any longer.
fn none_failed(round: &Round, rig: &Rig<'_>) -> anyhow::Result<()> {
    for path in Path::ALL {
        let answer = round.answers.of(path);
        let first = answer.first_error.as_deref().unwrap_or_default();
        ensure!(
            answer.errors == 0,
            "{path}: {} statements failed, the first with: {first}\nthe agent said:\n{}",
            answer.errors,
            rig.agent.log()
        );
    }
    Ok(())
}

fn total(rounds: &[Round]) -> anyhow::Result<ByPath<Answer>> {
    let mut total = ByPath::try_new(|_| Answer::empty())?;
    for round in rounds {
        for path in Path::ALL {
            total.of_mut(path).add(round.answers.of(path).clone())?;
        }
    }
    Ok(total)
}

/// Returns the clients that the database reports as connected.
async fn clients(session: &Session) -> anyhow::Result<Vec<SocketAddr>> {
    let query = "SELECT address, port FROM system_views.clients";
    let rows = session.query_unpaged(query, ()).await.context(query)?;
    let rows = rows.into_rows_result()?;
    rows.rows::<(std::net::IpAddr, i32)>()?
        .map(|row| {
            let (address, port) = row?;
            Ok(SocketAddr::new(address, u16::try_from(port)?))
        })
        .collect()
}
