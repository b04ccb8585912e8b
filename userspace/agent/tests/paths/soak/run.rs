//! [`Run`]: the state that all threads of a run share.

use std::{
    fmt::Write,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use cql_node::Node;
use sandbox::{Agent, Former, MemoryCgroup, Metric, Sandbox};

use super::{
    faults::{DRAINED, Fault},
    log::Log,
    routes::ROUTES,
};
use crate::keeper::host::keepers;

/// The time in which an agent gets over a fault.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Parts of errors in an agent's log that are no findings: faults cause them.
const KNOWN: [&str; 3] = [
    "cannot reload the file",
    "Too many open files",
    "Cannot allocate memory",
];

/// The descriptors that an agent may have in the end beyond those that the first one began with, for what is made when it is
/// needed first. A leak has more: there were hundreds of faults.
const MORE_DESCRIPTORS: u64 = 64;

/// Metrics that are above zero when a route has carried something: each the sum of the samples that begin so.
const CARRIES: [(&str, &str); 9] = [
    (
        "untouched",
        "underpass_connections_total{outcome=\"untouched\",rule=\"untouched\"",
    ),
    ("observed", "underpass_observed_bytes_total{"),
    ("tapped", "underpass_tap_flows"),
    ("local", "underpass_shortcut_bytes_total{way=\"shortcut\""),
    ("spliced", "underpass_spliced_bytes_total{"),
    (
        "changed",
        "underpass_connections_total{outcome=\"intercepted\",rule=\"changed\"",
    ),
    (
        "audited",
        "underpass_journal_records_total{journal=\"audit\",outcome=\"written\"",
    ),
    (
        "marked",
        "underpass_connections_total{outcome=\"intercepted\",rule=\"marked\"",
    ),
    (
        "mortal",
        "underpass_connections_total{outcome=\"intercepted\",rule=\"mortal\"",
    ),
];

/// See the module.
pub struct Run<'s> {
    pub sandbox: &'s Sandbox,
    /// The agent. Locked while a fault is at work on it.
    agent: Mutex<Agent<'s>>,
    /// The agent from which this one has taken over.
    pub former: Mutex<Option<Former>>,
    pub pid: AtomicU32,
    /// The addresses of databases, by route.
    pub addrs: Vec<SocketAddr>,
    pub mortal: Mutex<Option<Node>>,
    /// The rules that no fault changes.
    others: String,
    /// The file system of the journal.
    pub disk: PathBuf,
    /// The memory cgroup of the agent. Dropped after the agent.
    pub memory: Option<MemoryCgroup>,
    /// The open descriptors of the first agent, before it had a flow.
    descriptors: u64,
    pub log: Log,
    pub seed: u64,
    pub over: AtomicBool,
    /// The highest sum of [`CARRIES`] of one agent, by route.
    carried: Mutex<[f64; CARRIES.len()]>,
    pub answers: [AtomicU64; ROUTES.len()],
    pub longest_us: [AtomicU64; ROUTES.len()],
    /// Connections that came, asked and went.
    pub visits: AtomicU64,
    /// Times that all of a driver's cases have passed.
    pub driver_rounds: AtomicU64,
}

/// Makes the policy. `rate`: of the throttle.
pub fn policy(addrs: &[SocketAddr], disk: &Path, others: &str, rate: u32) -> String {
    let disk = disk.display().to_string();
    let rules = ROUTES.iter().zip(addrs);
    let rules = rules.map(|(route, addr)| route.rule(addr.port(), &disk, rate));
    rules.collect::<String>() + others
}

impl<'s> Run<'s> {
    pub fn new(
        sandbox: &'s Sandbox,
        agent: Agent<'s>,
        (addrs, mortal): (Vec<SocketAddr>, Node),
        (others, disk): (String, &Path),
        memory: Option<MemoryCgroup>,
        limit: Duration,
    ) -> Self {
        Self {
            sandbox,
            descriptors: descriptors(agent.pid()).unwrap(),
            pid: agent.pid().into(),
            agent: Mutex::new(agent),
            former: Mutex::default(),
            addrs,
            mortal: Mutex::new(Some(mortal)),
            others,
            disk: disk.to_owned(),
            memory,
            log: Log::new(limit),
            seed: sandbox::seed(),
            over: AtomicBool::new(false),
            carried: Mutex::default(),
            answers: Default::default(),
            longest_us: Default::default(),
            visits: AtomicU64::new(0),
            driver_rounds: AtomicU64::new(0),
        }
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Counts an answer that is right.
    pub fn answered(&self, route: usize, took: Duration) {
        self.answers[route].fetch_add(1, Relaxed);
        self.longest_us[route].fetch_max(took.as_micros() as u64, Relaxed);
    }

    pub fn agent(&self) -> MutexGuard<'_, Agent<'s>> {
        self.agent.lock().unwrap()
    }

    /// The agent, unless a fault is at work on it.
    pub fn idle_agent(&self) -> Option<MutexGuard<'_, Agent<'s>>> {
        self.agent.try_lock().ok()
    }

    /// Notes what the agent has carried, and returns its metrics. None: it does not answer.
    pub fn note_carried(&self, agent: &Agent<'_>) -> Option<Metric> {
        let metrics = agent.metrics().ok()?;
        let mut carried = self.carried.lock().unwrap();
        for (place, (_, name)) in CARRIES.iter().enumerate() {
            let samples = metrics.iter().filter(|(n, _)| n.starts_with(name));
            let sum: f64 = samples.map(|(_, value)| value).sum();
            carried[place] = carried[place].max(sum);
        }
        Some(metrics)
    }

    /// Returns the routes by which nothing has gone, as far as was seen.
    pub fn idle_routes(&self) -> Vec<&'static str> {
        let carried = self.carried.lock().unwrap();
        let routes = CARRIES.iter().zip(&*carried);
        let idle = routes.filter(|(_, most)| **most == 0.0);
        idle.map(|((route, _), _)| *route).collect()
    }

    pub fn policy(&self, rate: u32) -> String {
        policy(&self.addrs, &self.disk, &self.others, rate)
    }

    /// Whether the kernel carries all flows that are to be spliced, and a keeper holds them.
    pub fn kernel_carries(&self) -> bool {
        let agent = self.agent();
        let (Ok(flows), Some(metrics)) = (agent.json("/flows"), self.note_carried(&agent)) else {
            return false;
        };
        let kept = metrics.get("underpass_kept_flows").copied().unwrap_or(0.0);
        let flows = flows.as_array().unwrap();
        let is_spliced = |flow: &&serde_json::Value| flow["path"] == "splice";
        let mut of_route = flows.iter().filter(|flow| flow["rule"] == "spliced");
        let spliced = flows.iter().filter(is_spliced).count();
        of_route.all(|flow| is_spliced(&flow))
            && spliced as f64 <= kept
            && !keepers(&agent).is_empty()
    }

    /// Whether a process has ended.
    pub fn is_dead(&self, pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Behind the name, which is in parentheses and may hold any.
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_none_or(|rest| rest.starts_with('Z'))
    }

    /// Starts the agent again if it has ended by itself, which is a finding.
    pub fn revive_agent(&self) -> anyhow::Result<()> {
        let mut agent = self.agent();
        if !self.is_dead(agent.pid()) {
            return Ok(());
        }
        let log = agent.log();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        self.log.finding(format!("the agent has ended: {last:#?}"));
        agent.kill()?;
        agent.restart()?;
        self.pid.store(agent.pid(), Relaxed);
        Ok(())
    }

    /// Waits until the agent has ended from which this one has taken over.
    pub fn wait_for_former(&self) -> anyhow::Result<()> {
        let former = self.former.lock().unwrap().take();
        if let Some(mut former) = former {
            let log = former.ends_within(DRAINED)?;
            self.check_log(&log);
        }
        Ok(())
    }

    /// Looks for errors in an agent's log.
    pub fn check_log(&self, log: &str) {
        let is_bad = |line: &&str| {
            let is_error = line.contains(" ERROR ") || line.contains("panicked");
            is_error && !KNOWN.iter().any(|known| line.contains(known))
        };
        for line in log.lines().filter(is_bad) {
            self.log.finding(format!("the agent's log: {line}"));
        }
    }

    /// Looks for lines of the audit that are not whole. Each kill may leave one.
    fn check_journal(&self) {
        let windows = self.log.windows();
        let kills = windows
            .iter()
            .filter(|window| matches!(window.fault, Fault::Kill | Fault::Memory))
            .count();
        let (mut whole, mut torn) = (0, 0);
        for name in ["audit.log", "audit.log.1"] {
            let text = fs::read_to_string(self.disk.join(name)).unwrap_or_default();
            for line in text.lines() {
                match serde_json::from_str::<serde_json::Value>(line) {
                    Ok(_) => whole += 1,
                    Err(_) => torn += 1,
                }
            }
        }
        if whole == 0 || torn > kills {
            let text =
                format!("the audit has {whole} whole lines and {torn} others, of {kills} kills");
            self.log.finding(text);
        }
    }

    /// Looks what is left when all clients have gone, and again when the agent has stopped. Returns all findings of the run.
    pub fn finish(self) -> Vec<String> {
        let note = |what: &str, checked: anyhow::Result<()>| {
            if let Err(error) = checked {
                self.log.finding(format!("in the end, {what}: {error:#}"));
            }
        };
        note("the agent before is there", self.wait_for_former());
        drop(self.mortal.lock().unwrap().take());
        let mut agent = self.agent();
        for gauge in [
            "flows",
            "kept_flows",
            "tap_flows",
            "shortcut_flows",
            "namespaces",
            "marks",
        ] {
            let sample = format!("underpass_{gauge}");
            let is_none = eventually(|| Ok(agent.metric(&sample)? == 0.0));
            note(&format!("{gauge} are left"), is_none);
        }
        let open = descriptors(agent.pid()).unwrap_or(0);
        if open > self.descriptors + MORE_DESCRIPTORS {
            let before = self.descriptors;
            let text = format!("in the end {open} descriptors are open, {before} at first");
            self.log.finding(text);
        }
        note("the agent does not stop", agent.stop().map(drop));
        self.check_journal();
        self.check_log(&agent.log());
        note(
            "keepers are left",
            eventually(|| Ok(keepers(&agent).is_empty())),
        );
        let mut left = String::new();
        for folder in fs::read_dir(agent.pins()).into_iter().flatten().flatten() {
            write!(left, " {}", folder.path().display()).unwrap();
        }
        if !left.is_empty() {
            self.log.finding(format!("pins are left:{left}"));
        }
        drop(agent);
        let Self {
            agent, memory, log, ..
        } = self;
        drop(agent);
        let (mut found, _) = log.judge();
        let cgroup = memory.as_ref().map(|memory| memory.path().to_owned());
        drop(memory);
        let left = cgroup.filter(|cgroup| cgroup.exists());
        found.extend(left.map(|cgroup| format!("{} is left", cgroup.display())));
        found
    }
}

/// Counts the open descriptors of a process. None: it has ended.
pub fn descriptors(pid: u32) -> Option<u64> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    Some(open.count() as u64)
}

/// Waits until something holds.
pub fn eventually(mut holds: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        if Instant::now() > deadline {
            anyhow::bail!("it has not come about within {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
