//! The policy in force: read again on SIGHUP and when the file changes, put into force
//! whole or not at all.

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
    sync::watch,
    time::{self, MissedTickBehavior},
};

use crate::{
    config::Config,
    metrics::{Metrics, NOT_RELOADED, RELOADED},
    observed, remembered,
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
    cgroup_ids: Vec<Option<u64>>,
    dataplane: Arc<Mutex<Option<Dataplane>>>,
    metrics: Metrics,
    in_force: watch::Sender<Arc<Policy>>,
}

impl Control {
    /// `config` is what `file` says and what is in force, here as there.
    pub fn new(
        file: PathBuf,
        config: Config,
        dataplane: Arc<Mutex<Option<Dataplane>>>,
        metrics: Metrics,
        in_force: watch::Sender<Arc<Policy>>,
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
            cgroup_ids,
            dataplane,
            metrics,
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
            tokio::select! {
                _ = hangups.recv() => self.reload(),
                _ = file_looks.tick() => self.look_at_file(),
                _ = meter_looks.tick() => self.look_at_meters().await,
                _ = remembered_looks.tick() => self.look_at_remembered().await,
                _ = cgroup_looks.tick(), if self.config.policy.names_cgroups() => {
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
        if cgroup_ids(&self.config.policy) != self.cgroup_ids {
            tracing::info!("a cgroup that a rule names came or went");
            let policy = self.config.policy.clone();
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
        self.install(&config.policy)?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        if needs_restart(&self.config, &config) {
            tracing::warn!("[agent] changed: it takes effect when the agent is started again");
        }
        self.in_force.send_replace(Arc::new(config.policy.clone()));
        self.config.policy = config.policy;
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

fn needs_restart(old: &Config, new: &Config) -> bool {
    (
        old.admin,
        &old.cgroup,
        &old.pins,
        old.max_flows,
        old.workers,
        old.splice,
    ) != (
        new.admin,
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
