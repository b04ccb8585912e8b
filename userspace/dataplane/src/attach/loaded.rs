//! Programs and maps in the kernel, and what the agent needs of them, before anything is attached.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex},
};

use aya::{
    Ebpf,
    maps::{MapData, PerCpuArray},
    programs::{
        SocketFilter,
        links::{FdLink, PinnedLink},
    },
};
use ebpf::abi;

use super::{AttachError, program, refused};
use crate::{
    answers::Answers,
    backends::{self, BackendTables, Probe, Severed},
    before::Before,
    compile::{CompileError, Compiled, compile},
    denials::KernelDenials,
    gateway::Gateway,
    holds::Holds,
    host,
    incoming::{Incoming, IncomingListener},
    limit_hooks::LimitHooks,
    listeners::{HoldFilter, Listeners, Mark, Opened},
    load,
    maps::Maps,
    meter_hooks::MeterHooks,
    meters::Meters,
    netns_agents::{NetnsAgents, ServeRequests},
    pins::Pins,
    quota::FullQuotas,
    remembered::Remembered,
    rule_names::{FlowRules, Names},
    running::Adopter,
    shortcut::Shortcut,
    splice::{Calls, Splicer},
    tables::Tables,
    tap::Tap,
};
use policy::Policy;

/// All that is in the kernel, and attached to nothing.
pub(super) struct Loaded {
    pub ebpf: Arc<Mutex<Ebpf>>,
    pub splices: Result<(Splicer, Calls), String>,
    pub tables: Tables,
    pub meters: Meters,
    pub meter_hooks: MeterHooks,
    pub limit_hooks: LimitHooks,
    pub tap: Tap,
    pub adopter: Adopter,
    pub shortcut: Shortcut,
    pub incoming: Incoming,
    pub gateway: Gateway,
    pub incoming_listeners: Vec<IncomingListener>,
    pub mark: Mark,
    pub remembered: Arc<Remembered>,
    pub causes: PerCpuArray<MapData, u64>,
    pub names: Names,
    pub links: Vec<PinnedLink>,
    pub connect_links: Vec<PinnedLink>,
    pub name_hooks: Vec<FdLink>,
    pub listeners: Listeners,
    pub holds: Holds,
    pub netns_agents: Arc<NetnsAgents>,
    pub serve_requests: ServeRequests,
    pub denials: KernelDenials,
    pub answers: Answers,
    pub probe: Probe,
    pub severed: Severed,
}

pub(super) fn load(
    policy: &Policy,
    max_namespaces: usize,
    pins: &Pins,
    cgroup: &File,
    before: Option<&Before>,
) -> Result<Loaded, AttachError> {
    let compiled = compile_here(policy)?;
    let mut ebpf = load::load_after(pins)?;
    let tap = Tap::take(&mut ebpf)?;
    let adopter = Adopter::take(&mut ebpf)?;
    let maps = Maps::take(&mut ebpf)?;
    let mark = match before {
        // Both agents' dials pass both agents' hooks.
        Some(before) => Mark(before.mark),
        None => Mark::random().map_err(AttachError::Sockets)?,
    };
    let shortcut = Shortcut::take(&mut ebpf, Some(mark))?;
    let filter = hold_filter(&mut ebpf)?;
    let opened = Opened::open(&filter, Some(mark)).map_err(AttachError::Sockets)?;
    if let Some(error) = opened.lacks_v6() {
        tracing::warn!(%error, "no IPv6 loopback: IPv6 flows follow their rule's `fail`");
    }
    let mut settings = settings(mark, max_namespaces > 0, cgroup).map_err(AttachError::Sockets)?;
    settings.before_tgid = before.map_or(0, |before| before.pid);
    let own = opened.to_abi().map_err(AttachError::Sockets)?;
    let netns_agents = NetnsAgents::new(filter, maps.netns_agents, own, max_namespaces);
    let netns_agents = Arc::new(netns_agents.map_err(AttachError::Sockets)?);
    let listeners = Listeners::of(opened, settings.netns_cookie).map_err(AttachError::Sockets)?;
    let serve_requests = ServeRequests::new(maps.unserved).map_err(AttachError::Sockets)?;
    let mut tables = Tables::new(
        maps.policy,
        BackendTables::new(maps.backends),
        FullQuotas::new(maps.full_quotas),
        settings,
    );
    tables.install(&compiled)?;
    let names = Arc::new(Mutex::new(tables.names()));
    let holds = Holds::new(maps.held, netns_agents.clone(), names.clone(), mark);
    let holds = holds.map_err(AttachError::Sockets)?;
    let denials = KernelDenials::new(maps.denials, names.clone()).map_err(AttachError::Sockets)?;
    let answers = Answers::new(maps.flow, mark).map_err(AttachError::Sockets)?;
    let causes = maps.causes;
    let remembered = Arc::new(Remembered::new(maps.remembered));
    let meters = Meters::new(maps.meters, FlowRules::new(names.clone()), tap.shares());
    let splices = Splicer::load(&mut ebpf, maps.splice, Some(mark)).map_err(|e| e.to_string());
    let severed = Severed::new(backends::virtuals(&ebpf).map_err(AttachError::Sockets)?);
    let ebpf = Arc::new(Mutex::new(ebpf));
    Ok(Loaded {
        ebpf,
        splices,
        tables,
        meters,
        meter_hooks: MeterHooks::default(),
        limit_hooks: LimitHooks::default(),
        tap,
        adopter,
        shortcut,
        incoming: Incoming::default(),
        gateway: Gateway::default(),
        incoming_listeners: Vec::new(),
        mark,
        remembered,
        causes,
        names,
        links: Vec::new(),
        connect_links: Vec::new(),
        name_hooks: Vec::new(),
        listeners,
        holds,
        netns_agents,
        serve_requests,
        denials,
        answers,
        probe: Probe::new(mark),
        severed,
    })
}

/// Rules name cgroups by their path from the mount's root, wherever the hooks are attached.
pub(super) fn compile_here(policy: &Policy) -> Result<Compiled, CompileError> {
    let root = host::cgroup2_root().ok().flatten();
    compile(policy, |path| host::cgroup_id(root.as_deref()?, path))
}

fn hold_filter(ebpf: &mut Ebpf) -> Result<HoldFilter, AttachError> {
    let name = "hold_syn";
    let filter: &mut SocketFilter = program(ebpf, name)?;
    load::retry_load(|| filter.load()).map_err(refused(name))?;
    HoldFilter::of(filter).map_err(AttachError::Sockets)
}

fn settings(mark: Mark, serves_others: bool, cgroup: &File) -> io::Result<abi::AgentSettings> {
    Ok(abi::AgentSettings {
        netns_cookie: host::netns_cookie()?,
        mark: mark.0,
        // The first policy to be installed becomes generation 0.
        generation: 1,
        full: 0,
        forgets: 0,
        cgroup_id: cgroup.metadata()?.ino(),
        tgid: if serves_others { std::process::id() } else { 0 },
        unmetered: 0,
        full_quotas: 0,
        before_tgid: 0,
    })
}
