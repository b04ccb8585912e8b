//! CPU time, context switches and memory of processes, from /proc.

use std::{collections::BTreeMap, fs, mem, path::Path};

use anyhow::Context;
use report::schema::Usage;

/// The counts of one thread, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// The time on a CPU: the first number of `schedstat` (sched-stats.rst).
    ran_ns: u64,
    /// The fields 14 and 15 of proc_pid_stat(5): too coarse to be summed up, good for the share.
    user_ticks: u64,
    system_ticks: u64,
    voluntary: u64,
    involuntary: u64,
}

/// The counts of a program's threads since each of them began, by process and thread. A thread that
/// ends in a turn takes the counts of that turn with it, and no more.
type Sample = BTreeMap<(u32, u32), Counts>;

/// The counts of some turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent(Counts);

/// Watches the processes of one program, or the kernel's own threads.
#[derive(Clone, Debug)]
pub struct Meter {
    of: Of,
    since: Sample,
}

#[derive(Clone, Debug)]
enum Of {
    Processes(Vec<u32>),
    /// Processes that were seen: each is one of the kernel's threads, or not.
    Kernel(BTreeMap<u32, bool>),
}

impl Meter {
    /// Watches these processes; without any it reports zero.
    pub fn new(pids: Vec<u32>) -> Self {
        Self {
            of: Of::Processes(pids),
            since: Sample::new(),
        }
    }

    /// Watches the kernel's threads, which do work that no process can be charged with.
    pub fn of_kernel() -> Self {
        Self {
            of: Of::Kernel(BTreeMap::new()),
            since: Sample::new(),
        }
    }

    /// Begins a turn.
    pub fn begin(&mut self) {
        self.since = self.sample();
    }

    /// Ends a turn, and begins the next: what was used in between.
    pub fn lap(&mut self) -> Spent {
        let now = self.sample();
        let before = mem::replace(&mut self.since, now);
        Spent(between(&before, &self.since))
    }

    fn sample(&mut self) -> Sample {
        match &mut self.of {
            Of::Processes(pids) => sample(pids),
            // Workers come and go. There are a hundred and more, all of whose time is the system's.
            Of::Kernel(seen) => kernel_threads(seen).map(ran).collect(),
        }
    }
}

/// `kthreadd`: the parent of all of the kernel's threads.
const KTHREADD: &str = "2";

/// The kernel's threads that there are now; of processes that were `seen` it is not asked again.
fn kernel_threads(seen: &mut BTreeMap<u32, bool>) -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    ids.filter(|id| *seen.entry(*id).or_insert_with(|| is_kernels(*id)))
}

fn is_kernels(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map(|(_, after)| after);
    after_name.and_then(|after| after.split(' ').nth(1)) == Some(KTHREADD)
}

/// The time that a kernel's thread ran; how often it was switched is not asked.
fn ran(thread: u32) -> ((u32, u32), Counts) {
    let counts = Counts {
        ran_ns: ran_ns(&Path::new("/proc").join(thread.to_string())),
        ..Counts::default()
    };
    ((thread, thread), counts)
}

/// The nanoseconds that a task ran, by its folder in `/proc`; 0 of one that is gone.
fn ran_ns(task: &Path) -> u64 {
    let schedstat = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    schedstat.split(' ').next().map_or(0, number)
}

impl Spent {
    /// Adds the counts of another.
    pub fn add(&mut self, other: Self) {
        self.0.add(&other.0);
    }

    /// Converts the counts as in a result file. The time is exact; its division into user and
    /// system is by the ticks.
    pub fn usage(&self, rss_peak_kib: u64) -> Usage {
        let Self(all) = self;
        let ticks = all.user_ticks + all.system_ticks;
        let user_share = if ticks == 0 {
            0.0
        } else {
            all.user_ticks as f64 / ticks as f64
        };
        let ran_us = all.ran_ns as f64 / 1e3;
        Usage {
            user_us: ran_us * user_share,
            system_us: ran_us * (1.0 - user_share),
            voluntary_switches: all.voluntary,
            involuntary_switches: all.involuntary,
            rss_peak_kib,
        }
    }
}

impl Counts {
    fn add(&mut self, more: &Self) {
        self.ran_ns += more.ran_ns;
        self.user_ticks += more.user_ticks;
        self.system_ticks += more.system_ticks;
        self.voluntary += more.voluntary;
        self.involuntary += more.involuntary;
    }

    fn less(&self, before: &Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_sub(before.ran_ns),
            user_ticks: self.user_ticks.saturating_sub(before.user_ticks),
            system_ticks: self.system_ticks.saturating_sub(before.system_ticks),
            voluntary: self.voluntary.saturating_sub(before.voluntary),
            involuntary: self.involuntary.saturating_sub(before.involuntary),
        }
    }
}

/// A thread that was not there before began in between.
fn between(before: &Sample, after: &Sample) -> Counts {
    let mut all = Counts::default();
    for (thread, counts) in after {
        let before = before.get(thread).copied().unwrap_or_default();
        all.add(&counts.less(&before));
    }
    all
}

/// A process that is gone has used nothing: whoever waits for it will notice.
fn sample(pids: &[u32]) -> Sample {
    let mut all = Sample::new();
    for pid in pids {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let Some(thread) = task.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = read("status");
            let field = |name| field(&status, name).map_or(0, number);
            let (user_ticks, system_ticks) = ticks(&read("stat")).unwrap_or_default();
            let counts = Counts {
                ran_ns: ran_ns(&task.path()),
                user_ticks,
                system_ticks,
                voluntary: field("voluntary_ctxt_switches"),
                involuntary: field("nonvoluntary_ctxt_switches"),
            };
            all.insert((*pid, thread), counts);
        }
    }
    all
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

/// utime and stime; the name before them, in brackets, may hold anything.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ').skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Makes [`rss_peak_kib`] count from here on: `5` into clear_refs (proc_pid_clear_refs(5)).
pub fn forget_rss_peak(pids: &[u32]) {
    for pid in pids {
        // A kernel without this file leaves the peak of the process's life: too high, never too
        // low.
        let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
    }
}

/// The most memory that each process has had, added up: VmHWM (proc_pid_status(5)).
///
/// # Errors
/// A process is gone.
pub fn rss_peak_kib(pids: &[u32]) -> anyhow::Result<u64> {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .with_context(|| format!("process {pid} is gone"))?;
        let peak = field(&status, "VmHWM").and_then(|value| value.split(' ').next());
        Ok(peak.map_or(0, number))
    };
    pids.iter().map(of).sum()
}

/// The value of the first line `name: value`.
pub fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = pairs.find(|(key, _)| key.trim() == name)?;
    Some(value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        hint::black_box,
        time::{Duration, Instant},
    };

    #[test]
    fn work_is_counted_and_sleep_is_not() {
        let me = std::process::id();
        let mut meter = Meter::new(vec![me]);
        meter.begin();
        let mut worked = meter.lap();
        // The limit allows for a machine that others use, too.
        let end = Instant::now() + Duration::from_secs(10);
        while worked.0.ran_ns < 100_000_000 && Instant::now() < end {
            for _ in 0..1_000 {
                black_box(fs::metadata("/proc/self").is_ok());
            }
            worked.add(meter.lap());
        }
        let usage = worked.usage(rss_peak_kib(&[me]).unwrap());
        assert!(usage.user_us + usage.system_us > 50_000.0, "{usage:?}");
        assert!(
            usage.system_us > 0.0 && usage.rss_peak_kib > 100,
            "{usage:?}"
        );

        let mut twice = worked;
        twice.add(worked);
        let sum = twice.usage(0);
        let ratio = (sum.user_us + sum.system_us) / (usage.user_us + usage.system_us);
        assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn a_thread_that_ends_takes_no_more_than_its_own() {
        let counts = |ran_ns| Counts {
            ran_ns,
            ..Counts::default()
        };
        let before = Sample::from([((1, 1), counts(100)), ((1, 2), counts(9_000))]);
        let after = Sample::from([((1, 1), counts(150)), ((1, 3), counts(7))]);
        assert_eq!(between(&before, &after).ran_ns, 57);
    }

    #[test]
    fn nobody_uses_nothing() {
        let mut meter = Meter::new(vec![u32::MAX]);
        meter.begin();
        assert_eq!(meter.lap().usage(0), Usage::default());
        assert!(rss_peak_kib(&[u32::MAX]).is_err());
    }

    #[test]
    fn the_kernel_has_threads() {
        let mut seen = BTreeMap::new();
        let threads: Vec<u32> = kernel_threads(&mut seen).collect();
        assert!(threads.len() > 5, "{threads:?}");
        assert_eq!(seen.get(&std::process::id()), Some(&false));
        let all = between(&Sample::new(), &Meter::of_kernel().sample());
        assert!(all.ran_ns > 0, "{all:?}");
        let usage = Spent(all).usage(0);
        assert!(usage.system_us > 0.0 && usage.user_us == 0.0, "{usage:?}");
    }

    #[test]
    fn fields() {
        let text = "model\t\t: 1\nmodel name\t: A CPU @ 2: fast\n";
        assert_eq!(field(text, "model name"), Some("A CPU @ 2: fast"));
        assert_eq!(field(text, "name"), None);
    }
}
