//! Policies that are objects, as files: each has a name that says where it is, and a verdict of its own.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::collection::{Object, Objects};
use crate::{Fragment, Fragments, MAX_OBJECTS, MAX_OBJECTS_BYTES};

/// The group of the objects.
pub const GROUP: &str = "underpass.dev";

/// The version of the objects.
pub const VERSION: &str = "v1alpha1";

/// The two kinds of policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `ClusterUnderpassPolicy`: for whoever is root on the nodes anyway.
    Cluster,
    /// `UnderpassPolicy`: for the pods of its own namespace, by whoever may write there.
    Namespaced,
}

impl Kind {
    /// The name of the resource in paths, which is the plural of the kind.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Cluster => "clusterunderpasspolicies",
            Self::Namespaced => "underpasspolicies",
        }
    }

    /// The path of all objects of this kind.
    pub(super) fn path(self) -> String {
        format!("/apis/{GROUP}/{VERSION}/{}", self.resource())
    }
}

/// A policy, as it is in the cluster.
#[derive(Clone, Copy, Debug)]
pub struct PolicyObject<'o> {
    /// The kind.
    pub kind: Kind,
    /// The namespace; that of a cluster's policy is empty.
    pub namespace: &'o str,
    /// The name.
    pub name: &'o str,
    /// The specification: `rules`, and nothing else.
    pub spec: &'o serde_json::Value,
}

/// The part of an object that is read.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Spec {
    #[serde(default)]
    spec: serde_json::Value,
}

/// Writes a policy as a file. The error says what is wrong with it.
pub type Text = Box<dyn Fn(&PolicyObject<'_>) -> Result<String, String> + Send + Sync>;

/// Policies at a moment, and the generations of those that they were made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    pub(super) fragments: Fragments,
    pub(super) generations: BTreeMap<String, i64>,
}

/// Makes files of policies. What cannot be one is named in [`Fragments::unusable`].
pub(super) fn read(cluster: &Objects<Spec>, namespaced: &Objects<Spec>, text: &Text) -> Read {
    let mut read = Read::default();
    let mut room = MAX_OBJECTS_BYTES;
    let of = |kind, objects: &'_ Objects<Spec>| {
        let objects: Vec<(Kind, Object<Spec>)> =
            objects.values().map(|one| (kind, one.clone())).collect();
        objects
    };
    let all = of(Kind::Cluster, cluster)
        .into_iter()
        .chain(of(Kind::Namespaced, namespaced));
    for (n, (kind, object)) in all.enumerate() {
        let metadata = &object.metadata;
        let name = match kind {
            Kind::Cluster => format!("{}/{}", kind.resource(), metadata.name),
            Kind::Namespaced => {
                format!(
                    "{}/{}/{}",
                    kind.resource(),
                    metadata.namespace,
                    metadata.name
                )
            }
        };
        read.generations.insert(name.clone(), metadata.generation);
        let version = metadata.resource_version.parse().unwrap_or(0);
        read.fragments.revision = read.fragments.revision.max(version);
        let written = text(&PolicyObject {
            kind,
            namespace: &metadata.namespace,
            name: &metadata.name,
            spec: &object.body.spec,
        });
        let written =
            written.and_then(
                |text| match (n < MAX_OBJECTS, room.checked_sub(text.len())) {
                    (true, Some(left)) => {
                        room = left;
                        Ok(text)
                    }
                    (false, _) => Err(format!("a cluster has at most {MAX_OBJECTS} policies")),
                    (_, None) => Err(format!(
                        "all policies have at most {MAX_OBJECTS_BYTES} bytes together"
                    )),
                },
            );
        match written {
            Ok(text) => read.fragments.files.push(Fragment { name, text }),
            Err(why) => drop(read.fragments.unusable.insert(name, why)),
        }
    }
    // By the bytes of their names, as files are: those of the cluster stay before the others.
    read.fragments
        .files
        .sort_by(|one, other| one.name.cmp(&other.name));
    read
}
