//! Policies that are objects, as files: each has a name that says where it is, and a verdict of its own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    collection::{Kept, Metadata},
    shares::{RulesTake, Shares},
};
use crate::{Fragment, Fragments, MAX_OBJECT_BYTES, status::cut};

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

    /// The kind, as manifests have it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "ClusterUnderpassPolicy",
            Self::Namespaced => "UnderpassPolicy",
        }
    }

    /// The name that says where an object of this kind is.
    pub(super) fn name_of(self, namespace: &str, name: &str) -> String {
        match self {
            Self::Cluster => format!("{}/{name}", self.resource()),
            Self::Namespaced => format!("{}/{namespace}/{name}", self.resource()),
        }
    }

    /// Returns the kind of the object with such a name, and its namespace, which that of a cluster's policy has empty.
    pub fn of_name(name: &str) -> Option<(Self, &str)> {
        let (resource, rest) = name.split_once('/')?;
        match rest.split_once('/') {
            None if resource == Self::Cluster.resource() => Some((Self::Cluster, "")),
            Some((namespace, _)) if resource == Self::Namespaced.resource() => {
                Some((Self::Namespaced, namespace))
            }
            _ => None,
        }
    }

    /// Returns the namespace of the object with such a name. None: it is in none.
    pub fn namespace_of(name: &str) -> Option<&str> {
        match Self::of_name(name)? {
            (Self::Namespaced, namespace) => Some(namespace),
            (Self::Cluster, _) => None,
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
#[derive(Deserialize)]
struct Body<'b> {
    #[serde(default, borrow)]
    spec: Option<&'b RawValue>,
}

/// Objects: what is kept of a policy.
#[derive(Debug)]
pub(super) struct Policy {
    generation: i64,
    version: i64,
    /// The policy as a file, or why it cannot be one.
    file: Result<PolicyFile, String>,
}

/// Another version with the same generation is no other policy: its status was written, or its labels.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        (self.generation, &self.file) == (other.generation, &other.file)
    }
}

/// A policy as a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFile {
    /// The text.
    pub text: String,
    /// The rules in it, and what they take.
    pub take: RulesTake,
}

/// Writes a policy as a file. The error says what is wrong with it.
pub type Text = Box<dyn Fn(&PolicyObject<'_>) -> Result<PolicyFile, String> + Send + Sync>;

/// Policies at a moment, and the generations of those that they were made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    pub(super) fragments: Fragments,
    pub(super) generations: BTreeMap<String, i64>,
}

/// Makes of an object what is kept of it, and says how many bytes that has.
pub(super) fn policy(
    kind: Kind,
    metadata: &Metadata,
    object: &RawValue,
    text: &Text,
) -> (Policy, usize) {
    let file = file(kind, metadata, object, text).map_err(|why| cut(&why));
    let bytes = file.as_ref().map_or(0, |file| file.text.len());
    let policy = Policy {
        generation: metadata.generation,
        version: metadata.resource_version.parse().unwrap_or(0),
        file,
    };
    (policy, bytes)
}

fn file(
    kind: Kind,
    metadata: &Metadata,
    object: &RawValue,
    text: &Text,
) -> Result<PolicyFile, String> {
    let (namespace, name) = (metadata.namespace.as_str(), metadata.name.as_str());
    let is_placed = (kind == Kind::Namespaced) != namespace.is_empty();
    // Two places would have one name.
    if !is_placed || namespace.contains('/') || name.contains('/') {
        return Err("metadata: an object of this kind is not there".to_owned());
    }
    let read = |error: serde_json::Error| format!("spec: {error}");
    let body: Body<'_> = serde_json::from_str(object.get()).map_err(read)?;
    let spec = body.spec.map_or("null", RawValue::get);
    let fits = |text: &str| match text.len() <= MAX_OBJECT_BYTES {
        true => Ok(()),
        false => Err(format!(
            "spec: expected at most {MAX_OBJECT_BYTES} bytes: make further objects"
        )),
    };
    fits(spec)?;
    let spec = serde_json::from_str(spec).map_err(read)?;
    let file = text(&PolicyObject {
        kind,
        namespace,
        name,
        spec: &spec,
    })?;
    fits(&file.text)?;
    Ok(file)
}

/// Makes files of policies. What cannot be one is named in [`Fragments::unusable`].
pub(super) fn read(cluster: &Kept<Policy>, namespaced: &Kept<Policy>) -> Read {
    let mut read = Read::default();
    let mut shares = Shares::default();
    for (kind, kept) in [(Kind::Cluster, cluster), (Kind::Namespaced, namespaced)] {
        for namespace in &kept.cut {
            let why =
                "there are more than are read: of those that are not, what was in force stays";
            let name = match namespace.is_empty() {
                true => kind.resource().to_owned(),
                false => format!("{}/{namespace}", kind.resource()),
            };
            read.fragments.cut.insert(name.clone());
            read.fragments.unusable.insert(name, why.to_owned());
        }
    }
    let clusters = cluster.iter().map(|object| (Kind::Cluster, object));
    let others = namespaced.iter().map(|object| (Kind::Namespaced, object));
    for (kind, (namespace, name, policy)) in clusters.chain(others) {
        let name = kind.name_of(namespace, name);
        read.generations.insert(name.clone(), policy.generation);
        read.fragments.revision = read.fragments.revision.max(policy.version);
        let mut take = |file: PolicyFile| {
            shares.try_add(&name, &file.text, file.take)?;
            Ok(file.text)
        };
        match policy.file.clone().and_then(&mut take) {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        MAX_NAMESPACE_NAMES, MAX_NAMESPACE_OBJECTS, MAX_NAMESPACE_RULES, MAX_NAMESPACES_NAMES,
        MAX_NAMESPACES_RULES, MAX_OBJECTS,
    };

    fn kept(objects: &[(&str, &str, String)]) -> Kept<Policy> {
        let mut kept = Kept::default();
        for (namespace, name, json) in objects {
            let metadata = Metadata {
                name: (*name).to_owned(),
                namespace: (*namespace).to_owned(),
                resource_version: "7".to_owned(),
                ..Metadata::default()
            };
            let kind = match namespace.is_empty() {
                true => Kind::Cluster,
                false => Kind::Namespaced,
            };
            let text: Text = Box::new(|object| match object.spec.as_u64() {
                Some(rules) => Ok(PolicyFile {
                    text: "rule\n".repeat(rules as usize),
                    take: RulesTake {
                        rules: rules as usize,
                        ..RulesTake::default()
                    },
                }),
                None => Ok(PolicyFile {
                    text: object.spec.to_string(),
                    take: take_of(object.spec),
                }),
            });
            let json = RawValue::from_string(format!("{{\"spec\":{json}}}")).unwrap();
            let name = ((*namespace).to_owned(), (*name).to_owned());
            kept.put(name, policy(kind, &metadata, &json, &text), 2 * MAX_OBJECTS);
        }
        kept
    }

    /// A list is one of names; anything else says how many it has of what.
    fn take_of(spec: &serde_json::Value) -> RulesTake {
        let count = |what: &str| spec[what].as_u64().unwrap_or_default() as usize;
        RulesTake {
            rules: 1,
            names: spec.as_array().map_or(0, Vec::len),
            destinations: count("destinations"),
            ports: count("ports"),
            ids: count("ids"),
            shadows: count("shadows"),
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_alone_and_costs_nothing() {
        let long = format!("{:?}", "x".repeat(MAX_OBJECT_BYTES));
        let read = read(
            &kept(&[("", "a", "1".into())]),
            &kept(&[
                ("n", "deep", "[".repeat(400) + &"]".repeat(400)),
                ("n", "good", "2".into()),
                ("n", "long", long),
            ]),
        );
        let names: Vec<_> = read.fragments.files.iter().map(|file| &file.name).collect();
        assert_eq!(
            names,
            ["clusterunderpasspolicies/a", "underpasspolicies/n/good"]
        );
        assert_eq!(read.fragments.revision, 7);
        let why = |name: &str| read.fragments.unusable[name].as_str();
        assert!(why("underpasspolicies/n/deep").contains("recursion limit"));
        assert!(why("underpasspolicies/n/long").contains("expected at most"));
        assert!(read.fragments.cut.is_empty());
    }

    #[test]
    fn a_namespace_has_its_share_and_the_clusters_is_left() {
        let objects = |namespaces: usize, each: usize, json: &str| {
            let mut objects = Vec::new();
            for namespace in 0..namespaces {
                for n in 0..each {
                    objects.push((
                        format!("n{namespace:02}"),
                        format!("{n:02}"),
                        json.to_owned(),
                    ));
                }
            }
            let objects: Vec<_> = objects
                .iter()
                .map(|(namespace, name, json)| (namespace.as_str(), name.as_str(), json.clone()))
                .collect();
            read(&Kept::default(), &kept(&objects)).fragments
        };
        for (namespaces, each, json, files) in [
            (2, MAX_NAMESPACE_OBJECTS + 3, "1", 2 * MAX_NAMESPACE_OBJECTS),
            (2, 20, "10", 2 * (MAX_NAMESPACE_RULES / 10)),
            (12, MAX_NAMESPACE_OBJECTS, "1", MAX_OBJECTS / 2),
            (12, 4, "32", MAX_NAMESPACES_RULES / 32),
            (2, 10, "[1,2]", 2 * (MAX_NAMESPACE_NAMES / 2)),
            (12, 4, "[1,2,3,4]", MAX_NAMESPACES_NAMES / 4),
            (1, 5, "{\"destinations\": 256}", 4),
            (12, 4, "{\"destinations\": 256}", 16),
            (1, 5, "{\"ports\": 128}", 4),
            (12, 4, "{\"ports\": 128}", 16),
            (1, 5, "{\"ids\": 128}", 4),
            (12, 4, "{\"ids\": 128}", 16),
            (1, 5, "{\"shadows\": 2}", 4),
            (12, 4, "{\"shadows\": 2}", 16),
        ] {
            let read = objects(namespaces, each, json);
            assert_eq!(read.files.len(), files, "{namespaces} {each} {json}");
            assert_eq!(read.unusable.len(), namespaces * each - files);
        }
        let read = objects(1, 5, "{\"shadows\": 2}");
        let why = &read.unusable["underpasspolicies/n00/04"];
        assert_eq!(why, "a namespace has at most 8 rules in shadow together");
    }

    #[test]
    fn what_is_not_read_is_said() {
        let mut namespaced = kept(&[("n", "a", "1".into())]);
        for (cut, of) in [("n", "underpasspolicies/n"), ("", "underpasspolicies")] {
            namespaced.cut = BTreeSet::from([cut.to_owned()]);
            let read = read(&Kept::default(), &namespaced);
            let is_there = |name: &str| read.fragments.may_have(name);
            assert!(is_there("underpasspolicies/n/z") && !is_there("clusterunderpasspolicies/z"));
            // One that was deleted in another namespace is gone.
            assert_eq!(is_there("underpasspolicies/m/z"), cut.is_empty());
            assert!(read.fragments.unusable.contains_key(of));
            assert_eq!(read.fragments.files.len(), 1);
        }
    }
}
