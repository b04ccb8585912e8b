//! Loads the programs, attaches them, and holds what they need for as long as the agent
//! lives.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use aya::{
    Ebpf, EbpfError,
    maps::{MapData, PerCpuArray},
    programs::{
        Program, ProgramError, SocketFilter,
        links::{FdLink, PinnedLink},
    },
};
use ebpf::abi;
use thiserror::Error;

use crate::{
    address,
    answers::Answers,
    compile::{CompileError, Compiled, compile},
    counters::{Cause, Counters},
    holds::{Holds, Names},
    hooks, host,
    listeners::{Listeners, Mark},
    load,
    maps::{Maps, MapsError},
    meter_hooks::MeterHooks,
    meters::{Meters, Observed, Traffic},
    pins::{Pins, PinsError},
    policy::{Policy, RuleName},
    remembered::Remembered,
    shortcut::{self, Shortcut, ShortcutCounts},
    splices::{Calls, Splices},
    sys,
    tables::{GONE, InstallError, Tables},
};

/// Where to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cgroup v2 folder whose processes are seen.
    pub cgroup: PathBuf,
    /// Where links are pinned: see [`crate::DEFAULT_PINS`].
    pub pins: PathBuf,
}

/// Why the data plane is not there.
#[derive(Debug, Error)]
pub enum AttachError {
    /// See [`CompileError`].
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// See [`InstallError`].
    #[error(transparent)]
    Install(#[from] InstallError),
    /// See [`PinsError`].
    #[error(transparent)]
    Pins(#[from] PinsError),
    /// See [`MapsError`].
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The object or a program was refused.
    #[error(
        "the kernel does not load the BPF programs: {0}; `underpass doctor` says what is missing"
    )]
    Load(#[from] EbpfError),
    /// A program.
    #[error(
        "the kernel does not take BPF program `{name}`: {reason}; `underpass doctor` says what is missing"
    )]
    Program {
        /// Which.
        name: &'static str,
        /// Why.
        reason: String,
    },
    /// The cgroup.
    #[error("cannot open cgroup {path}: {source}")]
    Cgroup {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is some other folder.
    #[error("{0} is not a cgroup v2 folder; `underpass doctor` says where cgroup2 is mounted")]
    NotCgroup(PathBuf),
    /// Listeners and raw sockets.
    #[error("cannot open the agent's sockets: {0}")]
    Sockets(io::Error),
}

/// The attached programs. Dropped, they stay as the crash of the agent would leave them;
/// [`Dataplane::detach`] takes them away.
pub struct Dataplane {
    cgroup: PathBuf,
    tables: Tables,
    meters: Meters,
    meter_hooks: MeterHooks,
    shortcut: Shortcut,
    remembered: Arc<Remembered>,
    causes: PerCpuArray<MapData, u64>,
    names: Names,
    pins: Pins,
    _links: Vec<PinnedLink>,
    _name_hooks: Vec<FdLink>,
    ebpf: Arc<Mutex<Ebpf>>,
}

/// All that there is once the programs are attached.
pub struct Attached {
    /// The programs.
    pub dataplane: Dataplane,
    /// Where intercepted connections arrive.
    pub listeners: Listeners,
    /// Their SYNs.
    pub holds: Holds,
    /// The way to answer those.
    pub answers: Answers,
    /// The way to have decisions stand.
    pub remembered: Arc<Remembered>,
    /// The splice, or why this kernel does not have it.
    pub splices: Result<(Splices, Calls), String>,
}

fn lock(ebpf: &Mutex<Ebpf>) -> MutexGuard<'_, Ebpf> {
    ebpf.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dataplane {
    /// Loads, puts `policy` into force and attaches. Must run within a tokio runtime.
    ///
    /// # Errors
    /// Nothing is attached then, and what was there before still is.
    pub fn attach(options: &Options, policy: &Policy) -> Result<Attached, AttachError> {
        if !host::is_cgroup2(&options.cgroup) {
            return Err(AttachError::NotCgroup(options.cgroup.clone()));
        }
        let cgroup = open(&options.cgroup)?;
        let mut pins = Pins::claim(&options.pins)?;
        let attached = load(policy).and_then(|mut loaded| {
            if policy.observes() {
                let mut ebpf = lock(&loaded.ebpf);
                loaded.meter_hooks.attach(&mut ebpf, &cgroup)?;
            }
            if policy.shortcuts() {
                loaded.shortcut.open(&loaded.ebpf, &cgroup);
            }
            let hooks = hooks::attach(&mut lock(&loaded.ebpf), &cgroup, &pins)?;
            (loaded.links, loaded.name_hooks) = (hooks.connect, hooks.names);
            if let Ok((splices, _)) = &loaded.splices {
                splices.keep_hooks(hooks.descriptors);
            }
            Ok(loaded)
        });
        let loaded = match attached {
            Ok(loaded) => loaded,
            Err(error) => {
                pins.release()?;
                return Err(error);
            }
        };
        match pins.retire_predecessors() {
            Ok(false) => {}
            Ok(true) => tracing::info!("took over from an agent that had died"),
            Err(error) => {
                pins.release()?;
                return Err(error.into());
            }
        }
        sys::trim_memory();
        let dataplane = Self {
            cgroup: options.cgroup.clone(),
            tables: loaded.tables,
            meters: loaded.meters,
            meter_hooks: loaded.meter_hooks,
            shortcut: loaded.shortcut,
            remembered: loaded.remembered.clone(),
            causes: loaded.causes,
            names: loaded.names,
            pins,
            _links: loaded.links,
            _name_hooks: loaded.name_hooks,
            ebpf: loaded.ebpf,
        };
        Ok(Attached {
            dataplane,
            listeners: loaded.listeners,
            holds: loaded.holds,
            answers: loaded.answers,
            remembered: loaded.remembered,
            splices: loaded.splices,
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
        if policy.observes() {
            self.meter_hooks
                .attach(&mut lock(&self.ebpf), &open(&self.cgroup)?)?;
        }
        if policy.shortcuts() {
            self.shortcut.open(&self.ebpf, &open(&self.cgroup)?);
        }
        self.forget_remembered()?;
        self.tables.install(&compiled)?;
        if !policy.shortcuts() {
            self.shortcut.leave_off();
        }
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = self.tables.names();
        self.meters.forget_rules(&RuleName::new(GONE));
        if !policy.observes() {
            self.meter_hooks.detach(&mut lock(&self.ebpf))?;
        }
        Ok(())
    }

    /// Reads what is observed: shows `each` the live flows, one by one, and returns by rule what
    /// went over them and over those that have ended. To be called now and then while
    /// [`Self::is_observing`]: flows that have ended leave the kernel's table by it.
    pub fn observations(
        &mut self,
        each: impl FnMut(Observed, &Traffic),
    ) -> Result<BTreeMap<RuleName, Traffic>, AttachError> {
        let read = self.meters.read(each);
        read.map_err(|e| AttachError::Maps(MapsError::Layout("meters", e)))
    }

    /// Whether a rule observes, or a flow that was observed may still be there.
    pub fn is_observing(&self) -> bool {
        self.meter_hooks.are_attached() || !self.meters.is_empty()
    }

    /// Keeps flows on the shortcut. To be called every second.
    pub fn tend_shortcuts(&mut self) -> Result<(), AttachError> {
        self.shortcut.tend(&mut lock(&self.ebpf))
    }

    /// Gives readers that may have missed bytes another edge. Returns whether to look again.
    pub fn nudge_readers(&mut self) -> Result<bool, AttachError> {
        self.shortcut.nudge(&mut lock(&self.ebpf))
    }

    /// When to begin to nudge; None when they were taken already. Within a runtime.
    pub fn spills(&mut self) -> io::Result<Option<shortcut::Spills>> {
        self.shortcut.spills()
    }

    /// What went over the shortcut.
    pub fn shortcut_counts(&self) -> Result<ShortcutCounts, AttachError> {
        self.shortcut.counts()
    }

    /// What came of trying the shortcut out, since this was last asked.
    pub fn tried_shortcut(&mut self) -> Option<Result<(), String>> {
        self.shortcut.tell()
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

    /// What is remembered.
    pub fn remembered(&self) -> &Arc<Remembered> {
        &self.remembered
    }

    /// Whether further flows are to follow their rule's `fail`.
    pub fn set_full(&mut self, full: bool) -> Result<(), InstallError> {
        self.tables.set_full(full)
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
        Ok(self.pins.release()?)
    }
}

struct Loaded {
    ebpf: Arc<Mutex<Ebpf>>,
    splices: Result<(Splices, Calls), String>,
    tables: Tables,
    meters: Meters,
    meter_hooks: MeterHooks,
    shortcut: Shortcut,
    remembered: Arc<Remembered>,
    causes: PerCpuArray<MapData, u64>,
    names: Names,
    links: Vec<PinnedLink>,
    name_hooks: Vec<FdLink>,
    listeners: Listeners,
    holds: Holds,
    answers: Answers,
}

fn load(policy: &Policy) -> Result<Loaded, AttachError> {
    let compiled = compile_here(policy)?;
    let mut ebpf = load::load()?;
    let maps = Maps::take(&mut ebpf)?;
    let mark = Mark::random().map_err(AttachError::Sockets)?;
    let shortcut = Shortcut::take(&mut ebpf, Some(mark))?;
    let listeners = open_listeners(&mut ebpf, mark)?;
    let settings = settings(&listeners, mark).map_err(AttachError::Sockets)?;
    let mut tables = Tables::new(maps.policy, settings);
    tables.install(&compiled)?;
    let names = Arc::new(Mutex::new(tables.names()));
    let holds = Holds::new(maps.held, names.clone(), mark).map_err(AttachError::Sockets)?;
    let answers = Answers::new(maps.flow, mark).map_err(AttachError::Sockets)?;
    let causes = maps.causes;
    let remembered = Arc::new(Remembered::new(maps.remembered));
    let meters = Meters::new(maps.meters, names.clone());
    let splices = Splices::load(&mut ebpf, maps.splice, Some(mark)).map_err(|e| e.to_string());
    let ebpf = Arc::new(Mutex::new(ebpf));
    Ok(Loaded {
        ebpf,
        splices,
        tables,
        meters,
        meter_hooks: MeterHooks::default(),
        shortcut,
        remembered,
        causes,
        names,
        links: Vec::new(),
        name_hooks: Vec::new(),
        listeners,
        holds,
        answers,
    })
}

/// Rules name cgroups by their path from the mount's root, wherever the hooks are attached.
fn compile_here(policy: &Policy) -> Result<Compiled, CompileError> {
    let root = host::cgroup2_root().ok().flatten();
    compile(policy, |path| host::cgroup_id(root.as_deref()?, path))
}

fn open(cgroup: &Path) -> Result<File, AttachError> {
    File::open(cgroup).map_err(|source| AttachError::Cgroup {
        path: cgroup.to_owned(),
        source,
    })
}

fn open_listeners(ebpf: &mut Ebpf, mark: Mark) -> Result<Listeners, AttachError> {
    let name = "hold_syn";
    let filter: &mut SocketFilter = program(ebpf, name)?;
    filter.load().map_err(refused(name))?;
    Listeners::open(filter, mark).map_err(AttachError::Sockets)
}

fn settings(listeners: &Listeners, mark: Mark) -> io::Result<abi::Settings> {
    let none = abi::Endpoint {
        addr: [0; 16],
        port_be: 0,
        family: 0,
        pad: 0,
    };
    let (v4, v6) = listeners.addresses()?;
    Ok(abi::Settings {
        netns_cookie: host::netns_cookie()?,
        listener4: address::to_abi(v4),
        listener6: v6.map_or(none, address::to_abi),
        mark: mark.0,
        // The first policy to be installed becomes generation 0.
        generation: 1,
        full: 0,
        forgets: 0,
    })
}

pub(crate) fn program<'a, P>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut P, AttachError>
where
    &'a mut P: TryFrom<&'a mut Program>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| missing(name))?;
    program.try_into().map_err(|_| missing(name))
}

pub(crate) fn missing(name: &'static str) -> AttachError {
    AttachError::Program {
        name,
        reason: "the object does not have it".into(),
    }
}

pub(crate) fn refused(name: &'static str) -> impl Fn(ProgramError) -> AttachError {
    move |e| AttachError::Program {
        name,
        reason: reasons(&e),
    }
}

/// The error and its causes on one line; the verifier's log, if there is one, in the log.
pub(crate) fn reasons(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(ProgramError::LoadError {
        io_error,
        verifier_log,
    }) = error.downcast_ref()
    {
        tracing::error!(%verifier_log, "refused by the verifier");
        return io_error.to_string();
    }
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}
