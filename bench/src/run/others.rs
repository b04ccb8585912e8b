//! `underpass-bench other`: the loads of somebody else's generator over every path, in interleaved rounds.
//!
//! A generator runs for a turn in each path's cgroup, against the path's address, and ends; what it says is what is kept. Only the
//! proxy's and the database's CPU time is ours to tell.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use load::workload::{Variant, Workload};
use report::{
    bars,
    schema::{Experiment, Round, Series},
};
use sandbox::{Cgroup, run_in};

use super::{
    Common, Measurement, Planned,
    awake::Awake,
    cores::Cores,
    experiment, how, judged, one,
    shuffle::Shuffle,
    stage::{Lane, Lines, Stage},
};
use crate::{
    account::{Meter, forget_rss_peak, rss_peak_kib},
    databases::{Databases, Given},
    interrupt,
    others::{self, Access, Figures, Other},
    paths::DIRECT,
    ways::{Cgroups, Ways},
};

/// The paths, beside the two directs.
const PATHS: [&str; 8] = [
    "bypass",
    "tap",
    "enrich",
    "enrich-short-both",
    "fold-short-both",
    "haproxy",
    "envoy",
    "shotover",
];
/// The workload whose job stands for a generator's, where paths ask what they are to carry.
const LIKE: &str = "stress-read";
/// The time limit beyond the load's own seconds: a JVM starts and connects.
const AROUND: Duration = Duration::from_secs(30);
/// The time limit to make and fill tables.
const PREPARING: Duration = Duration::from_secs(120);
/// The number of last lines that are shown of a generator that failed.
const LINES: usize = 20;

/// Options of `other`.
#[derive(clap::Args)]
pub struct Args {
    /// The generator: latte or ycsb
    generator: String,
    /// The folder with its programs, from the root (`cargo xtask setup --only generators` makes it)
    #[arg(long, value_name = "FOLDER")]
    home: PathBuf,
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    common: Common,
    /// Interleaved rounds [default: 20 by latte, 6 by ycsb]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// The seconds that each path is loaded in a round [default: 1 by latte, 13 by ycsb]
    #[arg(long, value_parser = crate::seconds)]
    seconds: Option<f64>,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let names: Vec<&str> = others::ALL.iter().map(|other| other.name()).collect();
    let other = others::named(&args.generator).with_context(|| {
        format!(
            "no generator is called {}; there are: {}",
            args.generator,
            names.join(", ")
        )
    })?;
    // Its programs run in folders of their own.
    ensure!(
        args.home.is_absolute() && args.home.is_dir(),
        "--home {}: give the whole path of a folder; `cargo xtask setup --only generators` makes it",
        args.home.display()
    );
    let paths = PATHS.map(str::to_owned);
    let seconds = args.seconds.unwrap_or_else(|| other.seconds());
    let rounds = args.rounds.unwrap_or_else(|| other.rounds());
    let mut how = how(rounds, seconds, args.common.seed);
    // A turn is a round: a generator that starts anew each half second would be measured starting.
    how.timing.turn_seconds = seconds;
    let is_as_usual = args.rounds.is_none() && args.seconds.is_none();
    let out = args.common.result_file(other.name(), is_as_usual);
    let measurement = Measurement::new(&args.common, &paths, how, out)?;
    let mut results = measurement.begin()?;
    let began = Instant::now();
    let databases = Databases::given(&args.given)?;
    results.versions.extend(databases.version.clone());
    let awake = Awake::ask();
    results
        .machine
        .circumstances
        .insert("idle cores".into(), awake.described());
    // It asks the database what a generator of others does.
    let mut planned = one(LIKE)?;
    planned.variant.paths = paths.to_vec();
    let bench = Bench {
        other,
        args,
        planned: &planned,
        databases: &databases,
        ways: &measurement.ways,
        rounds: how.rounds,
        seconds,
    };
    bench.prepare()?;
    let measured = other.loads().iter().try_for_each(|(load, title)| {
        results.experiments.push(bench.measured(load, title)?);
        anyhow::Ok(())
    });
    results.seconds = began.elapsed().as_secs_f64();
    results.complete = measured.is_ok();
    measurement.keep(&results)?;
    measured?;
    Ok(judged(&results))
}

/// The parts that all loads of a generator share.
struct Bench<'a> {
    other: &'static dyn Other,
    args: &'a Args,
    planned: &'a Planned,
    databases: &'a Databases,
    ways: &'a Ways,
    rounds: u32,
    seconds: f64,
}

impl Bench<'_> {
    fn access(&self, lane: Option<&Lane<'_>>) -> anyhow::Result<Access> {
        let targets = lane.map_or(&*self.databases.addresses, Lane::targets);
        let credentials = self.databases.credentials.clone();
        Ok(Access {
            target: *targets.first().context("no address")?,
            credentials: credentials
                .context("generators of others log in: --user and --password")?,
        })
    }

    fn prepare(&self) -> anyhow::Result<()> {
        let commands = self.other.prepare(&self.args.home, &self.access(None)?);
        for command in commands {
            said(command, None, PREPARING).context("the tables cannot be made")?;
        }
        Ok(())
    }

    /// One load over every path.
    fn measured(&self, load: &str, title: &str) -> anyhow::Result<Experiment> {
        let Planned {
            workload, variant, ..
        } = self.planned;
        eprintln!("{}-{load}: {title}", self.other.name());
        let cgroups = Cgroups::new(self.databases.home.as_ref())?;
        let lines = Lines::new(variant, self.databases, self.ways)?;
        let mut stage = Stage::set(
            variant,
            self.databases,
            self.ways,
            &cgroups,
            &lines,
            Cores::Shared,
        )?;
        let mut all: Vec<Series> = stage.lanes.iter().map(|lane| series(lane.path)).collect();
        let mut shuffle = Shuffle::new(self.args.common.seed);
        // Round 0 warms the database up, and does not count.
        for number in 0..=self.rounds {
            let mut line = Vec::new();
            for at in shuffle.order(stage.lanes.len()) {
                let Some((lane, series)) = stage.lanes.get_mut(at).zip(all.get_mut(at)) else {
                    continue;
                };
                if !lane.works() {
                    continue;
                }
                interrupt::check()?;
                match self.round(lane, load) {
                    Ok(round) => {
                        line.push(format!(
                            "{} {:.0} op/s",
                            lane.path,
                            round.in_time as f64 / round.seconds
                        ));
                        series.rounds.extend((number > 0).then_some(round));
                    }
                    Err(error) => {
                        interrupt::check()?;
                        eprintln!("  {} failed: {error:#}", lane.path);
                        lane.fail(&error);
                    }
                }
            }
            eprintln!("  round {number}/{}: {}", self.rounds, line.join(", "));
        }
        stage.verify()?;
        let mut experiment = self.described(workload, variant, load, title);
        experiment.left_out.append(&mut stage.left_out);
        for (lane, series) in stage.lanes.iter().zip(all) {
            match &lane.failed {
                Some(why) => drop(
                    experiment
                        .left_out
                        .insert(lane.path.into(), format!("{}{why}", experiment::FAILED)),
                ),
                None => experiment.series.push(series),
            }
        }
        stage.strike()?;
        experiment.refused = bars::again_differs(&experiment);
        ensure!(
            experiment.direct().is_some(),
            "{DIRECT}: {}",
            experiment
                .left_out
                .get(DIRECT)
                .map_or("no figure", String::as_str)
        );
        Ok(experiment)
    }

    fn described(
        &self,
        workload: &Workload,
        variant: &Variant,
        load: &str,
        title: &str,
    ) -> Experiment {
        let (connections, in_flight) = self.other.shape();
        Experiment {
            id: format!("{}-{load}", self.other.name()),
            workload: self.other.name().into(),
            title: title.into(),
            origin: self.other.origin(),
            published: Vec::new(),
            client: self.other.name().into(),
            threads: 1,
            connections,
            depth: in_flight / connections,
            rate: None,
            ..experiment::describe(workload, variant, Cores::Shared)
        }
    }

    /// The generator works on one path, once.
    fn round(&self, lane: &Lane<'_>, load: &str) -> anyhow::Result<Round> {
        let folder = tempfile::tempdir()?;
        let results = folder.path().join("results");
        let access = self.access(Some(lane))?;
        let seconds = self.seconds;
        let command = self
            .other
            .command(&self.args.home, load, &access, seconds, &results);
        forget_rss_peak(&lane.proxy_pids);
        let mut meters = [
            Meter::new(lane.proxy_pids.clone()),
            Meter::new(self.databases.pids.clone()),
            Meter::of_kernel(),
        ];
        meters.iter_mut().for_each(Meter::begin);
        let said = said(
            command,
            lane.cgroup(),
            Duration::from_secs_f64(seconds) + AROUND,
        )?;
        let [proxy, database, kernel] = meters.each_mut().map(Meter::lap);
        let Figures {
            seconds,
            ops,
            errors,
            latency,
        } = self
            .other
            .figures(&results, &said.out)
            .with_context(|| format!("it said:\n{}", said.last))?;
        Ok(Round {
            seconds,
            ops,
            in_time: ops,
            errors,
            latency,
            proxy: proxy.usage(rss_peak_kib(&lane.proxy_pids)?),
            database: database.usage(rss_peak_kib(&self.databases.pids)?),
            kernel: Some(kernel.usage(0)),
            ..Round::default()
        })
    }
}

fn series(path: &str) -> Series {
    Series {
        path: path.into(),
        ..Series::default()
    }
}

/// The words of a program that has ended.
struct Said {
    /// All of its standard output.
    out: String,
    /// The last lines of it and of its standard error.
    last: String,
}

/// Runs a program to its end in a cgroup.
fn said(mut command: Command, cgroup: Option<&Cgroup>, limit: Duration) -> anyhow::Result<Said> {
    let program = PathBuf::from(command.get_program());
    let program = program.display();
    let folder = tempfile::tempdir()?;
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    command
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        // Its files of results and logs, where it has any.
        .current_dir(folder.path())
        .process_group(0);
    let spawned = run_in(None, cgroup, || command.spawn())?;
    let mut child = spawned.with_context(|| format!("cannot start {program}"))?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let ended = interrupt::check();
        if ended.is_err() || Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            ended?;
            bail!("{program} does not end within {limit:?}");
        }
        thread::sleep(interrupt::LOOK_EVERY);
    };
    let read =
        |file: &Path| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
    let out = read(&out);
    let all = out.clone() + &read(&err);
    let lines: Vec<&str> = all.lines().collect();
    let last = lines.get(lines.len().saturating_sub(LINES)..);
    let last = last.unwrap_or_default().join("\n");
    ensure!(
        status.success(),
        "{program} ended with {status}; it said:\n{last}"
    );
    Ok(Said { out, last })
}
