//! `underpass-bench demo`: what an operator sees of an application that was there first, a rule that is written and refuses, the cost
//! of each path at a fixed rate, and the proof that each flow took its path.

mod checks;
mod shop;
mod show;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use load::order::Answer;
use sandbox::{Agent, run_in};
use scylla::client::session::Session;
use tokio::runtime::Runtime;

use crate::{
    account::connected,
    databases::{Databases, Given},
    interrupt,
    paths::{AGAIN, DIRECT},
    run::{generator::Generator, shuffle::Shuffle},
    server::binary,
    ways::Cgroups,
};
use checks::{Evidence, Seen, Statement};
use shop::{Shop, TRUNCATE, runtime};

/// The paths, the one that the others are compared with first. Each has a rule of its name, but for the two directs.
const PATHS: [&str; 5] = [DIRECT, AGAIN, BYPASS, TAP, ENRICH];
/// The paths that have a rule, of one agent.
const RULED: [&str; 3] = [BYPASS, TAP, ENRICH];
const BYPASS: &str = "bypass";
const TAP: &str = "tap";
const ENRICH: &str = "enrich";

/// The seconds before the first counted round: connections, prepared statements, caches.
const WARM_UP_SECONDS: f64 = 1.0;
/// The seconds for which the application works while somebody looks at it.
const LOOKED_AT_SECONDS: f64 = 5.0;
/// The length of a turn, of which a path's round is made. It is short because a shared machine changes its speed from second
/// to second.
const TURN_SECONDS: f64 = 0.5;
/// The time limit for the agent to find connections that were there before it, or to read its file.
const AGENT_LIMIT: Duration = Duration::from_secs(5);
/// The time for which copies may be on their way to the agent after the last answer.
const UNDER_WAY: Duration = Duration::from_secs(2);
/// Policies that the agent has put into force.
const RELOADED: &str = "underpass_reloads_total{result=\"ok\"}";
/// Connections that were there before the agent, and that it reads.
const ADOPTED: &str = "underpass_observed_adopted_total{rule=\"tap\"}";

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

/// An application on its path.
struct Application {
    path: &'static str,
    generator: Generator,
    /// Everything that it has done.
    told: Answer,
}

/// A round: what the application on each of [`PATHS`] has done.
type Round = Vec<Answer>;

/// Runs the command. Success only if every check holds.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (name, database) = match args.given.cassandra {
        Some(_) => ("Cassandra", Databases::given(&args.given)?),
        None => ("the embedded CQL node", Databases::node(1)?),
    };
    let to = database.addresses.first();
    let to = *to.context("a database without an address")?;
    show::step(&format!("{name} at {to}"));
    let shop = Shop::new(to, database.credentials.clone(), args.rate)?;
    shop.open()?;
    show::step("tables customers and orders, with some orders");
    let shown = demonstrate(args, &shop);
    let closed = shop.close();
    let holds = shown?;
    closed?;
    if !holds {
        return Ok(ExitCode::FAILURE);
    }
    show::next();
    Ok(ExitCode::SUCCESS)
}

fn demonstrate(args: &Args, shop: &Shop) -> anyhow::Result<bool> {
    let to = shop.to;
    let runtime = runtime()?;
    // This session does not go through the agent: the process is in none of the cgroups.
    let session = runtime.block_on(shop.session())?;
    let cgroups = Cgroups::of_one_agent(&RULED, &[DIRECT, AGAIN])?;
    show::step(&format!(
        "an application ({} requests in flight) dials {to}, and runs before the agent does",
        shop.in_flight()
    ));
    let tapped = Application::start(shop, &cgroups, TAP)?;
    let (mut agent, found) = attach(shop, &cgroups, &tapped)?;
    let refused = guard(shop, &cgroups, &agent)?;
    let left = runtime.block_on(shop::orders(&session))?;
    let mut applications = vec![tapped];
    for path in PATHS.into_iter().filter(|path| *path != TAP) {
        applications.push(Application::start(shop, &cgroups, path)?);
    }
    let place = |path| PATHS.iter().position(|known| *known == path);
    applications.sort_by_key(|application| place(application.path));
    show::step(&format!("four more applications, all dial {to}"));
    let reported = look(shop, &cgroups, &agent, &mut applications)?;
    show::command(&agent, &["flows", "--why"])?;
    let rounds = drive(args, &agent, &mut applications)?;
    let mut evidence = collect(shop, &agent, &applications, (&runtime, &session))?;
    evidence.found = found;
    for seen in &mut evidence.applications {
        seen.sent += match seen.path {
            TAP => reported,
            // What is refused is counted, too.
            ENRICH => 1,
            _ => 0,
        };
    }
    let mut checks = checks::all(&evidence);
    checks.push(checks::guarded(refused.as_deref(), left));
    show::comparison(args.rate, &rounds);
    drop(applications);
    let pins = agent.pins().to_owned();
    let status = agent.stop()?;
    let said = agent.log();
    ensure!(
        status.success(),
        "the agent ended with {status}; it said:\n{said}"
    );
    checks.push(checks::gone(&pins));
    Ok(show::checks(&checks))
}

/// Starts an agent, and waits until it reads the connections that were there before it. Returns their number, too.
fn attach<'a>(
    shop: &Shop,
    cgroups: &'a Cgroups,
    tapped: &Application,
) -> anyhow::Result<(Agent<'a>, usize)> {
    let open = connected(tapped.generator.pid())?.len() as f64;
    let (told, cgroup) = cgroups.ours().next().context("no cgroup of ours")?;
    let policy = policy(shop, cgroups, &[BYPASS, TAP]);
    let agent = Agent::start(&binary("underpass")?, None, cgroup, told, &policy)?;
    let begin = Instant::now();
    await_metric(&agent, ADOPTED, open)?;
    let found = agent.metric(ADOPTED)?;
    show::step(&format!(
        "an agent is attached: it found {found} running connections, and reads them after {} ms",
        begin.elapsed().as_millis()
    ));
    Ok((agent, found as usize))
}

/// Puts a rule into force that guards, before the others; has a process break it. Returns how that was refused.
fn guard(shop: &Shop, cgroups: &Cgroups, agent: &Agent<'_>) -> anyhow::Result<Option<String>> {
    let before = agent.metric(RELOADED)?;
    agent.write_policy(&policy(shop, cgroups, &[ENRICH, BYPASS, TAP]))?;
    await_metric(agent, RELOADED, before + 1.0)?;
    show::file(
        "a rule that is written now, for another application",
        &policy(shop, cgroups, &[ENRICH]),
    );
    let refused = run_in(None, cgroups.of(ENRICH), || shop.execute(TRUNCATE))??;
    show::statement(TRUNCATE, refused.as_deref());
    show::command(agent, &["denied"])?;
    Ok(refused)
}

fn await_metric(agent: &Agent<'_>, name: &str, least: f64) -> anyhow::Result<()> {
    let deadline = Instant::now() + AGENT_LIMIT;
    loop {
        let count = agent.metric(name)?;
        if count >= least {
            return Ok(());
        }
        interrupt::check()?;
        ensure!(
            Instant::now() < deadline,
            "{name} is {count} instead of {least}; the agent said:\n{}",
            agent.log()
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// Looks at the application that was there first while it works, as an operator does. Another one makes reports meanwhile, which
/// are slow: returns their number.
fn look(
    shop: &Shop,
    cgroups: &Cgroups,
    agent: &Agent<'_>,
    applications: &mut [Application],
) -> anyhow::Result<u64> {
    let mut reports = Generator::start(TAP, None, cgroups.of(TAP), &shop.reports())?;
    let mut all = applications.iter_mut();
    let tapped = all.find(|application| application.path == TAP);
    let tapped = tapped.context("one application is tapped")?;
    tapped.generator.begin(LOOKED_AT_SECONDS)?;
    reports.begin(LOOKED_AT_SECONDS)?;
    show::command(agent, &["top", "--once"])?;
    let slow = [
        "tail",
        "--slower-than",
        "1ms",
        "--filter",
        "table=underpass_demo.orders,kind=select",
        "--count",
        "1",
    ];
    show::command(agent, &slow)?;
    tapped.told.add(tapped.generator.end(LOOKED_AT_SECONDS)?)?;
    let answer = reports.end(LOOKED_AT_SECONDS)?;
    Ok(answer.ops() + answer.errors)
}

/// The warm-up, and the rounds that count.
fn drive(
    args: &Args,
    agent: &Agent<'_>,
    applications: &mut [Application],
) -> anyhow::Result<Vec<Round>> {
    let mut shuffle = Shuffle::new(1);
    round(WARM_UP_SECONDS, applications, &mut shuffle)?;
    show::step(&format!(
        "{} interleaved rounds of {} s on each path, at {} op/s",
        args.rounds, args.seconds, args.rate
    ));
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        let round = round(args.seconds, applications, &mut shuffle)?;
        for (path, answer) in PATHS.iter().zip(&round) {
            // A path that fails is not worth comparing any longer.
            ensure!(
                answer.errors == 0,
                "{path}: {} statements failed, the first with: {}\nthe agent said:\n{}",
                answer.errors,
                answer.first_error.as_deref().unwrap_or_default(),
                agent.log()
            );
        }
        rounds.push(round);
    }
    Ok(rounds)
}

/// Plays one round: every path works for so long, in turns.
fn round(
    seconds: f64,
    applications: &mut [Application],
    shuffle: &mut Shuffle,
) -> anyhow::Result<Round> {
    let turns = (seconds / TURN_SECONDS).round().max(1.0);
    let answers = applications.iter().map(|_| Answer::empty());
    let mut answers: Round = answers.collect::<anyhow::Result<_>>()?;
    for _ in 0..turns as usize {
        for at in shuffle.order(applications.len()) {
            let (Some(application), Some(sum)) = (applications.get_mut(at), answers.get_mut(at))
            else {
                continue;
            };
            let answer = application.generator.work(seconds / turns)?;
            application.told.add(answer.clone())?;
            sum.add(answer)?;
        }
    }
    Ok(answers)
}

/// Collects the evidence. The applications must be idle, and still connected.
fn collect(
    shop: &Shop,
    agent: &Agent<'_>,
    applications: &[Application],
    (runtime, session): (&Runtime, &Session),
) -> anyhow::Result<Evidence> {
    let statements = || -> anyhow::Result<Vec<Statement>> {
        Ok(serde_json::from_value(agent.json("/statements")?)?)
    };
    // Copies are on their way for a moment: all are there when no more come.
    let deadline = Instant::now() + UNDER_WAY;
    let mut counted = 0;
    while Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
        let now = checks::counted(&statements()?, TAP);
        if now == counted {
            break;
        }
        counted = now;
    }
    let seen = applications.iter().map(|application| {
        let pid = application.generator.pid();
        let told = &application.told;
        anyhow::Ok(Seen {
            path: application.path,
            pid,
            sockets: connected(pid)?,
            sent: told.ops() + told.errors,
            failed: (told.errors, told.first_error.clone()),
        })
    });
    Ok(Evidence {
        target: shop.to,
        applications: seen.collect::<anyhow::Result<_>>()?,
        found: 0,
        metrics: agent.metrics().context("the agent does not answer")?,
        flows: serde_json::from_value(agent.json("/flows")?)?,
        statements: statements()?,
        database_sees: runtime.block_on(shop::clients(session)).ok(),
    })
}

impl Application {
    /// Starts one, which is connected on return.
    fn start(shop: &Shop, cgroups: &Cgroups, path: &'static str) -> anyhow::Result<Self> {
        interrupt::check()?;
        let number = PATHS.iter().position(|known| *known == path);
        let hello = shop.hello(1 + number.unwrap_or_default() as u64);
        Ok(Self {
            path,
            generator: Generator::start(path, None, cgroups.of(path), &hello)?,
            told: Answer::empty()?,
        })
    }
}

/// A rule for each of these paths, named after it.
fn policy(shop: &Shop, cgroups: &Cgroups, paths: &[&str]) -> String {
    let rule = |path: &&str| {
        let does = match *path {
            BYPASS => "action = \"bypass\"",
            TAP => "action = \"enrich\"\npipeline = [{ transform = \"stats\" }]",
            _ => {
                "action = \"enrich\"\nfail = \"closed\"\n\
                 pipeline = [{ transform = \"guard\", refuse = [\"truncate\"] }, { transform = \"stats\" }]"
            }
        };
        let cgroup = cgroups.of(path)?.rule_path();
        let to = shop.to;
        Some(format!(
            "[[rule]]\nname = \"{path}\"\nto = [\"{to}\"]\ncgroup = [{cgroup:?}]\n{does}\n"
        ))
    };
    paths.iter().filter_map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression: an agent that did not see the application found none of its connections.
    #[test]
    fn the_agent_sees_the_applications_that_have_a_rule() {
        let cgroups = Cgroups::of_one_agent(&RULED, &[DIRECT, AGAIN]).unwrap();
        let (_, agents) = cgroups.ours().next().unwrap();
        for path in PATHS {
            let application = cgroups.of(path).unwrap().path();
            let is_seen = application.starts_with(agents.path());
            assert_eq!(is_seen, RULED.contains(&path), "{path}");
        }
    }
}
