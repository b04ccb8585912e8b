//! The policy in force: read again on SIGHUP and when the file changes, put into force
//! whole or not at all; marks stand before what the file says, for as long as they hold.

use std::{
    fs,
    io::ErrorKind,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dataplane::{Dataplane, host, policy::Policy};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    time::{self, Instant, MissedTickBehavior},
};

use crate::{
    config::Config,
    marks::{Asked, FlowNumber, Marks, Set, Wanted},
    metrics::{Metrics, NOT_RELOADED, RELOADED},
    observed,
    proxy::Shared,
    remembered,
};

/// Polling sees what notification misses: files on any file system, swapped by rename or by
/// symbolic link, cgroups made anew under an old name.
const LOOK_AT_FILE_EVERY: Duration = Duration::from_secs(1);

/// A rule does not hold for a cgroup that was made a moment ago for as long as this.
const LOOK_AT_CGROUPS_EVERY: Duration = Duration::from_millis(100);

/// Observed flows that have ended stay in the kernel's table for as long as this.
const LOOK_AT_METERS_EVERY: Duration = Duration::from_secs(5);

/// Only to give memory back: what has expired, or whose process has ended, holds for nobody.
const LOOK_AT_REMEMBERED_EVERY: Duration = Duration::from_secs(5);

/// Keeps the policy in force in step with the file.
pub struct Control {
    file: PathBuf,
    bytes: Vec<u8>,
    /// The file could not be read when it was last looked at.
    unreadable: bool,
    config: Config,
    marks: Marks,
    /// A mark that has ended is still in force: the kernel refused to be told.
    stale: bool,
    asked: mpsc::Receiver<Asked>,
    cgroup_ids: Vec<Option<u64>>,
    dataplane: Arc<Mutex<Option<Dataplane>>>,
    shared: Arc<Shared>,
    metrics: Metrics,
    /// The marks' rules and the file's.
    in_force: watch::Sender<Arc<Policy>>,
}

impl Control {
    /// `config` is what `file` says and what is in force, here as there.
    pub fn new(
        file: PathBuf,
        config: Config,
        dataplane: Arc<Mutex<Option<Dataplane>>>,
        shared: Arc<Shared>,
        in_force: watch::Sender<Arc<Policy>>,
        asked: mpsc::Receiver<Asked>,
    ) -> Self {
        // Not the text that `config` was read from, if it changed since: then the first look
        // reads it again.
        let bytes = fs::read(&file).unwrap_or_default();
        let cgroup_ids = cgroup_ids(&config.policy);
        Self {
            file,
            bytes,
            unreadable: false,
            config,
            marks: Marks::default(),
            stale: false,
            asked,
            cgroup_ids,
            dataplane,
            metrics: shared.metrics.clone(),
            shared,
            in_force,
        }
    }

    /// Runs for ever.
    ///
    /// # Errors
    /// SIGHUP cannot be waited for.
    pub async fn run(mut self) -> std::io::Result<()> {
        let mut hangups = signal(SignalKind::hangup())?;
        let mut file_looks = time::interval(LOOK_AT_FILE_EVERY);
        let mut cgroup_looks = time::interval(LOOK_AT_CGROUPS_EVERY);
        file_looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        cgroup_looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut meter_looks = time::interval(LOOK_AT_METERS_EVERY);
        meter_looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut remembered_looks = time::interval(LOOK_AT_REMEMBERED_EVERY);
        remembered_looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let names_cgroups = self.in_force.borrow().names_cgroups();
            tokio::select! {
                _ = hangups.recv() => self.reload(),
                _ = file_looks.tick() => {
                    self.look_at_file();
                    self.end_marks();
                }
                Some(asked) = self.asked.recv() => self.answer(asked),
                () = at(self.marks.next_end()) => self.end_marks(),
                _ = meter_looks.tick() => self.look_at_meters().await,
                _ = remembered_looks.tick() => self.look_at_remembered().await,
                _ = cgroup_looks.tick(), if names_cgroups => {
                    self.look_at_cgroups();
                }
            }
        }
    }

    async fn look_at_meters(&self) {
        if !observed::is_observing(&self.dataplane) {
            return;
        }
        let dataplane = self.dataplane.clone();
        let looked = tokio::task::spawn_blocking(move || observed::sweep(&dataplane)).await;
        if let Err(error) = looked {
            tracing::error!(%error, "cannot look at what was observed");
        }
    }

    async fn look_at_remembered(&self) {
        let dataplane = self.dataplane.clone();
        let looked = tokio::task::spawn_blocking(move || remembered::sweep(&dataplane)).await;
        if let Err(error) = looked {
            tracing::error!(%error, "cannot look at what is remembered");
        }
    }

    fn look_at_file(&mut self) {
        match fs::read(&self.file) {
            Ok(bytes) if bytes != self.bytes => self.reload(),
            // A file that is gone for a moment is being replaced.
            Err(error) if error.kind() != ErrorKind::NotFound && !self.unreadable => {
                self.unreadable = true;
                self.reload();
            }
            _ => {}
        }
    }

    fn look_at_cgroups(&mut self) {
        let policy = self.in_force.borrow().clone();
        if cgroup_ids(&policy) != self.cgroup_ids {
            tracing::info!("a cgroup that a rule names came or went");
            if let Err(error) = self.install(&policy) {
                tracing::error!(%error, "the policy could not be written again");
            }
        }
    }

    fn reload(&mut self) {
        let result = match self.try_reload() {
            Ok(()) => {
                tracing::info!(file = %self.file.display(), "policy reloaded");
                RELOADED
            }
            Err(error) => {
                tracing::error!("nothing changed, the old policy stays: {error}");
                NOT_RELOADED
            }
        };
        self.metrics.reloads.with_label_values(&[result]).inc();
    }

    fn try_reload(&mut self) -> anyhow::Result<()> {
        let bytes = fs::read(&self.file)
            .map_err(|e| anyhow::anyhow!("cannot read {}: {e}", self.file.display()))?;
        // Remembered even when it is bad, so that a mistake is reported once.
        self.bytes.clone_from(&bytes);
        self.unreadable = false;
        let text = String::from_utf8(bytes)
            .map_err(|_| anyhow::anyhow!("{} is not UTF-8", self.file.display()))?;
        let config = Config::parse(&self.file, &text)?;
        self.put(&config.policy)?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        if needs_restart(&self.config, &config) {
            tracing::warn!("[agent] changed: it takes effect when the agent is started again");
        }
        self.config.policy = config.policy;
        Ok(())
    }

    /// Puts what the file says into force, with the marks before it.
    fn put(&mut self, file: &Policy) -> anyhow::Result<()> {
        let policy = self.marks.before(file);
        self.install(&policy)?;
        self.stale = false;
        self.in_force.send_replace(Arc::new(policy));
        // A flow of a moment ago may still be decided by the old policy: not for its successors.
        self.forget_remembered();
        Ok(())
    }

    fn forget_remembered(&self) {
        let mut dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = dataplane.as_mut().map(Dataplane::forget_remembered) {
            tracing::error!(%error, "cannot forget what is remembered");
        }
    }

    fn answer(&mut self, asked: Asked) {
        self.end_marks();
        // Who asked may have gone.
        match asked {
            Asked::Set(wanted, answer) => drop(answer.send(self.set(&wanted))),
            Asked::List(answer) => drop(answer.send(self.marks.views())),
            Asked::End(id, answer) => {
                let mark = self.marks.remove(id);
                if let Some(mark) = &mark {
                    tracing::info!(mark = id, selector = %mark.target, "mark taken back");
                    self.ended(mark.target.holds_later());
                }
                drop(answer.send(mark));
            }
        }
    }

    fn set(&mut self, wanted: &Wanted) -> Result<Set, String> {
        let mark = self.marks.add(wanted)?;
        if mark.target.holds_later()
            && let Err(error) = self.put(&self.config.policy.clone())
        {
            self.marks.remove(mark.id);
            return Err(format!("{error:#}"));
        }
        self.metrics.marks.set(self.marks.len() as i64);
        tracing::info!(
            mark = mark.id,
            selector = %mark.target,
            action = mark.action.as_str(),
            lasts = ?wanted.lasts,
            reset = wanted.reset,
            "marked"
        );
        Ok(Set {
            mark,
            policy: self.in_force.borrow().clone(),
        })
    }

    /// Ends marks whose time is over, and those of flows that have gone.
    fn end_marks(&mut self) {
        let is_gone = |number| match number {
            FlowNumber::Carried(id) => !self.shared.flows.has(id),
            // The agent cannot change it: there is nothing to remember.
            FlowNumber::Observed(_) => true,
        };
        let ended = self.marks.end(Instant::now(), is_gone);
        for mark in &ended {
            tracing::info!(mark = mark.id, selector = %mark.target, "mark ended");
        }
        self.ended(ended.iter().any(|mark| mark.target.holds_later()));
    }

    /// Marks have ended; `later`: connections met one of them.
    fn ended(&mut self, later: bool) {
        self.metrics.marks.set(self.marks.len() as i64);
        self.stale |= later;
        if self.stale
            && let Err(error) = self.put(&self.config.policy.clone())
        {
            tracing::error!("a mark that has ended is still in force: {error:#}");
        }
    }

    fn install(&mut self, policy: &Policy) -> anyhow::Result<()> {
        let ids = cgroup_ids(policy);
        let mut dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(dataplane) = dataplane.as_mut() else {
            return Ok(());
        };
        dataplane.install(policy)?;
        self.cgroup_ids = ids;
        Ok(())
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn needs_restart(old: &Config, new: &Config) -> bool {
    (
        old.admin,
        &old.control,
        &old.cgroup,
        &old.pins,
        old.max_flows,
        old.workers,
        old.splice,
    ) != (
        new.admin,
        &new.control,
        &new.cgroup,
        &new.pins,
        new.max_flows,
        new.workers,
        new.splice,
    )
}

fn cgroup_ids(policy: &Policy) -> Vec<Option<u64>> {
    let root = host::cgroup2_root().ok().flatten().unwrap_or_default();
    let paths = policy.rules.iter().flat_map(|rule| &rule.cgroups);
    paths.map(|path| host::cgroup_id(&root, path)).collect()
}
