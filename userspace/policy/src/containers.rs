//! Containers, and a rule's conditions on them.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use crate::{Pod, PodConditions};

/// Bytes of a container's name, and of a label's key and value: more than Kubernetes and Docker allow for
/// names (253), and than anybody types.
pub const MAX_CONTAINER_TEXT_BYTES: usize = 256;

/// Names of containers in one rule; likewise labels.
pub const MAX_CONTAINER_CONDITIONS: usize = 64;

/// A text in which `*` stands for anything, also for nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob(String);

impl Glob {
    /// Reads a pattern. None when the text is empty or longer than [`MAX_CONTAINER_TEXT_BYTES`].
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=MAX_CONTAINER_TEXT_BYTES).contains(&text.len());
        fits.then(|| Self(text.to_owned()))
    }

    /// Whether `text` fits the pattern. A pattern without `*` fits itself only. Otherwise the part before
    /// the first `*` has to come first, the part behind the last `*` last, and the parts between them in
    /// between; each of these is matched as early as it can be.
    pub fn holds(&self, text: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else {
            return text == self.0;
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(text) = text.strip_prefix(first) else {
            return false;
        };
        let Some(mut text) = text.strip_suffix(last) else {
            return false;
        };
        for part in middle.split('*') {
            let Some((_, behind)) = text.split_once(part) else {
                return false;
            };
            text = behind;
        }
        true
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Names that the container's runtime gives it.
    pub names: Vec<String>,
    /// Labels of the container and of its pod.
    pub labels: BTreeMap<String, String>,
    /// The container's own cgroup, from the mount's root: all of its processes are beneath it, and no
    /// others.
    pub cgroup: PathBuf,
    /// A process of the container; it may have ended.
    pub pid: u32,
    /// The pod that the container is in. None: none of Kubernetes.
    pub pod: Option<Pod>,
}

/// A rule's conditions on the container. An empty list holds for every container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerConditions {
    /// Patterns of which one has to fit one of the container's names.
    pub names: Vec<Glob>,
    /// Labels that the container must have, each with a value that fits.
    pub labels: Vec<(String, Glob)>,
    /// The conditions on the pod.
    pub pods: PodConditions,
    /// Cgroups of processes for which these conditions and the rule's `cgroup` hold, as
    /// [`Policy::find_containers`](crate::Policy::find_containers) found them.
    pub(crate) found: Vec<PathBuf>,
}

impl ContainerConditions {
    /// Conditions that hold for nobody until containers are found.
    pub fn new(names: Vec<Glob>, labels: Vec<(String, Glob)>) -> Self {
        Self {
            names,
            labels,
            pods: PodConditions::default(),
            found: Vec::new(),
        }
    }

    /// Adds conditions on the pod.
    #[must_use]
    pub fn in_pods(self, pods: PodConditions) -> Self {
        Self { pods, ..self }
    }

    /// Whether there is no condition.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.labels.is_empty() && self.pods.is_empty()
    }

    pub(crate) fn hold(&self, container: &Container) -> bool {
        let named = |glob: &Glob| container.names.iter().any(|name| glob.holds(name));
        let labelled = |(key, glob): &(String, Glob)| {
            let value = container.labels.get(key);
            value.is_some_and(|value| glob.holds(value))
        };
        (self.names.is_empty() || self.names.iter().any(named))
            && self.labels.iter().all(labelled)
            && self.pods.hold(container.pod.as_ref())
    }
}
