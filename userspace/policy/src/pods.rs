//! Pods of Kubernetes, and a rule's conditions on them.

use std::collections::BTreeMap;

use crate::Glob;

/// Values of one of a rule's conditions on pods: namespaces, service accounts, owners.
pub const MAX_POD_CONDITIONS: usize = 64;

/// The kinds of owners, each with the names by which `kubectl` knows it, too.
const OWNERS: [(&str, &[&str]); 6] = [
    ("deployment", &["deploy"]),
    ("statefulset", &["sts"]),
    ("daemonset", &["ds"]),
    ("replicaset", &["rs"]),
    ("job", &[]),
    ("cronjob", &["cj"]),
];

/// The pod that a container is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// The name.
    pub name: String,
    /// The namespace.
    pub namespace: String,
    /// The id, which no other pod has had.
    pub uid: String,
    /// The service account. None: only the API server knows it.
    pub service_account: Option<String>,
    /// The owner, which made the pod: `deployment/shop`. None: nothing did, or only the API server knows it.
    pub owner: Option<String>,
}

/// The beginning of the keys by which a kubelet labels its containers, and which no pod can set.
pub const KUBELETS: &str = "io.kubernetes.";

impl Pod {
    /// The pod of a container with the labels that a kubelet gives it. None: it is in no pod.
    pub fn of_labels(labels: &BTreeMap<String, String>) -> Option<Self> {
        let of = |key: &str| labels.get(&format!("{KUBELETS}pod.{key}")).cloned();
        Some(Self {
            name: of("name")?,
            namespace: of("namespace")?,
            uid: of("uid").unwrap_or_default(),
            service_account: None,
            owner: None,
        })
    }
}

/// A rule's conditions on the pod. An empty list holds for every container, also for one in no pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodConditions {
    /// Patterns of which one has to fit the namespace.
    pub namespaces: Vec<Glob>,
    /// Patterns of which one has to fit the name of the service account.
    pub service_accounts: Vec<Glob>,
    /// Patterns of which one has to fit the owner.
    pub owners: Vec<Glob>,
}

impl PodConditions {
    /// Whether there is no condition.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.service_accounts.is_empty() && self.owners.is_empty()
    }

    /// Whether all conditions hold for a container that is in this pod, or in none.
    pub(crate) fn hold(&self, pod: Option<&Pod>) -> bool {
        let one = |globs: &[Glob], text: Option<&str>| {
            globs.is_empty() || text.is_some_and(|text| globs.iter().any(|glob| glob.holds(text)))
        };
        one(&self.namespaces, pod.map(|pod| pod.namespace.as_str()))
            && one(
                &self.service_accounts,
                pod.and_then(|pod| pod.service_account.as_deref()),
            )
            && one(&self.owners, pod.and_then(|pod| pod.owner.as_deref()))
    }
}

/// Writes an owner's kind out: `deploy/shop` becomes `deployment/shop`. None: that is no owner.
pub fn owner_in_full(text: &str) -> Option<String> {
    let (kind, name) = text.split_once('/')?;
    let kind = kind.to_ascii_lowercase();
    let (kind, _) = OWNERS
        .iter()
        .find(|(full, short)| *full == kind || short.contains(&kind.as_str()))?;
    (!name.is_empty() && !name.contains('/')).then(|| format!("{kind}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(text: &str) -> Glob {
        Glob::parse(text).unwrap()
    }

    #[test]
    fn owners_are_written_out() {
        for (text, full) in [
            ("deploy/shop", Some("deployment/shop")),
            ("Deployment/shop", Some("deployment/shop")),
            ("sts/db-*", Some("statefulset/db-*")),
            ("job/once", Some("job/once")),
            ("cj/nightly", Some("cronjob/nightly")),
            ("shop", None),
            ("deploy/", None),
            ("pod/shop", None),
            ("deploy/a/b", None),
        ] {
            assert_eq!(owner_in_full(text).as_deref(), full, "{text}");
        }
    }

    #[test]
    fn each_condition_has_to_hold_and_none_holds_where_nothing_is_known() {
        let pod = Pod {
            name: "shop-1".into(),
            namespace: "shop".into(),
            uid: "u".into(),
            service_account: Some("web".into()),
            owner: Some("deployment/shop".into()),
        };
        let of = |namespaces: &[&str], accounts: &[&str], owners: &[&str]| PodConditions {
            namespaces: namespaces.iter().map(|text| glob(text)).collect(),
            service_accounts: accounts.iter().map(|text| glob(text)).collect(),
            owners: owners.iter().map(|text| glob(text)).collect(),
        };
        assert!(of(&[], &[], &[]).hold(None) && of(&[], &[], &[]).is_empty());
        assert!(of(&["shop"], &["web"], &["deployment/*"]).hold(Some(&pod)));
        for conditions in [
            of(&["shop"], &[], &[]),
            of(&[], &["web"], &[]),
            of(&[], &[], &["*"]),
        ] {
            assert!(conditions.hold(Some(&pod)) && !conditions.is_empty());
            assert!(!conditions.hold(None));
        }
        for conditions in [
            of(&["shop2", "sho"], &[], &[]),
            of(&["shop"], &["db"], &[]),
            of(&["shop"], &["web"], &["deployment/sho"]),
        ] {
            assert!(!conditions.hold(Some(&pod)));
        }
        // By the runtime alone no more is known than where it is.
        let unknown = Pod {
            service_account: None,
            owner: None,
            ..pod
        };
        assert!(of(&["shop"], &[], &[]).hold(Some(&unknown)));
        assert!(!of(&["shop"], &["*"], &[]).hold(Some(&unknown)));
    }
}
