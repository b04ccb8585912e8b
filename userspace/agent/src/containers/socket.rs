//! The sockets of container runtimes, and the protocols that are spoken there.

use std::path::PathBuf;

/// The protocol of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// Docker Engine's API, which Podman speaks, too.
    Docker,
    /// Kubernetes' Container Runtime Interface: containerd, CRI-O.
    Cri,
}

impl Speaks {
    /// Returns the name in the policy file and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Cri => "cri",
        }
    }
}

/// A runtime's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The protocol that is spoken there.
    pub speaks: Speaks,
    /// The socket's path.
    pub path: PathBuf,
}

/// Returns the runtimes' usual sockets, unless the file names others: those that are not there are
/// not asked.
pub fn default_sockets() -> Vec<Socket> {
    let at = |speaks, path: &str| Socket {
        speaks,
        path: path.into(),
    };
    vec![
        at(Speaks::Docker, "/run/docker.sock"),
        at(Speaks::Cri, "/run/containerd/containerd.sock"),
        at(Speaks::Cri, "/run/crio/crio.sock"),
    ]
}
