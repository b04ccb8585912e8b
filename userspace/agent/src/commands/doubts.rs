//! Reasons for which `run` would not start with a file, or rules not hold, on this very host.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::Path,
};

use dataplane::{edge, host};

use crate::config::{Config, absent_cgroups};

/// Finds them all. Nothing is made, opened for others or changed.
pub(super) fn of_this_host(config: &Config) -> anyhow::Result<Vec<String>> {
    let Some(root) = host::cgroup2_root()? else {
        return Ok(vec!["no cgroup2 is mounted here: `run` needs one".into()]);
    };
    let exists = |path: &Path| host::cgroup_id(&root, path).is_some();
    let mut doubts = absent_cgroups(&config.policy.rules, exists);
    if let Some(cgroup) = &config.cgroup
        && !host::is_cgroup2(cgroup)
    {
        doubts.push(format!(
            "agent.cgroup: {} is not a cgroup v2 folder: `run` does not start",
            cgroup.display()
        ));
    }
    doubts.extend(of_folders(config));
    doubts.extend(of_sockets(config));
    doubts.extend(config.admin.and_then(|at| of_admin(at, &config.control)));
    doubts.extend(of_networks(config));
    for journal in config.pipelines.journals() {
        if let Err(error) = trusted::may_append(&journal) {
            doubts.push(format!("a journal cannot be written: {error}"));
        }
    }
    Ok(doubts)
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
            doubts.push(format!("agent.{key}: `run` refuses its folder: {error}"));
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
            format!("agent.{key}: {path} is no socket: `run` does not start")
        })
        .collect()
}

/// An address for the admin interface that cannot be had. If an agent runs, it is probably that which has it.
fn of_admin(at: SocketAddr, control: &Path) -> Option<String> {
    let error = TcpListener::bind(at).err()?;
    let runs = || UnixStream::connect(control).is_ok();
    let why = match error.kind() {
        ErrorKind::AddrInUse if runs() => return None,
        ErrorKind::AddrInUse => "somebody listens there".to_owned(),
        ErrorKind::AddrNotAvailable => "this host has no such address".to_owned(),
        ErrorKind::PermissionDenied => return None,
        _ => error.to_string(),
    };
    Some(format!("agent.admin: {at}: {why}: `run` does not start"))
}

/// Interfaces and network namespaces that are not there.
fn of_networks(config: &Config) -> Vec<String> {
    let interfaces = config.xdp.iter().filter_map(|interface| {
        let name = &interface.name;
        let is_absent = edge::is_absent(name);
        is_absent.then(|| format!("xdp.interface: there is no {name}: `run` does not start"))
    });
    let namespaces = config.incoming.iter().filter_map(|incoming| {
        let path = incoming.netns.as_deref()?;
        let is_absent = !path.exists();
        is_absent.then(|| {
            let path = path.display();
            format!("incoming.netns: there is no {path}: `run` does not start")
        })
    });
    interfaces.chain(namespaces).collect()
}
