//! Loads the programs, attaches them, and holds what they need for as long as the agent
//! lives.

mod error;
mod hand_over;
mod loaded;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{MapData, PerCpuArray},
    programs::links::{FdLink, PinnedLink},
};

use crate::{
    answers::Answers,
    backends::{BackendCount, Probe, Severed, Weights},
    before::Before,
    counters::{Cause, Counters},
    denials::KernelDenials,
    gateway::{self, Gateway},
    holds::Holds,
    hooks, host,
    incoming::{self, Incoming, IncomingListener, IncomingOptions},
    ledger::Groups,
    legs::Legs,
    limit_hooks::LimitHooks,
    listeners::{Listeners, Mark},
    maps::MapsError,
    meter_hooks::MeterHooks,
    meters::{Meters, Traffic},
    netns_agents::{NetnsAgents, NewNetnsListeners, ServeRequests},
    pins::Pins,
    probe_result::ProbeResult,
    quota::Quota,
    remembered::Remembered,
    rivals::{self, Rival},
    rule_names::{self, Names},
    running::{Adopted, Adopter, Scope, Survey},
    shortcut::{self, OnShortcut, Shortcut, ShortcutCounts, ShortcutReaders},
    splice::{Calls, Splicer},
    tables::{GONE, InstallError, Tables},
    tap::{Tap, TapReader},
    untouched::Untouched,
};
pub use error::AttachError;
pub(crate) use error::{missing, program, reasons, refused};
use loaded::{compile_here, load};
use policy::{Policy, RuleName};

/// The places and limits with which the dataplane attaches.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cgroup v2 folder whose processes are seen.
    pub cgroup: PathBuf,
    /// The folder in which links are pinned: see [`crate::DEFAULT_PINS`].
    pub pins: PathBuf,
    /// Namespaces in which connections from other hosts are steered. At most [`crate::MAX_INCOMING`].
    pub incoming: Vec<IncomingOptions>,
    /// Other network namespaces whose processes are served, at most. 0: none.
    pub max_namespaces: usize,
    /// The size of the tap's large rings, together; made when a rule taps: a power of two between
    /// [`crate::MIN_TAP_RING_BYTES`] and [`crate::MAX_TAP_RING_BYTES`].
    pub tap_ring_bytes: u32,
    /// Virtual addresses that are taken from the beginning: see [`Dataplane::take_addresses`].
    pub taken: BTreeSet<SocketAddr>,
}

/// The attached programs. Dropped, they stay as the crash of the agent would leave them;
/// [`Dataplane::detach`] takes them away.
pub struct Dataplane {
    cgroup: PathBuf,
    tables: Tables,
    meters: Meters,
    meter_hooks: MeterHooks,
    limit_hooks: LimitHooks,
    tap: Tap,
    tap_ring_bytes: u32,
    adopter: Adopter,
    shortcut: Shortcut,
    incoming: Incoming,
    gateway: Gateway,
    mark: Mark,
    remembered: Arc<Remembered>,
    causes: PerCpuArray<MapData, u64>,
    names: Names,
    pins: Pins,
    /// Set while an agent before carries flows, with the routing that they need.
    is_beside: bool,
    /// Links of the connect hooks.
    connect_links: Vec<PinnedLink>,
    _links: Vec<PinnedLink>,
    _name_hooks: Vec<FdLink>,
    ebpf: Arc<Mutex<Ebpf>>,
}

/// All that there is once the programs are attached.
pub struct Attached {
    /// The programs.
    pub dataplane: Dataplane,
    /// The listeners at which intercepted connections arrive.
    pub listeners: Listeners,
    /// The SYNs of intercepted connections.
    pub holds: Holds,
    /// Other namespaces.
    pub netns_agents: Arc<NetnsAgents>,
    /// Requests to serve further namespaces.
    pub serve_requests: ServeRequests,
    /// Connections that the hooks refuse.
    pub denials: KernelDenials,
    /// The way to answer those.
    pub answers: Answers,
    /// The listeners at which connections from other hosts arrive.
    pub incoming_listeners: Vec<IncomingListener>,
    /// The way to have decisions stand.
    pub remembered: Arc<Remembered>,
    /// The splice, or why this kernel does not have it.
    pub splices: Result<(Splicer, Calls), String>,
    /// The way to reach backends for the agent itself.
    pub probe: Probe,
    /// The way to end connections that do not come to the agent.
    pub severed: Severed,
    /// The listeners in network namespaces that an agent before serves.
    pub served: Vec<NewNetnsListeners>,
}

/// Locks the programs. A thread that panicked while it held them does not take them from the others.
pub(crate) fn lock(ebpf: &Mutex<Ebpf>) -> MutexGuard<'_, Ebpf> {
    ebpf.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a cgroup at which another agent is alive, whatever its pins and ports. What a dead one has left elsewhere
/// is said, as are agents at the cgroups above.
fn refuse_rivals(path: &Path, cgroup: &File, pins: &Path) -> Result<(), AttachError> {
    match rivals::at(cgroup, pins) {
        Some(Rival {
            who,
            is_alive: true,
        }) => {
            let cgroup = path.to_owned();
            return Err(AttachError::Rival { cgroup, who });
        }
        Some(Rival { who, .. }) => tracing::warn!(
            cgroup = %path.display(),
            %who,
            "what a dead agent with other `pins` has left is attached there, too: remove it by `underpass detach --pins`"
        ),
        None => {}
    }
    let above = path.ancestors().skip(1);
    for path in above.take_while(|path| host::is_cgroup2(path)) {
        let rival = File::open(path).ok().and_then(|at| rivals::at(&at, pins));
        if let Some(Rival { who, .. }) = rival {
            tracing::warn!(
                cgroup = %path.display(),
                %who,
                "another agent is attached above this one's cgroup: connections that this agent takes in do not meet that one's \
                 rules, not even those that protect"
            );
        }
    }
    for path in rivals::beneath(path) {
        let rival = File::open(&path).ok().and_then(|at| rivals::at(&at, pins));
        if let Some(Rival { who, .. }) = rival {
            tracing::warn!(
                cgroup = %path.display(),
                %who,
                "another agent is attached beneath this one's cgroup: connections that it takes in do not meet this one's \
                 rules, not even those that protect"
            );
        }
    }
    Ok(())
}

impl Dataplane {
    /// Loads, puts `policy` into force and attaches. Must run within a tokio runtime.
    ///
    /// # Errors
    /// Nothing is attached then, and what was there before still is.
    pub fn attach(options: &Options, policy: &Policy) -> Result<Attached, AttachError> {
        Self::attach_after(options, policy, None)
    }

    /// Does what [`Self::attach`] does, beside an agent that runs, if there is one. New connections are that one's until
    /// [`Self::take_over`].
    ///
    /// # Errors
    /// Nothing of this agent is attached then, and the other one goes on.
    pub fn attach_after(
        options: &Options,
        policy: &Policy,
        before: Option<Before>,
    ) -> Result<Attached, AttachError> {
        if !host::is_cgroup2(&options.cgroup) {
            return Err(AttachError::NotCgroup(options.cgroup.clone()));
        }
        let cgroup = open(&options.cgroup)?;
        let is_beside = before.is_some();
        let mut pins = match &before {
            Some(before) => Pins::share(&options.pins, before.lock()?)?,
            None => Pins::claim(&options.pins)?,
        };
        if let Err(rival) = refuse_rivals(&options.cgroup, &cgroup, &options.pins) {
            pins.release()?;
            return Err(rival);
        }
        let attached = load(
            policy,
            options.max_namespaces,
            &pins,
            &cgroup,
            before.as_ref(),
        )
        .and_then(|mut loaded| {
            if policy.taps() {
                let rules = loaded.meters.rules();
                loaded.tap.open(options.tap_ring_bytes, rules);
            }
            if policy.observes() {
                loaded.meter_hooks.open(&mut lock(&loaded.ebpf), &cgroup);
                let is_unmetered = !loaded.meter_hooks.are_attached();
                loaded.tables.set_unmetered(is_unmetered)?;
            }
            loaded
                .limit_hooks
                .open(policy, &mut lock(&loaded.ebpf), &cgroup, &pins)?;
            if policy.shortcuts() {
                loaded.shortcut.open(&loaded.ebpf, &cgroup);
            }
            (loaded.incoming, loaded.incoming_listeners) = {
                let mut ebpf = lock(&loaded.ebpf);
                Incoming::attach(&mut ebpf, &options.incoming, &pins, loaded.mark)?
            };
            if !options.taken.is_empty() {
                let mut ebpf = lock(&loaded.ebpf);
                let (with, number) = ((&pins, loaded.mark), loaded.incoming.own_number());
                let taken = loaded.gateway.take(&mut ebpf, with, number, &options.taken);
                loaded.incoming_listeners.extend(taken?);
            }
            let hooks = hooks::attach(&mut lock(&loaded.ebpf), &cgroup, &pins)?;
            (loaded.links, loaded.name_hooks) = (hooks.pinned, hooks.names);
            if let Ok((splices, _)) = &loaded.splices {
                splices.keep_hooks(hooks.descriptors);
            }
            hooks::load_connect(&mut lock(&loaded.ebpf))?;
            if !is_beside {
                let connect = hooks::attach_connect(&mut lock(&loaded.ebpf), &cgroup, &pins);
                loaded.connect_links = connect?;
            }
            Ok(loaded)
        });
        let attached = attached.and_then(|loaded| match is_beside {
            true => Ok((loaded, None)),
            false => Ok((loaded, pins.retire_predecessors()?)),
        });
        let (loaded, retired) = match attached {
            Ok(done) => done,
            Err(error) => {
                // The agent that runs needs the same.
                if !is_beside {
                    incoming::remove_routes(&options.incoming);
                }
                if !is_beside && !options.taken.is_empty() {
                    gateway::remove_routes();
                }
                pins.release()?;
                return Err(error);
            }
        };
        if let Some(touched) = retired {
            tracing::info!("took over from an agent that had died");
            incoming::remove_unwanted_routes(&options.incoming, &touched);
            gateway::keep_routes(&options.taken);
        }
        let served = before.map(|before| before.serve(&loaded.netns_agents));
        let dataplane = Self {
            cgroup: options.cgroup.clone(),
            tables: loaded.tables,
            meters: loaded.meters,
            meter_hooks: loaded.meter_hooks,
            limit_hooks: loaded.limit_hooks,
            tap: loaded.tap,
            tap_ring_bytes: options.tap_ring_bytes,
            adopter: loaded.adopter,
            shortcut: loaded.shortcut,
            incoming: loaded.incoming,
            gateway: loaded.gateway,
            mark: loaded.mark,
            remembered: loaded.remembered.clone(),
            causes: loaded.causes,
            names: loaded.names,
            pins,
            is_beside,
            connect_links: loaded.connect_links,
            _links: loaded.links,
            _name_hooks: loaded.name_hooks,
            ebpf: loaded.ebpf,
        };
        Ok(Attached {
            dataplane,
            listeners: loaded.listeners,
            holds: loaded.holds,
            netns_agents: loaded.netns_agents,
            serve_requests: loaded.serve_requests,
            denials: loaded.denials,
            answers: loaded.answers,
            incoming_listeners: loaded.incoming_listeners,
            remembered: loaded.remembered,
            splices: loaded.splices,
            probe: loaded.probe,
            severed: loaded.severed,
            served: served.unwrap_or_default(),
        })
    }

    /// Puts a policy into force. Connections that are under way finish under the old one.
    ///
    /// # Errors
    /// The old policy is still in force then.
    pub fn install(&mut self, policy: &Policy) -> Result<(), AttachError> {
        let compiled = compile_here(policy)?;
        // Flows learn their rule's name while the kernel's numbers still mean it.
        self.observations(|_, _| {})?;
        self.shortcuts()?;
        if policy.taps() {
            self.tap.open(self.tap_ring_bytes, self.meters.rules());
        }
        if policy.observes() {
            let cgroup = open(&self.cgroup)?;
            self.meter_hooks.open(&mut lock(&self.ebpf), &cgroup);
            let is_unmetered = !self.meter_hooks.are_attached();
            self.tables.set_unmetered(is_unmetered)?;
        }
        self.limit_hooks.open(
            policy,
            &mut lock(&self.ebpf),
            &open(&self.cgroup)?,
            &self.pins,
        )?;
        if policy.shortcuts() {
            self.shortcut.open(&self.ebpf, &open(&self.cgroup)?);
        }
        self.forget_remembered()?;
        *rule_names::lock(&self.names) = self.tables.names_with(&compiled);
        self.tables.install(&compiled)?;
        if !policy.shortcuts() {
            self.shortcut.leave_off();
        }
        self.meters.forget_rules(&RuleName::new(GONE));
        if !policy.observes() {
            self.meter_hooks.detach(&mut lock(&self.ebpf))?;
        }
        Ok(())
    }

    /// The running connections that are the agent's to read, for somebody who looks for them without the data plane.
    pub fn scope(&self) -> Scope {
        Scope {
            cgroup: self.cgroup.clone(),
            generation: self.tables.generation(),
            forgets: self.tables.forgets(),
            incoming: self.incoming.inodes(),
        }
    }

    /// Has running connections read that were found by the policy that is in force. Those that are read already stay as they
    /// are.
    ///
    /// # Errors
    /// The kernel does not take the program. Nothing has happened to any connection.
    pub fn adopt_surveyed(&mut self, mut survey: Survey) -> Result<Adopted, AttachError> {
        if !self.meter_hooks.are_attached() {
            // Said and counted where they could not be attached.
            survey.wanted.clear();
        }
        self.adopter.adopt(&mut lock(&self.ebpf), survey)
    }

    /// Reads what is observed: shows `each` the live flows, one by one, and returns by rule what
    /// went over them and over those that have ended. To be called now and then while
    /// [`Self::is_observing`]: flows that have ended leave the kernel's table by it.
    pub fn observations(
        &mut self,
        each: impl FnMut(Untouched, &Traffic),
    ) -> Result<BTreeMap<RuleName, Traffic>, AttachError> {
        let read = self.meters.read(each);
        read.map_err(|e| AttachError::Maps(MapsError::Layout("meters", e)))
    }

    /// Reads the connections of rules with a holdout, by rule and group.
    ///
    /// # Errors
    /// The kernel's table cannot be read.
    pub fn compared(&mut self) -> Result<BTreeMap<RuleName, Groups>, AttachError> {
        let read = self.meters.compared();
        read.map_err(|e| AttachError::Maps(MapsError::Layout("meters", e)))
    }

    /// The reader of copies, once a policy taps; once. Its failure is told in the log.
    pub fn tap_reader(&mut self) -> Option<TapReader> {
        if let Some(why) = self.tap.failure() {
            tracing::warn!("flows cannot be tapped: {why}");
        }
        self.tap.reader()
    }

    /// Takes a reader back that could not be started: it is there for the next who asks.
    pub fn give_back(&mut self, reader: TapReader) {
        self.tap.give_back(reader);
    }

    /// Whether a rule observes, or a flow that was observed may still be there.
    pub fn is_observing(&self) -> bool {
        self.meter_hooks.are_attached() || !self.meters.is_empty()
    }

    /// Keeps flows on the shortcut. To be called every second.
    pub fn tend_shortcuts(&mut self) -> Result<(), AttachError> {
        self.shortcut.tend(&mut lock(&self.ebpf))
    }

    /// Keeps in the know of the databases that clients on other hosts connect to, and in reach of
    /// them. To be called every second.
    pub fn tend_incoming(&mut self) -> Result<(), AttachError> {
        self.incoming.tend(&mut lock(&self.ebpf))?;
        self.gateway.tend()
    }

    /// Whether [`Self::tend_incoming`] has anything to look after.
    pub fn has_incoming(&self) -> bool {
        self.incoming.has_steered() || self.gateway.has_addresses()
    }

    /// From now on the agent takes connections from other hosts to these virtual addresses, which
    /// become this host's, and to no others. Returns listeners that were opened for them. Within a
    /// runtime.
    pub fn take_addresses(
        &mut self,
        addresses: &BTreeSet<SocketAddr>,
    ) -> Result<Vec<IncomingListener>, AttachError> {
        let with = (&self.pins, self.mark);
        let number = self.incoming.own_number();
        self.gateway
            .take(&mut lock(&self.ebpf), with, number, addresses)
    }

    /// Gives readers that may have missed bytes another edge. Returns whether to look again.
    pub fn nudge_readers(&mut self) -> Result<bool, AttachError> {
        self.shortcut.nudge(&mut lock(&self.ebpf))
    }

    /// When to begin to nudge; None when they were taken already. Within a runtime.
    pub fn spills(&mut self) -> io::Result<Option<shortcut::Spills>> {
        self.shortcut.spills()
    }

    /// Has sockets leave the shortcut whose readers do not read on. Returns the pause until this is to be called
    /// again.
    pub fn look_after_readers(&mut self) -> Result<Duration, AttachError> {
        self.shortcut.look_after_readers()
    }

    /// The way to shorten the legs of flows that the agent reads.
    pub fn legs(&self) -> Legs {
        self.shortcut.legs().clone()
    }

    /// Descriptors with which another process can look over the shortcut's sockets
    /// ([`ShortcutReaders::adopt`](shortcut::ShortcutReaders::adopt)). None before a policy has asked for the
    /// shortcut, and where the host cannot have it.
    pub fn shortcut_descriptors(&self) -> Option<io::Result<Vec<OwnedFd>>> {
        self.shortcut.readers().map(ShortcutReaders::descriptors)
    }

    /// Counts of messages and flows on the shortcut.
    pub fn shortcut_counts(&self) -> Result<ShortcutCounts, AttachError> {
        self.shortcut.counts()
    }

    /// The flows that take the shortcut, or would.
    pub fn shortcuts(&mut self) -> Result<Vec<OnShortcut>, AttachError> {
        self.shortcut.flows(&self.names)
    }

    /// Results of probing the paths that rules ask for, since the last call.
    pub fn tried(&mut self) -> Vec<ProbeResult> {
        let told = [self.meter_hooks.tell(), self.shortcut.tell()];
        told.into_iter().flatten().collect()
    }

    /// Whether flows can take the shortcut.
    pub fn has_shortcut(&self) -> bool {
        self.shortcut.is_open()
    }

    /// From here on nobody is remembered: every process comes to the agent again.
    pub fn forget_remembered(&mut self) -> Result<(), AttachError> {
        let forgets = self.tables.forget()?;
        let forgotten = self.remembered.forget(forgets);
        forgotten.map_err(|e| AttachError::Maps(MapsError::Layout("remembered", e)))
    }

    /// The remembered decisions.
    pub fn remembered(&self) -> &Arc<Remembered> {
        &self.remembered
    }

    /// Whether further flows are to follow their rule's `fail`.
    pub fn set_full(&mut self, full: bool) -> Result<(), InstallError> {
        self.tables.set_full(full)
    }

    /// Whether further flows that count for this quota are to follow their rule's `fail`.
    pub fn set_quota_full(&mut self, quota: Quota, full: bool) -> Result<(), InstallError> {
        self.tables.set_quota_full(quota, full)
    }

    /// The share of new connections that each backend gets, in this policy and in later ones. At
    /// first all have the same.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), InstallError> {
        self.tables.set_weights(weights)
    }

    /// Connections that the kernel has sent straight to backends.
    pub fn backend_counts(&self) -> Result<Vec<BackendCount>, InstallError> {
        self.tables.backend_counts()
    }

    /// Reads the counters.
    pub fn counters(&self) -> Result<Counters, AttachError> {
        let by_cause = Cause::ALL
            .into_iter()
            .map(|cause| {
                let per_cpu = self
                    .causes
                    .get(&(cause as u32), 0)
                    .map_err(|e| AttachError::Maps(MapsError::Layout("causes", e)))?;
                Ok((cause, per_cpu.iter().sum()))
            })
            .collect::<Result<_, AttachError>>()?;
        Ok(Counters {
            by_rule: self.tables.rule_counts()?,
            by_cause,
        })
    }

    /// The cgroup whose processes are seen.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Detaches every hook: from now on nobody is intercepted, whatever a rule's `fail`.
    pub fn detach(mut self) -> Result<(), AttachError> {
        self.shortcut.close()?;
        let is_shared = self.is_beside || self.pins.are_handed_over();
        let released = self.pins.release();
        if is_shared {
            return Ok(released?);
        }
        self.incoming.close();
        self.gateway.close();
        Ok(released?)
    }
}

fn open(cgroup: &Path) -> Result<File, AttachError> {
    File::open(cgroup).map_err(|source| AttachError::Cgroup {
        path: cgroup.to_owned(),
        source,
    })
}
