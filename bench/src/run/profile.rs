//! The profile: where the time of all CPUs goes while one path is under load. It is made by `perf`
//! on the whole system: samples by process, and a flame graph.
//!
//! User-space stacks are as deep as frame pointers reach, which is not far in optimised programs;
//! the kernel's, where nearly all of the time goes, are whole.

use std::{
    collections::BTreeMap,
    fs,
    io::BufReader,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, ensure};
use inferno::{
    collapse::{Collapse, perf::Folder},
    flamegraph,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use report::{
    metric::Process,
    pages::{ALL_CALLS, CALLS},
    schema::Profile,
};

use super::stage::Lane;

/// The seconds of each path: some 20,000 samples on two CPUs.
const SECONDS: f64 = 5.0;
/// The sampling rate: not a divisor of any timer's frequency, so that no timer is met again and
/// again.
const SAMPLES_A_SECOND: &str = "1997";
/// The time that `perf` needs to open an event on every CPU before it counts.
const PERF_STARTS: Duration = Duration::from_millis(300);
/// The seconds of each path in which system calls are counted: apart from the samples, because counting costs each call something.
const COUNT_SECONDS: f64 = 2.0;
/// The tracepoints of single system calls, as tracefs has them.
const EVENTS: &str = "/sys/kernel/tracing/events/syscalls";
/// The event of all system calls together.
const EVERY_CALL: &str = "raw_syscalls:sys_enter";
/// The events of one system call each are called so, followed by its name.
const ONE_CALL: &str = "syscalls:sys_enter_";
/// The narrowest frame in percent: a picture, not an archive.
const NARROWEST_PERCENT: f64 = 0.4;

/// Fails where `perf` cannot look at the whole system, with its message.
pub fn can_be_taken() -> anyhow::Result<()> {
    let probe = Command::new("perf")
        .args([
            "record",
            "--all-cpus",
            "--event",
            "cpu-clock",
            "--output",
            "/dev/null",
            "true",
        ])
        .output()
        .context("perf cannot be run (Debian: apt-get install linux-perf)")?;
    let said = String::from_utf8_lossy(&probe.stderr);
    ensure!(
        probe.status.success(),
        "this machine allows no profile: {}",
        said.trim()
    );
    Ok(())
}

/// Takes a profile of a connected lane.
///
/// # Errors
/// The generator fails, or `perf` does.
pub fn take(
    lane: &mut Lane<'_>,
    experiment: &str,
    database_pids: &[u32],
    folder: &Path,
) -> anyhow::Result<Profile> {
    let scratch = tempfile::tempdir()?;
    let data = scratch.path().join("perf.data");
    let mut perf = Command::new("perf")
        .args(["record", "--quiet", "--all-cpus", "--event", "cpu-clock"])
        .args(["--freq", SAMPLES_A_SECOND, "--call-graph", "fp", "--output"])
        .arg(&data)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C is for us; it is told to end below.
        .process_group(0)
        .spawn()
        .map(Perf)
        .context("perf")?;
    thread::sleep(PERF_STARTS);
    let generator = lane.generator.as_mut().context("not connected")?;
    let generator_pid = generator.pid();
    let worked = generator.work(SECONDS);
    perf.end()?;
    worked?;
    let calls = calls(lane, database_pids)?;
    let who = |pid: u32| match pid {
        pid if pid == generator_pid => "generator",
        pid if lane.proxy_pids.contains(&pid) => "proxy",
        pid if database_pids.contains(&pid) => "database",
        _ => "other",
    };
    let (samples, shares) = shares(&pids(&data)?, who);
    let file = folder.join(format!("{experiment}-{}.svg", lane.path));
    draw(&data, &format!("{experiment}: {}", lane.path), &file)?;
    Ok(Profile {
        experiment: experiment.into(),
        path: lane.path.into(),
        samples,
        shares,
        calls,
        flame_graph: Some(file.display().to_string()),
    })
}

/// A `perf` that is ended, at the latest when this is dropped.
struct Perf(Child);

impl Perf {
    /// Ends it as ctrl-C does: it writes what it has.
    fn end(&mut self) -> anyhow::Result<()> {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.end();
        }
    }
}

/// Counts the system calls for an operation of generator, proxy and database, by name.
fn calls(
    lane: &mut Lane<'_>,
    database_pids: &[u32],
) -> anyhow::Result<BTreeMap<String, BTreeMap<String, f64>>> {
    let generator = lane.generator.as_mut().context("not connected")?;
    let generator_pid = [generator.pid()];
    let all = [
        (Process::Generator, &generator_pid[..]),
        (Process::Proxy, &lane.proxy_pids),
        (Process::Database, database_pids),
    ];
    // A machine without them has its profile all the same.
    if !Path::new(EVENTS).exists() {
        return Ok(BTreeMap::new());
    }
    let scratch = tempfile::tempdir()?;
    let mut counting = Vec::new();
    for (process, pids) in all.into_iter().filter(|(_, pids)| !pids.is_empty()) {
        let file = scratch.path().join(process.name());
        counting.push((process, count(pids, &file)?, file));
    }
    thread::sleep(PERF_STARTS);
    let worked = generator.work(COUNT_SECONDS);
    for (_, perf, _) in &mut counting {
        perf.end()?;
    }
    let operations = worked?.ops().max(1) as f64;
    let per_operation = |(process, _, file): (Process, Perf, PathBuf)| {
        let text = fs::read_to_string(&file).context("perf stat")?;
        let each = counted(&text).into_iter();
        let each = each.map(|(name, count)| (name, count as f64 / operations));
        Ok((process.name().to_owned(), each.collect()))
    };
    counting.into_iter().map(per_operation).collect()
}

/// Begins to count the system calls of all threads of these processes, into a file.
fn count(pids: &[u32], file: &Path) -> anyhow::Result<Perf> {
    // Of an event that the kernel does not have `perf` counts none at all.
    let exists = |name: &&&str| Path::new(EVENTS).join(format!("sys_enter_{name}")).exists();
    let named = CALLS.iter().flat_map(|(_, names)| names.iter());
    let events = named.filter(exists).map(|name| format!("{ONE_CALL}{name}"));
    let events: Vec<String> = events.chain([EVERY_CALL.to_owned()]).collect();
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    Command::new("perf")
        .args([
            "stat",
            "--field-separator",
            ",",
            "--event",
            &events.join(","),
        ])
        .args(["--pid", &pids.join(","), "--output"])
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map(Perf)
        .context("perf stat")
}

/// The counts that `perf stat` wrote, by the call's name.
fn counted(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.split(',');
        let count = fields.next()?.parse().ok()?;
        let name = match fields.nth(1)? {
            EVERY_CALL => ALL_CALLS,
            event => event.strip_prefix(ONE_CALL)?,
        };
        Some((name.to_owned(), count))
    });
    lines.collect()
}

/// The process of each sample.
fn pids(data: &Path) -> anyhow::Result<Vec<u32>> {
    let text = script(data, &["--fields", "pid"])?;
    let lines = text.lines().map(str::trim);
    Ok(lines.filter_map(|line| line.parse().ok()).collect())
}

/// Returns the division of the samples that were not idle (process 0).
fn shares(pids: &[u32], who: impl Fn(u32) -> &'static str) -> (u64, BTreeMap<String, f64>) {
    let mut counts = BTreeMap::<String, u64>::new();
    for pid in pids.iter().filter(|pid| **pid != 0) {
        *counts.entry(who(*pid).into()).or_default() += 1;
    }
    let all: u64 = counts.values().sum();
    let share = |count: u64| count as f64 / all.max(1) as f64;
    let shares = counts.into_iter().map(|(who, count)| (who, share(count)));
    (all, shares.collect())
}

fn draw(data: &Path, title: &str, file: &Path) -> anyhow::Result<()> {
    let text = script(data, &["--fields", "comm,pid,tid,time,event,ip,sym,dso"])?;
    let mut folded = Vec::new();
    let collapsed = Folder::default().collapse(BufReader::new(text.as_bytes()), &mut folded);
    collapsed.context("perf's stacks")?;
    let folded = String::from_utf8_lossy(&folded).into_owned();
    // Idle time is nobody's.
    let busy = folded.lines().filter(|line| !line.starts_with("swapper"));
    let mut options = flamegraph::Options::default();
    options.title = title.to_owned();
    options.count_name = "samples".to_owned();
    options.min_width = NARROWEST_PERCENT;
    // Makes the colour of a function the same in every picture.
    options.hash = true;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, busy, &mut svg).context("a flame graph")?;
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, svg).with_context(|| format!("cannot write {}", file.display()))
}

fn script(data: &Path, fields: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("perf")
        .args(["script", "--input"])
        .arg(data)
        .args(fields)
        .stderr(Stdio::null())
        .output()
        .context("perf script")?;
    ensure!(output.status.success(), "perf script: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_nobodys() {
        let who = |pid| if pid == 7 { "proxy" } else { "other" };
        let (samples, shares) = shares(&[0, 0, 7, 7, 7, 9], who);
        assert_eq!(samples, 4);
        assert_eq!(shares["proxy"], 0.75);
        assert_eq!(shares["other"], 0.25);
        assert_eq!(super::shares(&[0], who), (0, BTreeMap::new()));
    }

    #[test]
    fn system_calls_are_told_by_their_names() {
        let text = "# started on Mon\n\n12,,syscalls:sys_enter_recvfrom,966352,100.00,,\n\
                    <not counted>,,syscalls:sys_enter_poll,0,100.00,,\n\
                    40,,raw_syscalls:sys_enter,966352,100.00,,\n7,,cpu-clock,1,100.00,,\n";
        let expected = [("all".to_owned(), 40), ("recvfrom".to_owned(), 12)];
        assert_eq!(counted(text), expected.into());
    }
}
