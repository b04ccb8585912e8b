//! `underpass-bench demo`: an application over each path, the cost of each path, the statements
//! that enrichment sees, and the proof that each flow took its path.

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
use order::{Answer, Hello};
use path::{ByPath, Path};
use rig::{Rig, Round};

/// The number of requests at the same time, in each client.
const TASKS: usize = 8;
/// The seconds before the first counted round: connections, prepared statements, caches.
const WARM_UP_SECONDS: f64 = 1.0;

/// Options of `demo`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    given: Given,
    /// Interleaved rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The seconds that each path works in a round
    #[arg(long, default_value_t = 2.0, value_parser = crate::seconds)]
    seconds: f64,
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
    let mut rig = Rig::start(&cgroups, &hello)?;
    show::step(&format!(
        "an application ({TASKS} tasks) that dials {to}, and runs before the agent does"
    ));
    show::step(&format!(
        "agent {} attached to a cgroup of its own, with three rules: bypass, tap, enrich",
        rig.agent.pid()
    ));
    show::step(&format!(
        "the agent found {} running connections, and reads them after {} ms",
        rig.found.connections,
        rig.found.after.as_millis()
    ));
    show::step(&format!(
        "three more applications, for direct, bypass and enrich; all dial {to}"
    ));
    let rounds = drive(args, &mut rig)?;
    let database_sees = runtime.block_on(clients(session));
    let sent = total(&rounds)?;
    let evidence = Evidence::collect(&rig, to, sent, database_sees)?;
    let checks = checks::all(&evidence);
    show::comparison(rounds.get(1..).unwrap_or_default());
    show::statements(&evidence);
    let pins = rig.agent.pins().to_owned();
    rig.stop()?;
    let gone = checks::gone(&pins);
    Ok(show::checks(checks.iter().chain([&gone])))
}

/// The warm-up, and the rounds that count.
fn drive(args: &Args, rig: &mut Rig<'_>) -> anyhow::Result<Vec<Round>> {
    let mut rounds = vec![rig.round(WARM_UP_SECONDS, 0)?];
    show::step("warmed up");
    for number in 1..=args.rounds {
        let round = rig.round(args.seconds, number as usize)?;
        show::round(number, args.rounds, &round);
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
