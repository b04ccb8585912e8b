//! The policy in force: read again on SIGHUP and when the file changes, put into force whole or not
//! at all. Marks come before the file's rules, for as long as they hold.

mod beside;
mod fleet;
mod marks;
mod names;
mod own;
mod reload;
mod slow;
mod windows;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ::names::{NameMetrics, Wanted as WantedNames};
use dataplane::{AttachError, Dataplane, IncomingListener, host};
use policy::{Policy, Timestamp};
use policy_source::{Fragments, Verdict};
use proxy::ProxyContext;
use steps::pipelines::Pipelines;
use telemetry::Metrics;
use tls::TlsRules;
use tokio::{
    signal::unix::Signal,
    sync::{mpsc, watch},
    time::{self, Instant, MissedTickBehavior},
};

pub use self::names::wanted_names;
use self::{
    fleet::{Choosing, FromFleet},
    names::Waiting,
    own::Failed,
    windows::Windows,
};
use crate::{
    backends,
    config::{Config, InForce, Sources},
    containers::{Book, ContainerMetrics},
    edge::EdgeControl,
    fleet::FleetMetrics,
    log::Log,
    marks::{Asked, Marks},
    observed, remembered, seconds, service_manager,
    triggers::{self, Triggers},
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

/// Keeps the policy in force in step with the file, and with what is observed.
pub struct Control {
    file: PathBuf,
    sources: Sources,
    /// The file could not be read when it was last looked at.
    unreadable: bool,
    config: Config,
    from_fleet: FromFleet,
    choosing: Choosing,
    marks: Marks,
    triggers: Triggers,
    windows: Windows,
    waiting: Waiting,
    /// Set when the policy in force is not the one that should be: the kernel refused it.
    stale: bool,
    /// Set when a policy has come into force, and nobody has looked by it for running connections.
    is_unadopted: bool,
    /// Files that are in force since this turn, which is told when running connections are read by them, too.
    untold_reloads: u64,
    /// Set when the file was last read in vain.
    failed: Option<Failed>,
    heard: Heard,
    /// Where the hierarchy of cgroups is mounted: read once, for hosts with many containers have thousands of mounts.
    cgroup_root: PathBuf,
    numbers: Vec<Option<u64>>,
    edge: EdgeControl,
    dataplane: Arc<Mutex<Option<Dataplane>>>,
    shared: Arc<ProxyContext>,
    metrics: Metrics,
    told: Told,
}

/// The receivers of changes.
pub struct Told {
    /// The policy: the marks' rules and the file's.
    pub policy: watch::Sender<Arc<Policy>>,
    /// The files, and what they mean: also of rules whose windows are closed.
    pub in_force: watch::Sender<Arc<InForce>>,
    /// The pipelines of the file's rules.
    pub pipelines: watch::Sender<Arc<Pipelines>>,
    /// The TLS settings of the file's rules.
    pub tls: watch::Sender<Arc<TlsRules>>,
    /// The settings of health checks.
    pub health: watch::Sender<backends::HealthCheck>,
    /// The listeners at which connections from other hosts arrive from now on, too.
    pub incoming_listeners: mpsc::UnboundedSender<IncomingListener>,
    /// The verdict on the fleet's policy.
    pub verdicts: watch::Sender<Option<Verdict>>,
    /// The names that are to be followed: also those of rules whose windows are closed.
    pub names: watch::Sender<Arc<WantedNames>>,
}

/// The sources of changes other than the file.
pub struct Heard {
    /// The log, whose level the file says.
    pub log: Log,
    /// The requests of operators.
    pub asked: mpsc::Receiver<Asked>,
    /// The containers that run.
    pub containers: watch::Receiver<Book>,
    /// The metrics of containers; those that do not fit are counted.
    pub container_metrics: ContainerMetrics,
    /// The addresses that names stand for.
    pub names: watch::Receiver<::names::Book>,
    /// The metrics of names; addresses that do not fit are counted.
    pub name_metrics: NameMetrics,
    /// The files of the fleet that were read last.
    pub offers: watch::Receiver<Option<Arc<Fragments>>>,
    /// The files of the fleet that are in force from the beginning: the last good ones, from the cache.
    pub cached: Arc<Fragments>,
    /// Files of the fleet as they were kept, where some of their rules are treated by their `fail`.
    pub as_kept: Option<Arc<Fragments>>,
    /// The metrics of the fleet's policy.
    pub fleet_metrics: FleetMetrics,
}

impl Control {
    /// Makes the owner of the policy. `config` is what `file` says, of whose texts [`Told`] has those that were read; of its rules
    /// those are in force that it has.
    pub fn new(
        file: PathBuf,
        config: Config,
        dataplane: Arc<Mutex<Option<Dataplane>>>,
        edge: EdgeControl,
        shared: Arc<ProxyContext>,
        told: Told,
        heard: Heard,
    ) -> Self {
        // If the file has changed since, the first look reads it again.
        let sources = told.in_force.borrow().sources.clone();
        let cgroup_root = host::cgroup2_root().ok().flatten().unwrap_or_default();
        let numbers = numbers(&cgroup_root, &told.policy.borrow());
        let mut triggers = Triggers::default();
        triggers.set(config.triggers.clone());
        let mut control = Self {
            file,
            sources,
            unreadable: false,
            config,
            from_fleet: FromFleet::of(heard.cached.clone(), heard.as_kept.clone()),
            choosing: Choosing::default(),
            marks: Marks::default(),
            triggers,
            windows: Windows::default(),
            waiting: Waiting::default(),
            stale: false,
            is_unadopted: false,
            untold_reloads: 0,
            failed: None,
            heard,
            cgroup_root,
            numbers,
            edge,
            dataplane,
            metrics: shared.metrics.clone(),
            shared,
            told,
        };
        control.show_triggers();
        // By what is in force. If a window has opened or closed since, that is seen at once.
        control.note_windows_in_force();
        control
    }

    /// Runs for ever. `hangups`: SIGHUP, which must be caught before anybody is told to send it.
    pub async fn run(mut self, mut hangups: Signal) {
        let mut file_looks = seconds::every(LOOK_AT_FILE_EVERY);
        let mut cgroup_looks = seconds::every(LOOK_AT_CGROUPS_EVERY);
        let mut meter_looks = seconds::every(LOOK_AT_METERS_EVERY);
        let mut remembered_looks = seconds::every(LOOK_AT_REMEMBERED_EVERY);
        // A quantile is one of the responses in between, so that no two looks may be close.
        let mut trigger_looks = time::interval(triggers::LOOK_EVERY);
        trigger_looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let names_either = {
                let policy = self.told.policy.borrow();
                policy.names_cgroups() || policy.names_namespaces()
            };
            tokio::select! {
                _ = hangups.recv() => service_manager::while_reloading(|| self.hang_up()),
                _ = file_looks.tick() => {
                    self.look_at_file();
                    self.end_marks();
                }
                Some(asked) = self.heard.asked.recv() => self.answer(asked),
                () = at(self.marks.next_end()) => self.end_marks(),
                () = at(self.windows.look_at()) => self.look_at_windows(),
                () = at(self.waiting.look_at()) => self.look_at_names(),
                _ = meter_looks.tick() => self.look_at_meters().await,
                _ = trigger_looks.tick(), if !self.triggers.is_empty() => {
                    self.look_at_triggers().await;
                }
                _ = remembered_looks.tick() => self.look_at_remembered().await,
                Ok(()) = self.heard.containers.changed() => self.look_at_containers(),
                Ok(()) = self.heard.names.changed() => self.look_at_names(),
                Ok(()) = self.from_fleet.offered(&mut self.heard.offers), if !self.choosing.is_busy() => {
                    self.look_at_offer();
                }
                chosen = self.choosing.made() => self.take_choice(chosen),
                _ = cgroup_looks.tick(), if names_either => {
                    self.look_at_cgroups();
                }
            }
            self.adopt().await;
            self.tell_reloads();
        }
    }

    /// Has running connections read, if a policy has come into force by which nobody has looked for them. Others are served
    /// meanwhile, and the policy stays in force.
    async fn adopt(&mut self) {
        if !std::mem::take(&mut self.is_unadopted) || !self.config.adopt {
            return;
        }
        let policy = self.told.policy.borrow().clone();
        let (dataplane, shared) = (self.dataplane.clone(), self.shared.clone());
        let looks = move || observed::adopt(&shared, &dataplane, &policy);
        if let Err(error) = tokio::task::spawn_blocking(looks).await {
            tracing::error!(%error, "running connections cannot be looked for");
        }
    }

    async fn look_at_meters(&self) {
        if !observed::is_observing(&self.dataplane) {
            return;
        }
        let dataplane = self.dataplane.clone();
        let looked = tokio::task::spawn_blocking(move || observed::sweep(&dataplane)).await;
        if let Err(error) = looked {
            tracing::error!(%error, "cannot read observed flows");
        }
    }

    async fn look_at_remembered(&self) {
        let dataplane = self.dataplane.clone();
        let looked = tokio::task::spawn_blocking(move || remembered::sweep(&dataplane)).await;
        if let Err(error) = looked {
            tracing::error!(%error, "cannot read remembered decisions");
        }
    }

    fn look_at_cgroups(&mut self) {
        let policy = self.told.policy.borrow().clone();
        if numbers(&self.cgroup_root, &policy) != self.numbers {
            tracing::info!("a cgroup or namespace that a rule names came or went");
            if let Err(error) = self.install(&policy, &policy) {
                tracing::error!(%error, "cannot put the policy into force again");
            }
        }
    }

    fn look_at_containers(&mut self) {
        let policy = self.found(&self.config.policy, Timestamp::now());
        let is_in_force = {
            let old = self.told.policy.borrow();
            let pairs = old.rules.iter().zip(&policy.rules);
            pairs
                .into_iter()
                .all(|(old, new)| old.cgroups_held() == new.cgroups_held())
        };
        if is_in_force {
            return;
        }
        tracing::info!("a container that a rule names came or went");
        if let Err(error) = self.put(&self.config.policy.clone()) {
            // Putting it into force is tried again.
            self.stale = true;
            tracing::error!(
                "cannot follow a change of containers, rules hold for the previous ones: {error:#}"
            );
        }
    }

    /// Returns the file's policy as it is at a moment, with the marks before it.
    fn as_it_is(&self, file: &Policy, now: Timestamp) -> Policy {
        self.marks.before(&self.triggers.over(&file.open_at(now)))
    }

    /// Returns the file's policy as it is at a moment, with the marks before it, the containers that run, and the addresses
    /// of names.
    fn found(&self, file: &Policy, now: Timestamp) -> Policy {
        let mut policy = self.as_it_is(file, now);
        let left_out = policy.find_containers(self.heard.containers.borrow().running());
        self.heard.container_metrics.left_out(left_out);
        let names = self.heard.names.borrow();
        let left_out = policy.find_names(|name| names.endpoints(name));
        self.heard.name_metrics.left_out(left_out);
        policy
    }

    /// Makes the agent take the virtual addresses of which a policy wants it to see connections.
    fn take(&self, dataplane: &mut Dataplane, policy: &Policy) -> Result<(), AttachError> {
        let incoming_listeners = dataplane.take_addresses(&self.edge.taken(policy))?;
        // The acceptor is gone only when the agent ends.
        let mut incoming_listeners = incoming_listeners.into_iter();
        let _ =
            incoming_listeners.try_for_each(|listener| self.told.incoming_listeners.send(listener));
        Ok(())
    }

    /// Puts the file's policy into force, with the marks before it.
    fn put(&mut self, file: &Policy) -> anyhow::Result<()> {
        let now = Timestamp::now();
        let policy = Arc::new(self.found(file, now));
        // First: a flow whose rule the agent does not know would be decided by the old policy, and one that ran
        // before for good.
        let old = self.told.policy.send_replace(Arc::clone(&policy));
        if let Err(error) = self.install(&policy, &old) {
            self.told.policy.send_replace(old);
            return Err(error);
        }
        self.stale = false;
        self.note_windows(file, now);
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
            tracing::error!(%error, "cannot remove remembered decisions");
        }
    }

    /// Opens the edge as the file says, and has running connections read, where that was another agent's until now. Both take long where
    /// there are many interfaces or connections, and connections are taken meanwhile.
    pub async fn carry_on_alone(&mut self) {
        let policy = self.told.policy.borrow().clone();
        let (mut edge, xdp) = (self.edge.clone(), self.config.xdp.clone());
        let (dataplane, shared) = (self.dataplane.clone(), self.shared.clone());
        let adopts = self.config.adopt;
        let opened = tokio::task::spawn_blocking(move || {
            let opened = edge.apply(&xdp, &policy);
            if adopts {
                observed::adopt(&shared, &dataplane, &policy);
            }
            opened.map(|()| edge)
        });
        let opened = opened.await.map_err(anyhow::Error::from);
        match opened.and_then(|opened| opened) {
            Ok(edge) => self.edge = edge,
            Err(error) => {
                tracing::error!("the edge stays as the agent before has left it: {error:#}");
            }
        }
    }

    fn install(&mut self, policy: &Policy, old: &Policy) -> anyhow::Result<()> {
        let ids = numbers(&self.cgroup_root, policy);
        if self.install_attached(policy, old)? {
            self.numbers = ids;
            self.is_unadopted = true;
        }
        Ok(())
    }

    /// Installs a policy in what is attached, or leaves the old one in force. Returns whether anything is attached.
    fn install_attached(&mut self, policy: &Policy, old: &Policy) -> anyhow::Result<bool> {
        let dataplane = self.dataplane.clone();
        let mut dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(dataplane) = dataplane.as_mut() else {
            return Ok(false);
        };
        self.edge.install(policy)?;
        let installed = dataplane.install(policy).map_err(anyhow::Error::from);
        let installed = installed.and_then(|()| Ok(self.take(dataplane, policy)?));
        let installed = installed.and_then(|()| match policy.taps() {
            true => Ok(observed::start_tap(&self.shared, dataplane)?),
            false => Ok(()),
        });
        if let Err(error) = installed {
            self.edge.install(old)?;
            dataplane.install(old)?;
            self.take(dataplane, old)?;
            return Err(error);
        }
        Ok(true)
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// The numbers of what comes and goes: of cgroups and namespaces.
fn numbers(cgroup_root: &Path, policy: &Policy) -> Vec<Option<u64>> {
    let paths = policy.rules.iter().flat_map(|rule| rule.cgroups_held());
    let cgroups = paths.map(|path| host::cgroup_id(cgroup_root, path));
    let namespaces = policy.rules.iter().flat_map(|rule| &rule.namespaces);
    let namespaces = namespaces.map(|netns| netns.inode().map(u64::from));
    cgroups.chain(namespaces).collect()
}
