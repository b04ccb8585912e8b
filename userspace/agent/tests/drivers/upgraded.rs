//! Five drivers work while the agent is exchanged again and again: no request fails, and few take long.
//!
//! A short run has one driver's requests and one upgrade. As many upgrades as `UNDERPASS_UPGRADES` says are a long one, with all
//! five drivers' suites, begun anew as they end, some of them read from copies and the others changed by a pipeline; a driver
//! that measures its requests; and a result in `bench/results/upgrades.json`, where `UPDATE_DOCS` is set.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use sandbox::{Agent, Cgroup, skip};
use scylla::{client::session::Session, statement::prepared::PreparedStatement};
use serde_json::{Value, json};

use super::{
    cassandra::{Cassandra, PIPELINE},
    rust::{connect, in_cgroup},
    suite,
    workload::{create_keyspace, run, workload},
};

/// Upgrades of a short run.
const FEW: usize = 1;

/// The time before the exchanges, and as much behind them, in which nothing is exchanged: of a short run, and of a long one.
const QUIET: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(45)];

/// The limit on the time until each suite has passed once, and its programs are warm.
const WARM: Duration = Duration::from_secs(300);

/// Longer than an agent drains whose flows all go.
const DRAINED: Duration = Duration::from_secs(60);

/// Requests that are out at a time.
const TASKS: i32 = 4;

/// The pause between two of a task's requests, so that the drivers' suites have the machine.
const PAUSE: Duration = Duration::from_millis(2);

/// How often as long as in quiet the thousandth request may take.
const BAR: f64 = 5.0;

/// Processes whose connections are read from copies, in turns.
const COPIED: [&str; 2] = [
    "[\"java*\", \"suite*\"]",
    "[\"python*\", \"node*\", \"MainThread\"]",
];

const KEYSPACE: &str = "underpass_upgraded";

#[test]
fn drivers_work_while_agents_take_over_from_one_another() {
    let test = "upgraded::drivers_work_while_agents_take_over_from_one_another";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let wanted: Option<usize> = env::var("UNDERPASS_UPGRADES")
        .ok()
        .map(|n| n.parse().unwrap());
    let programs = wanted.and_then(|_| programs(test));
    let cgroup = Cgroup::new().unwrap();
    let mut agent = start(&cassandra, &cgroup);
    let measured = Measured::default();
    let (stop, cases) = (AtomicBool::new(false), AtomicUsize::new(0));
    let passed_once = AtomicUsize::new(0);
    let mut times = None;
    let mut tapped = 0.0_f64;
    thread::scope(|scope| {
        scope.spawn(|| in_cgroup(&cgroup, async || ask(&cassandra, &measured, &stop).await));
        for program in programs.iter().flatten() {
            let (cassandra, cgroup, stop) = (&cassandra, &cgroup, &stop);
            let passed = (&cases, &passed_once);
            scope.spawn(move || program.again_and_again(cassandra, cgroup, stop, passed));
        }
        if programs.is_some() {
            let (cassandra, cgroup, stop) = (&cassandra, &cgroup, &stop);
            let passed = (&cases, &passed_once);
            scope.spawn(move || rust(cassandra, cgroup, stop, passed));
        }
        let upgraded = || {
            let suites = programs.as_ref().map_or(0, |programs| programs.len() + 1);
            let starts = Instant::now();
            while measured.is_empty() || passed_once.load(Relaxed) < suites {
                assert!(starts.elapsed() < WARM, "not every suite has passed");
                thread::sleep(Duration::from_millis(10));
            }
            let quiet = QUIET[usize::from(programs.is_some())];
            let warm = Instant::now();
            thread::sleep(quiet);
            let begun = Instant::now();
            for n in 0..wanted.unwrap_or(FEW) {
                policy(&agent, &cassandra, n + 1);
                let mut former = agent.take_over("").unwrap();
                let log = former.ends_within(DRAINED).unwrap();
                assert!(log.contains("why=Drained"), "{log}");
                tapped = tapped.max(agent.metric("underpass_tap_flows").unwrap());
            }
            let ended = Instant::now();
            thread::sleep(quiet);
            [warm, begun, ended]
        };
        // What fails here must not keep the others going.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(upgraded));
        stop.store(true, Relaxed);
        times = Some(result.unwrap_or_else(|why| std::panic::resume_unwind(why)));
    });
    let [warm, begun, ended] = times.unwrap();
    let [quiet, during] = measured.split(warm, begun, ended);
    let failed = measured.failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(agent.metric("underpass_taken_over_flows_total").unwrap() > 0.0);
    assert!(
        programs.is_none() || tapped > 0.0,
        "none was read from copies"
    );
    let result = json!({
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim(),
        "processors": thread::available_parallelism().unwrap(),
        "upgrades": wanted.unwrap_or(FEW),
        "seconds": (ended - begun).as_secs(),
        "suites_cases": cases.into_inner(),
        "errors": failed.len(),
        "quiet": quiet,
        "during": during,
    });
    println!("{result:#}");
    if programs.is_some() {
        let p999 = |of: &Value| of["p99_9_us"].as_f64().unwrap();
        if env::var_os("UPDATE_DOCS").is_some() {
            let text = serde_json::to_string_pretty(&result).unwrap() + "\n";
            fs::write(file("json"), text).unwrap();
            fs::write(file("md"), page(&result)).unwrap();
        }
        assert!(p999(&during) <= BAR * p999(&quiet), "{result:#}");
    }
}

#[test]
fn the_page_is_what_the_result_says() {
    let result = fs::read_to_string(file("json")).unwrap();
    let result = serde_json::from_str(&result).unwrap();
    assert_eq!(fs::read_to_string(file("md")).unwrap(), page(&result));
}

fn file(extension: &str) -> PathBuf {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    results.join("upgrades").with_extension(extension)
}

/// The page that is made of a result.
fn page(result: &Value) -> String {
    let row = |name: &str, of: &Value| {
        let ms = |key: &str| format!("{:.1} ms", of[key].as_f64().unwrap() / 1000.0);
        let [p50, p99, p99_9, max] = ["p50_us", "p99_us", "p99_9_us", "max_us"].map(ms);
        format!(
            "| {name} | {} | {p50} | {p99} | {p99_9} | {max} |\n",
            of["requests"]
        )
    };
    let ratio = result["during"]["p99_9_us"].as_f64().unwrap()
        / result["quiet"]["p99_9_us"].as_f64().unwrap();
    let is_met = match ratio <= BAR && result["errors"] == 0 {
        true => "met",
        false => "missed",
    };
    format!(
        "# Upgrades under load\n\n\
         Made by `UPDATE_DOCS=1 cargo xtask soak --upgrades {upgrades}`, which says how; from `upgrades.json`.\n\n\
         The agent was exchanged {upgrades} times in {seconds} s, while the suites of five drivers (Go, Java, JavaScript, Python, Rust)\n\
         ran over and over, in turns through a pipeline and read from copies, and the Rust driver measured its own requests,\n\
         which go through the pipeline. Nothing was exchanged for {quiet_seconds} s before that, when each suite had passed once, and as long behind\n\
         it: the quiet. Builds are debug builds, and all of it, with Cassandra, is on one machine: {kernel}, {processors} processors.\n\n\
         | requests | | p50 | p99 | p99.9 | longest |\n| --- | --- | --- | --- | --- | --- |\n{quiet}{during}\n\
         Errors: {errors} in these and in {cases} cases of the suites. The thousandth request took {ratio:.1} times as long as in quiet.\n\
         The bar, no error and at most {BAR} times, is {is_met}.\n",
        upgrades = result["upgrades"],
        quiet_seconds = QUIET[1].as_secs(),
        kernel = result["kernel"].as_str().unwrap(),
        processors = result["processors"],
        seconds = result["seconds"],
        quiet = row("in quiet", &result["quiet"]),
        during = row("during upgrades", &result["during"]),
        errors = result["errors"],
        cases = result["suites_cases"],
    )
}

/// An agent whose flows are read from copies or changed, by their process.
fn start<'a>(cassandra: &Cassandra, cgroup: &'a Cgroup) -> Agent<'a> {
    let binary = Path::new(env!("CARGO_BIN_EXE_underpass"));
    Agent::start(
        binary,
        None,
        cgroup,
        "max_flows = 1000",
        &rules(cassandra, 0),
    )
    .unwrap()
}

fn rules(cassandra: &Cassandra, turn: usize) -> String {
    let (to, copied) = (cassandra.addr, COPIED[turn % COPIED.len()]);
    format!(
        "[[rule]]\nname = \"copied\"\nto = [\"{to}\"]\nprocess = {copied}\naction = \"enrich\"\npath = \"tap\"\n\
         pipeline = [{{ transform = \"stats\" }}]\n\
         [[rule]]\nname = \"changed\"\nto = [\"{to}\"]\naction = \"enrich\"\nfail = \"closed\"\n{PIPELINE}\n"
    )
}

/// Has the next agent read the processes' flows the other way.
fn policy(agent: &Agent<'_>, cassandra: &Cassandra, turn: usize) {
    let text = fs::read_to_string(agent.file()).unwrap();
    let (before, after) = (turn - 1, turn);
    let [before, after] = [before, after].map(|turn| COPIED[turn % COPIED.len()]);
    assert!(text.contains(before) && text.contains(&cassandra.addr.to_string()));
    fs::write(agent.file(), text.replace(before, after)).unwrap();
}

/// A driver's suite.
struct Program {
    name: &'static str,
    words: Vec<PathBuf>,
    /// Besides what all have.
    args: Vec<String>,
}

/// The suites of four drivers. None: one is missing, and `test` is skipped.
fn programs(test: &str) -> Option<Vec<Program>> {
    let schema = suite::folder().join("schema.cql").display().to_string();
    let mut programs = Vec::new();
    for (name, variable) in [
        ("go", "UNDERPASS_GO_SUITE"),
        ("java", "UNDERPASS_JAVA_SUITE"),
        ("node", "UNDERPASS_NODE_SUITE"),
    ] {
        programs.push(Program {
            name,
            words: vec![skip::provided(test, variable)?.into()],
            args: vec!["--schema".to_owned(), schema.clone()],
        });
    }
    let python = skip::provided(test, "UNDERPASS_PYTHON")?;
    programs.push(Program {
        name: "python",
        words: vec![python.into(), suite::folder().join("python_suite.py")],
        args: Vec::new(),
    });
    Some(programs)
}

impl Program {
    /// Runs the suite until it is to stop, in turns of versions and compressions. All cases have to pass.
    fn again_and_again(
        &self,
        cassandra: &Cassandra,
        cgroup: &Cgroup,
        stop: &AtomicBool,
        (cases, passed_once): (&AtomicUsize, &AtomicUsize),
    ) {
        let mut is_first = true;
        let turns = [("5", "none"), ("4", "lz4"), ("5", "lz4"), ("4", "none")];
        // The driver for JavaScript speaks version 4, and compresses nothing.
        let speaks = |turn: &(&str, &str)| self.name != "node" || *turn == ("4", "none");
        for (version, compression) in turns.into_iter().filter(speaks).cycle() {
            if stop.load(Relaxed) {
                return;
            }
            let keyspace = format!("{KEYSPACE}_{}", self.name);
            let mut args = vec!["--protocol", version, "--compression", compression];
            args.extend(["--keyspace", &keyspace]);
            args.extend(self.args.iter().map(String::as_str));
            let words: Vec<&OsStr> = self.words.iter().map(|word| word.as_os_str()).collect();
            let passed = suite::run(cassandra, Some(cgroup), &words, &args);
            cases.fetch_add(passed.len(), Relaxed);
            passed_once.fetch_add(usize::from(std::mem::take(&mut is_first)), Relaxed);
        }
    }
}

/// The Rust driver's cases, of which each panics where it fails.
fn rust(
    cassandra: &Cassandra,
    cgroup: &Cgroup,
    stop: &AtomicBool,
    (cases, passed_once): (&AtomicUsize, &AtomicUsize),
) {
    let mut is_first = true;
    while !stop.load(Relaxed) {
        in_cgroup(cgroup, async || {
            let session = connect(cassandra, "upgraded").await.unwrap();
            workload(&session, &format!("{KEYSPACE}_rust")).await;
        });
        cases.fetch_add(1, Relaxed);
        passed_once.fetch_add(usize::from(std::mem::take(&mut is_first)), Relaxed);
    }
}

/// Requests that were measured: when each began, and how long it took.
#[derive(Default)]
struct Measured {
    took: Mutex<Vec<(Instant, Duration)>>,
    failed: Mutex<Vec<String>>,
}

impl Measured {
    fn is_empty(&self) -> bool {
        self.took.lock().unwrap().is_empty()
    }

    /// Sums up requests that began outside of the exchanges, once all was warm, and those that began between.
    fn split(&self, warm: Instant, begun: Instant, ended: Instant) -> [Value; 2] {
        let took = self.took.lock().unwrap();
        let of = |is_of: &dyn Fn(Instant) -> bool| {
            let of = took.iter().filter(|(at, _)| is_of(*at));
            let mut us: Vec<u64> = of.map(|(_, took)| took.as_micros() as u64).collect();
            us.sort_unstable();
            let at = |share: f64| us[((us.len() - 1) as f64 * share) as usize];
            json!({
                "requests": us.len(), "p50_us": at(0.5), "p99_us": at(0.99), "p99_9_us": at(0.999), "max_us": at(1.0),
            })
        };
        let is_between = move |at| begun <= at && at < ended;
        [of(&|at| warm <= at && !is_between(at)), of(&is_between)]
    }
}

/// Asks, and measures, until it is to stop.
async fn ask(cassandra: &Cassandra, measured: &Measured, stop: &AtomicBool) {
    let session = connect(cassandra, "upgraded").await.unwrap();
    run(&session, &format!("DROP KEYSPACE IF EXISTS {KEYSPACE}")).await;
    create_keyspace(&session, KEYSPACE).await;
    run(&session, "CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    let insert = session
        .prepare("INSERT INTO t (id, v) VALUES (?, ?)")
        .await
        .unwrap();
    let select = session
        .prepare("SELECT v FROM t WHERE id = ?")
        .await
        .unwrap();
    let tasks = (0..TASKS).map(|task| asks(&session, (&insert, &select), task, measured, stop));
    all_of(tasks.map(Box::pin).collect()).await;
    run(&session, &format!("DROP KEYSPACE {KEYSPACE}")).await;
}

/// Polls all of them to their ends.
async fn all_of(mut all: Vec<Pin<Box<impl Future<Output = ()>>>>) {
    std::future::poll_fn(|cx| {
        all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
        match all.is_empty() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

/// One task: what it writes, it reads.
async fn asks(
    session: &Session,
    (insert, select): (&PreparedStatement, &PreparedStatement),
    task: i32,
    measured: &Measured,
    stop: &AtomicBool,
) {
    for n in 0.. {
        if stop.load(Relaxed) {
            return;
        }
        let begun = Instant::now();
        let written = session.execute_unpaged(insert, (task, n)).await;
        let between = Instant::now();
        let read = session.execute_unpaged(select, (task,)).await;
        let took = [(begun, between - begun), (between, between.elapsed())];
        measured.took.lock().unwrap().extend(took);
        let read = read.map(|rows| {
            let rows = rows.into_rows_result().unwrap();
            rows.first_row::<(i32,)>().unwrap().0
        });
        let fails = match (written, read) {
            (Ok(_), Ok(read)) if read == n => None,
            (written, read) => Some(format!("{n}: {:?}, {read:?}", written.err())),
        };
        measured.failed.lock().unwrap().extend(fails);
        tokio::time::sleep(PAUSE).await;
    }
}
