//! A runtime: its containers, and their cgroups.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use dataplane::host::{self, ContainerCgroup};
use policy::{Container, MAX_CONTAINER_TEXT_BYTES, Pod};
use tokio::{sync::Notify, time};

use super::{
    book::{MAX_LABELS, Page, Running},
    cri::Cri,
    docker::Docker,
    failure::Failure,
    metrics::ContainerMetrics,
    socket::{Socket, Speaks},
};

/// Containers of one runtime that are known at a time: an order above what kubelets run. Those of
/// further ones are in no rule.
pub const MAX_CONTAINERS: usize = 2048;

/// The time limit for everything that is asked at once; a busy runtime takes a second. Answers that
/// have come by then are kept, and the next time begins there.
pub(super) const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest id. Docker's and Kubernetes' ids are 64 hexadecimal digits. A cgroup belongs to a
/// container if its name contains the container's id, so a shorter id, or anything else, counts as
/// none.
const SHORTEST_ID: usize = 12;
const LONGEST_ID: usize = 128;

/// A runtime, and what it has said.
#[derive(Debug)]
pub struct Runtime {
    socket: Socket,
    known: HashMap<String, Container>,
    /// See [`Page`].
    shared: usize,
    too_many: usize,
    /// The last outcome, for the log.
    last: Option<Option<&'static str>>,
}

enum Link {
    Docker(Docker),
    Cri(Cri),
}

impl Link {
    async fn open(socket: &Socket) -> Result<Self, Failure> {
        Ok(match socket.speaks {
            Speaks::Docker => Self::Docker(Docker::open(&socket.path).await?),
            Speaks::Cri => Self::Cri(Cri::open(&socket.path).await?),
        })
    }

    async fn list(&mut self) -> Result<Vec<Running>, Failure> {
        match self {
            Self::Docker(docker) => docker.list().await,
            Self::Cri(cri) => cri.list().await,
        }
    }

    async fn pid(&mut self, id: &str) -> Result<Option<u32>, Failure> {
        match self {
            Self::Docker(docker) => docker.pid(id).await,
            Self::Cri(cri) => cri.pid(id).await,
        }
    }
}

impl Runtime {
    /// Makes a runtime of which nothing is known yet.
    pub fn new(socket: Socket) -> Self {
        Self {
            socket,
            known: HashMap::new(),
            shared: 0,
            too_many: 0,
            last: None,
        }
    }

    /// Returns the path of its socket.
    pub fn path(&self) -> &Path {
        &self.socket.path
    }

    /// Returns the protocol that is spoken there.
    pub fn speaks(&self) -> Speaks {
        self.socket.speaks
    }

    /// Returns its containers.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.known.values()
    }

    pub(super) fn page(&self) -> Page {
        let mut containers: Vec<Container> = self.known.values().cloned().collect();
        // Sorted, so that the same containers make the same page.
        containers.sort_by(|a, b| a.cgroup.cmp(&b.cgroup));
        Page {
            containers,
            shared: self.shared,
            too_many: self.too_many,
        }
    }

    /// Describes for people how many containers it runs.
    pub fn shown(&self) -> String {
        let mut shown = format!("{} containers", self.known.len());
        if self.shared > 0 {
            shown.push_str(&format!(
                ", and {} that have no cgroup of their own, so that no rule can name them",
                self.shared
            ));
        }
        if self.too_many > 0 {
            shown.push_str(&format!(", and {} more than may be", self.too_many));
        }
        shown
    }

    /// Asks what it runs.
    ///
    /// # Errors
    /// It does not say. What it has said before still stands: a cgroup that is gone is nobody's, and its
    /// number is never another's.
    pub async fn ask(&mut self) -> Result<(), Failure> {
        if !host::sees_every_process() {
            return Err(Failure::Blind);
        }
        match time::timeout(ASK_TIMEOUT, self.try_ask()).await {
            Ok(asked) => asked,
            Err(_) => Err(Failure::Late),
        }
    }

    async fn try_ask(&mut self) -> Result<(), Failure> {
        let mut link = Link::open(&self.socket).await?;
        let mut listed = link.list().await?;
        listed.retain(|running| is_id(&running.id));
        self.too_many = listed.len().saturating_sub(MAX_CONTAINERS);
        // Sorted, so that the same containers are kept each time.
        listed.sort_by(|a, b| a.id.cmp(&b.id));
        listed.truncate(MAX_CONTAINERS);
        let mut before = std::mem::take(&mut self.known);
        let is_there = |container: &Container| host::is_in_cgroup(container.pid, &container.cgroup);
        let mut new = Vec::new();
        for running in listed {
            match before.remove(&running.id).filter(is_there) {
                Some(container) => self.learn(running, container.cgroup, container.pid),
                None => new.push(running),
            }
        }
        self.shared = 0;
        for running in new {
            let Some(pid) = link.pid(&running.id).await? else {
                continue;
            };
            match host::container_cgroup(pid, &running.id) {
                ContainerCgroup::Own(cgroup) => self.learn(running, cgroup, pid),
                ContainerCgroup::Shared => self.shared += 1,
                ContainerCgroup::Gone => {}
            }
        }
        Ok(())
    }

    fn learn(&mut self, running: Running, cgroup: PathBuf, pid: u32) {
        let id = running.id.clone();
        let container = container(running, cgroup, pid, self.socket.speaks);
        self.known.insert(id, container);
    }

    /// Counts how it has answered, and says when that has changed.
    pub(super) fn note(&mut self, asked: &Result<(), Failure>, metrics: &ContainerMetrics) {
        let how = asked.as_ref().err().map(Failure::label);
        metrics.asked(self.socket.speaks, how);
        if self.last.replace(how) == Some(how) {
            return;
        }
        let socket = self.socket.path.display();
        match asked {
            Ok(()) => {
                let containers = self.known.len();
                tracing::info!(%socket, containers, "a container runtime answers");
            }
            // Most hosts have one runtime of those that there could be.
            Err(Failure::Absent) => tracing::info!(%socket, "no container runtime there"),
            Err(error) => {
                tracing::warn!(%socket, %error, "a container runtime does not answer: its last \
                                                  answer is used");
            }
        }
    }

    /// Wakes whoever waits when a container begins or ends, as long as the runtime tells.
    pub(super) fn listen(&self, news: Arc<Notify>) -> impl Future<Output = ()> + Send + use<> {
        let socket = self.socket.clone();
        async move {
            let heard = match socket.speaks {
                Speaks::Docker => match Docker::open(&socket.path).await {
                    Ok(docker) => docker.listen(&news).await,
                    Err(error) => Err(error),
                },
                // A CRI runtime is asked every second.
                Speaks::Cri => std::future::pending().await,
            };
            if let Err(error) = heard {
                let socket = socket.path.display();
                tracing::debug!(%socket, %error, "a container runtime tells no news");
            }
            news.notify_one();
        }
    }
}

/// Makes of a container what is kept of it.
pub(super) fn container(running: Running, cgroup: PathBuf, pid: u32, speaks: Speaks) -> Container {
    let fits = |text: &str| text.len() <= MAX_CONTAINER_TEXT_BYTES;
    let names = running.names.into_iter().filter(|name| fits(name));
    // Of Docker's containers whoever runs one, or builds its image, sets all labels.
    let pod = match speaks {
        Speaks::Cri => Pod::of_labels(&running.labels),
        Speaks::Docker => None,
    };
    let labels = running.labels.into_iter();
    Container {
        names: names.take(MAX_LABELS).collect(),
        labels: labels
            .filter(|(key, value)| fits(key) && fits(value))
            .take(MAX_LABELS)
            .collect(),
        cgroup,
        pid,
        pod,
    }
}

fn is_id(id: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (SHORTEST_ID..=LONGEST_ID).contains(&id.len()) && id.chars().all(legal)
}
