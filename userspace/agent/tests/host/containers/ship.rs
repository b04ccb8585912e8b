//! Containers that a test runs on a host, and what their runtime knows of them.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use sandbox::{Cgroup, Netns, Sandbox, run_in};

use crate::common::{Family, accept, connect};

/// A container: a cgroup, and a process in it. Most share the host's network.
pub struct Container<'a> {
    pub id: String,
    host: &'a Sandbox,
    netns: &'a Netns,
    cgroup: Option<Cgroup>,
    process: Child,
}

/// An id like a runtime's: 64 hexadecimal digits that no other has.
fn new_id() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let unique = u64::from(std::process::id()) << 32 | u64::from(NEXT.fetch_add(1, Relaxed));
    format!("{unique:064x}")
}

impl<'a> Container<'a> {
    /// In a cgroup of its own.
    pub fn new(host: &'a Sandbox) -> Self {
        let id = new_id();
        let name = format!("docker-{id}.scope");
        Self::at(host, &host.netns, id, &name)
    }

    /// With a network of its own.
    pub fn within(host: &'a Sandbox, netns: &'a Netns) -> Self {
        let id = new_id();
        let name = format!("docker-{id}.scope");
        Self::at(host, netns, id, &name)
    }

    /// In one that might be anybody's.
    pub fn shared(host: &'a Sandbox) -> Self {
        Self::at(host, &host.netns, new_id(), "containerd.service")
    }

    fn at(host: &'a Sandbox, netns: &'a Netns, id: String, cgroup: &str) -> Self {
        let cgroup = host.cgroup.child(cgroup).unwrap();
        let process = sleep(netns, &cgroup);
        Self {
            id,
            host,
            netns,
            cgroup: Some(cgroup),
            process,
        }
    }

    fn cgroup(&self) -> &Cgroup {
        self.cgroup.as_ref().unwrap()
    }

    /// Dials as its process would.
    pub fn dial(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let dial = || connect(Family::V4, to);
        run_in(Some(self.netns), Some(self.cgroup()), dial).unwrap()
    }

    /// Whether a rule refuses it.
    pub fn is_denied(&self, database: &TcpListener) -> bool {
        match self.dial(database.local_addr().unwrap()) {
            Ok(_) => {
                // Or they pile up, and nobody gets in any more.
                accept(database);
                false
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                true
            }
        }
    }

    /// Ends, and begins again under the same id, in a cgroup that is another of the same name.
    pub fn restart(&mut self) {
        self.end();
        let name = format!("docker-{}.scope", self.id);
        self.cgroup = None;
        let cgroup = self.host.cgroup.child(&name).unwrap();
        self.process = sleep(self.netns, &cgroup);
        self.cgroup = Some(cgroup);
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// The container as its runtime has it.
    pub fn named(&self, name: &str, labels: &[(&str, &str)]) -> Told {
        Told {
            id: self.id.clone(),
            name: name.into(),
            labels: labels
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect(),
            pod_labels: BTreeMap::new(),
            pid: self.process.id(),
        }
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

fn sleep(netns: &Netns, cgroup: &Cgroup) -> Child {
    let start = || Command::new("sleep").arg("3600").spawn().unwrap();
    run_in(Some(netns), Some(cgroup), start).unwrap()
}

/// A container, as a runtime tells of it.
#[derive(Clone)]
pub struct Told {
    pub id: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Labels of the container's pod, where there are any.
    pub pod_labels: BTreeMap<String, String>,
    pub pid: u32,
}

impl Told {
    pub fn in_pod(mut self, labels: &[(&str, &str)]) -> Self {
        let labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        self.pod_labels = labels.collect();
        self
    }
}

/// How a runtime answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Well,
    /// Never.
    Hanging,
    /// With what is no answer.
    Garbage,
    /// With 100 MB.
    Endless,
    /// By ending the connection.
    Cut,
    /// The runtime says that it cannot answer.
    Refusing,
}

/// Knowledge of a fake runtime, shared with the test.
pub struct Runtime {
    state: Mutex<(Mood, Vec<Told>)>,
}

impl Runtime {
    pub fn new() -> Self {
        Self {
            state: Mutex::new((Mood::Well, Vec::new())),
        }
    }

    fn state(&self) -> MutexGuard<'_, (Mood, Vec<Told>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn mood(&self) -> Mood {
        self.state().0
    }

    pub fn be(&self, mood: Mood) {
        self.state().0 = mood;
    }

    pub fn runs(&self) -> Vec<Told> {
        self.state().1.clone()
    }

    pub fn run(&self, containers: &[Told]) {
        self.state().1 = containers.to_vec();
    }
}

/// Sends on one side of a flow what comes to the other as it is.
pub fn passes(from: &mut TcpStream, to: &mut TcpStream, frame: &[u8]) {
    from.write_all(frame).unwrap();
    let mut read = vec![0; frame.len()];
    to.read_exact(&mut read).unwrap();
    assert_eq!(read, frame);
}
