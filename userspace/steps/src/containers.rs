//! Containers, as records name them: by their own name, their pod's, its namespace and owner, and labels that operators have chosen.
//!
//! Whoever asks container runtimes tells here which run ([`Containers::run`]). Nobody asked, nothing is named.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use dataplane::host;
use parking_lot::RwLock;
use policy::{Container, Pod};
use serde::Serialize;

/// A container, as a record names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Contained {
    /// The container's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The pod's name. None: it is in no pod, and has no namespace and no owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The owner, which made the pod: `deployment/shop`. None: nothing did, or no API server tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Labels: those whose keys were chosen.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Contained {
    fn new(container: &Container, keys: &[String]) -> Self {
        let pod = container.pod.as_ref();
        let of = |part: fn(&Pod) -> String| pod.map(part);
        let labels = keys
            .iter()
            .filter_map(|key| Some((key.clone(), container.labels.get(key)?.clone())));
        Self {
            container: container.names.first().cloned(),
            pod: of(|pod| pod.name.clone()),
            namespace: of(|pod| pod.namespace.clone()),
            owner: pod.and_then(|pod| pod.owner.clone()),
            labels: labels.collect(),
        }
    }
}

/// Containers: those that run now.
#[derive(Debug, Default)]
pub struct Containers {
    running: RwLock<Arc<Running>>,
    /// Whether any is known: asked for each request of a client whose container is not.
    are_any: AtomicBool,
}

#[derive(Debug, Default)]
struct Running {
    /// Containers by the kernel's numbers of their cgroups.
    by_number: HashMap<u64, Arc<Contained>>,
    by_cgroup: HashMap<PathBuf, Arc<Contained>>,
}

impl Containers {
    /// Notes which containers run. `keys`: the labels that records have.
    pub fn run<'c>(&self, running: impl Iterator<Item = &'c Container>, keys: &[String]) {
        let root = host::cgroup2_root().ok().flatten().unwrap_or_default();
        let mut now = Running::default();
        for container in running {
            let named = Arc::new(Contained::new(container, keys));
            if let Some(number) = host::cgroup_id(&root, &container.cgroup) {
                now.by_number.insert(number, named.clone());
            }
            now.by_cgroup.insert(container.cgroup.clone(), named);
        }
        self.are_any.store(!now.by_cgroup.is_empty(), Relaxed);
        *self.running.write() = Arc::new(now);
    }

    /// Returns the container whose own cgroup has this number.
    pub(crate) fn numbered(&self, cgroup: u64) -> Option<Arc<Contained>> {
        self.running.read().by_number.get(&cgroup).cloned()
    }

    /// Returns the container whose processes are in this cgroup, which may be one beneath its own.
    pub(crate) fn at(&self, cgroup: &Path) -> Option<Arc<Contained>> {
        let running = self.running.read().clone();
        let mut cgroups = cgroup.ancestors();
        cgroups.find_map(|cgroup| running.by_cgroup.get(cgroup).cloned())
    }

    /// Returns the container that a process was in when its cgroup had this number.
    pub fn of(&self, pid: u32, cgroup: u64) -> Option<Arc<Contained>> {
        let above = || self.at(&host::cgroup_of(pid, cgroup)?);
        self.numbered(cgroup).or_else(above)
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        !self.are_any.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_in_the_container_above_its_cgroup() {
        let labels = [("app", "web"), ("secret", "x")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let container = Container {
            names: vec!["main".to_owned()],
            labels: labels.into(),
            cgroup: "/kube/pod1/c1".into(),
            pid: 1,
            pod: Some(Pod {
                name: "web-1".to_owned(),
                namespace: "shop".to_owned(),
                uid: "u1".to_owned(),
                service_account: None,
                owner: Some("deployment/web".to_owned()),
            }),
        };
        let containers = Containers::default();
        assert!(containers.is_empty());
        containers.run(
            [&container].into_iter(),
            &["app".to_owned(), "team".to_owned()],
        );
        assert_eq!(containers.at(Path::new("/kube/pod1")), None);
        assert_eq!(containers.at(Path::new("/kube/pod1/c10")), None);
        let found = containers
            .at(Path::new("/kube/pod1/c1/init.scope"))
            .unwrap();
        assert_eq!(
            serde_json::to_string(&*found).unwrap(),
            r#"{"container":"main","pod":"web-1","namespace":"shop","owner":"deployment/web","labels":{"app":"web"}}"#
        );
        containers.run([].into_iter(), &[]);
        assert_eq!(containers.at(&container.cgroup), None);
    }
}
