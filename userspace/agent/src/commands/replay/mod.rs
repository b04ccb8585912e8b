//! `underpass replay`: the requests of a capture, asked of another database.
//!
//! - `plan`: what of the file is asked, and why the rest is not.
//! - `worker`: a connection, and requests on it in their time.
//! - `values`: values made up where the file has their lengths alone.
//! - `report`: what came of it, beside what the file says.

mod plan;
mod report;
mod values;
mod worker;

use std::{
    fs::File,
    io::{BufReader, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use ::capture::{Line, Reader};
use anyhow::{Context as _, bail, ensure};
use cql::Compression;
use cql_client::{auth_response, startup};
use tokio::{runtime, task::JoinSet, time::Instant};

use self::{
    plan::Plan,
    report::Report,
    worker::{Shared, Target, work},
};
use super::capture::MAX_BYTES;
use crate::cli::values as cli;

/// Connections to the database, unless another number is named.
const USUAL_CONNECTIONS: u64 = 8;

/// The most that may be named: a single node takes more from many clients, and a replay is one.
const MAX_CONNECTIONS: u64 = 64;

/// The longest file of a password.
const MAX_PASSWORD_BYTES: u64 = 4_096;

/// Arguments of `replay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done (with --compare: no difference); 1 failed, one line on standard error says why and what \
                        to do; 2 wrong usage; 3 there are differences."
)]
pub struct ReplayArgs {
    /// File that `underpass capture` has written
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Database to ask, without TLS
    #[arg(long, value_name = "ADDR:PORT", value_parser = cli::address)]
    to: SocketAddr,
    /// Compare rows, errors and latencies with what the file says of them
    #[arg(long)]
    compare: bool,
    /// Ask so many times as fast as the application did
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = speed, conflicts_with = "as_fast_as_possible")]
    speed: f64,
    /// Ask one request after the other, without the application's pauses
    #[arg(long)]
    as_fast_as_possible: bool,
    /// Ask what changes something, too: INSERT, UPDATE, DELETE, batches, tables, roles. Their order is the file's only with
    /// --connections 1
    #[arg(long)]
    writes: bool,
    /// Connections to the database, up to 64. Each has one request out
    #[arg(long, value_name = "N", default_value_t = USUAL_CONNECTIONS, value_parser = connections)]
    connections: u64,
    /// User to log in as
    #[arg(long, value_name = "USER", requires = "password_file")]
    user: Option<String>,
    /// File with the password
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn connections(text: &str) -> Result<u64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|n| (1..=MAX_CONNECTIONS).contains(n));
    number.ok_or_else(|| format!("expected a number from 1 to {MAX_CONNECTIONS}, such as 8"))
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text
        .parse()
        .ok()
        .filter(|speed| (0.01..=1000.0).contains(speed));
    speed.ok_or_else(|| "expected a factor from 0.01 to 1000, such as 2".to_owned())
}

/// Asks, and says what came of it.
///
/// # Errors
/// The file is no capture, or the database cannot be asked.
pub fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let plan = read(&args.file, args.writes)
        .with_context(|| format!("cannot read the capture {}", args.file.display()))?;
    let password = args.password_file.as_deref().map(password).transpose()?;
    let login = args.user.as_deref().zip(password.as_deref());
    let target = Target {
        address: args.to,
        startup: startup(Compression::None),
        login: login.map(|(user, password)| auth_response(user, password)),
    };
    let speed = (!args.as_fast_as_possible).then_some(args.speed);
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (report, lost) = runtime.block_on(replay(plan, target, speed, args.connections))?;
    say_text!(
        "{}",
        match args.json {
            true => report.json(args.compare) + "\n",
            false => report.text(args.compare),
        }
    );
    if let Some(error) = lost {
        return Err(error.context("the database cannot be connected to any more, and the report is of what was asked until then"));
    }
    Ok(match args.compare && report.has_differences() {
        true => ExitCode::from(3),
        false => ExitCode::SUCCESS,
    })
}

/// Reads a file as a whole: requests stand in it in the order of their responses, and are asked in their own.
fn read(file: &Path, writes: bool) -> anyhow::Result<Plan> {
    let file = File::open(file)?;
    let bytes = file.metadata()?.len();
    ensure!(
        bytes <= MAX_BYTES,
        "it has {bytes} bytes, and no capture has more than {MAX_BYTES}"
    );
    // It may grow meanwhile.
    let mut reader = Reader::begin(BufReader::new(file.take(MAX_BYTES)))?;
    let mut plan = Plan::new(reader.header().values, writes);
    while let Some(line) = reader.next_line()? {
        match line {
            Line::Record(record) => plan.takes(*record),
            Line::Missed(missed) => plan.misses(missed),
            Line::End(_) => {}
        }
    }
    plan.ends(reader.end().is_none());
    Ok(plan)
}

fn password(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let opened =
        File::open(file).and_then(|file| file.take(MAX_PASSWORD_BYTES).read_to_string(&mut text));
    opened.with_context(|| format!("cannot read the password in {}", file.display()))?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() || password.contains(['\0', '\n']) {
        bail!("{}: expected a password in one line", file.display());
    }
    Ok(password.to_owned())
}

/// Asks everything that is planned, on so many connections. `speed`: None is without pauses. Gives the error of the last connection
/// that could not be opened again, too.
async fn replay(
    plan: Plan,
    target: Target,
    speed: Option<f64>,
    connections: u64,
) -> anyhow::Result<(Report, Option<anyhow::Error>)> {
    let Plan { jobs, facts } = plan;
    let target = Arc::new(target);
    // Before anything is asked: whether it can be.
    let first = target.open().await;
    let first = first.with_context(|| format!("cannot ask the database at {}", target.address))?;
    let begun = Instant::now();
    let shared = Arc::new(Shared::new(jobs, begun, speed));
    let mut workers = JoinSet::new();
    workers.spawn(work(target.clone(), shared.clone(), Some(first)));
    for _ in 1..connections {
        workers.spawn(work(target.clone(), shared.clone(), None));
    }
    let mut report = Report::new(facts);
    let mut lost = None;
    while let Some(done) = workers.join_next().await {
        let (answers, error) = done?;
        report.adds(answers);
        if error.is_some() {
            report.loses_connection();
            lost = error;
        }
    }
    report.leaves(shared.left() as u64);
    report.took(begun.elapsed());
    Ok((report, lost))
}

/// The time in which an answer has to come: what drivers wait for, as a rule.
const PATIENCE: Duration = Duration::from_secs(12);
