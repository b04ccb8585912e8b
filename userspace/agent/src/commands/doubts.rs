//! Reasons for which `run` would not start with a file, or rules not hold, on this very host.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::Path,
};

use dataplane::{edge, host};

use crate::config::{Config, absent_cgroups};

/// The findings on this host.
#[derive(Default)]
pub(super) struct Findings {
    /// Why `run` does not start.
    pub(super) errors: Vec<String>,
    /// Why rules may not hold.
    pub(super) doubts: Vec<String>,
}

/// Finds them all. Nothing is made, opened for others or changed.
pub(super) fn of_this_host(config: &Config) -> anyhow::Result<Findings> {
    let Some(root) = host::cgroup2_root()? else {
        return Ok(Findings {
            errors: vec![host::no_cgroup2()?.into()],
            doubts: Vec::new(),
        });
    };
    let exists = |path: &Path| host::cgroup_id(&root, path).is_some();
    let cgroup = config.cgroup.iter().filter(|path| !host::is_cgroup2(path));
    let errors = cgroup
        .map(|path| format!("agent.cgroup: {} is no cgroup v2 folder", path.display()))
        .chain(of_folders(config))
        .chain(of_pins(&config.pins))
        .chain(of_sockets(config))
        .chain(config.admin.and_then(|at| of_admin(at, &config.control)))
        .chain(of_networks(config))
        .chain(of_journals(config));
    Ok(Findings {
        errors: errors.collect(),
        doubts: absent_cgroups(&config.policy.rules, exists),
    })
}

/// A folder for pins that is not in a BPF file system.
fn of_pins(pins: &Path) -> Option<String> {
    let there = pins.ancestors().find(|folder| folder.exists())?;
    // Where none is mounted there, `run` mounts one.
    let is_there = host::is_bpffs(there) || pins.starts_with(host::BPFFS);
    (!is_there).then(|| {
        let pins = pins.display();
        format!(
            "agent.pins: {pins} is in no BPF file system: choose a folder beneath {}",
            host::BPFFS
        )
    })
}

/// Journals that cannot be written, each once.
fn of_journals(config: &Config) -> BTreeSet<String> {
    let journals = config.pipelines.journals();
    let errors = journals.filter_map(|journal| journal.may_open().err());
    errors
        .map(|error| format!("a journal cannot be written: {error}"))
        .collect()
}

/// Folders that others can change. What is not there is made by `run`.
fn of_folders(config: &Config) -> Vec<String> {
    let places = [
        ("control", &config.control),
        ("admin_socket", &config.admin_socket),
        ("pins", &config.pins),
    ];
    let mut doubts = Vec::new();
    for (key, path) in places {
        let there = path.ancestors().skip(1).find(|folder| folder.exists());
        if let Some(Err(error)) = there.map(trusted::folder) {
            doubts.push(format!("agent.{key}: its folder is refused: {error}"));
        }
    }
    doubts
}

/// Paths of sockets at which something else is.
fn of_sockets(config: &Config) -> Vec<String> {
    let places = [
        ("control", &config.control),
        ("admin_socket", &config.admin_socket),
    ];
    let is_other = |path: &Path| {
        let found = path.symlink_metadata();
        found.is_ok_and(|file| !file.file_type().is_socket())
    };
    let others = places.into_iter().filter(|(_, path)| is_other(path));
    others
        .map(|(key, path)| {
            let path = path.display();
            format!("agent.{key}: {path} is no socket")
        })
        .collect()
}

/// An address for the admin interface that cannot be had. If an agent runs, it is probably that which has it.
fn of_admin(at: SocketAddr, control: &Path) -> Option<String> {
    let error = TcpListener::bind(at).err()?;
    // Only root may ask whether it is an agent's.
    let runs = || match UnixStream::connect(control) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    };
    let why = match error.kind() {
        ErrorKind::AddrInUse if runs() => return None,
        ErrorKind::AddrInUse => "somebody listens there".to_owned(),
        ErrorKind::AddrNotAvailable => "this host has no such address".to_owned(),
        ErrorKind::PermissionDenied => return None,
        _ => error.to_string(),
    };
    Some(format!("agent.admin: {at}: {why}"))
}

/// Interfaces and network namespaces that are not there.
fn of_networks(config: &Config) -> Vec<String> {
    let interfaces = config.xdp.iter().filter_map(|interface| {
        let name = &interface.name;
        let is_absent = edge::is_absent(name);
        is_absent.then(|| format!("xdp.interface: there is no {name}"))
    });
    let namespaces = config.incoming.iter().filter_map(|incoming| {
        let path = incoming.netns.as_deref()?;
        let is_absent = !path.exists();
        is_absent.then(|| {
            let path = path.display();
            format!("incoming.netns: there is no {path}")
        })
    });
    interfaces.chain(namespaces).collect()
}
