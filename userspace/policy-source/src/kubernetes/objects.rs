//! Policies that are objects, as files: each has a name that says where it is, and a verdict of its own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::collection::{Kept, Metadata};
use crate::{
    Fragment, Fragments, MAX_NAMESPACE_BYTES, MAX_NAMESPACE_DESTINATIONS, MAX_NAMESPACE_IDS,
    MAX_NAMESPACE_NAMES, MAX_NAMESPACE_OBJECTS, MAX_NAMESPACE_PORTS, MAX_NAMESPACE_RULES,
    MAX_NAMESPACE_SHADOWS, MAX_NAMESPACES_DESTINATIONS, MAX_NAMESPACES_IDS, MAX_NAMESPACES_NAMES,
    MAX_NAMESPACES_PORTS, MAX_NAMESPACES_RULES, MAX_NAMESPACES_SHADOWS, MAX_OBJECT_BYTES,
    MAX_OBJECTS, MAX_OBJECTS_BYTES, status::cut,
};

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

/// Shares of rules in what all rules have together. The rules of every namespace are beside the cluster's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesTake {
    /// The rules.
    pub rules: usize,
    /// Different names in `to`.
    pub names: usize,
    /// Destinations, of which each port of a range is one. Those that several rules have count for each.
    pub destinations: usize,
    /// Different ports of these.
    pub ports: usize,
    /// Entries of `uid`, `gid` and `process`.
    pub ids: usize,
    /// Rules in shadow.
    pub shadows: usize,
}

impl RulesTake {
    fn and(self, other: Self) -> Self {
        Self {
            rules: self.rules + other.rules,
            names: self.names + other.names,
            destinations: self.destinations + other.destinations,
            ports: self.ports + other.ports,
            ids: self.ids + other.ids,
            shadows: self.shadows + other.shadows,
        }
    }
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

/// Objects: what policies take, of what they may.
#[derive(Clone, Copy, Default)]
struct Taken {
    policies: usize,
    bytes: usize,
    rules: RulesTake,
}

impl Taken {
    /// Adds a policy.
    ///
    /// # Errors
    /// Says which share it exceeds.
    fn and(self, file: &PolicyFile, most: &Self) -> Result<Self, String> {
        let taken = Self {
            policies: self.policies + 1,
            bytes: self.bytes + file.text.len(),
            rules: self.rules.and(file.take),
        };
        let counts = taken.counts().into_iter().zip(most.counts());
        let beyond = counts
            .filter(|((_, found), (_, most))| found > most)
            .map(|((what, _), (_, most))| format!("{most} {what}"))
            .next();
        match beyond {
            None => Ok(taken),
            Some(share) => Err(share),
        }
    }

    fn counts(&self) -> [(&'static str, usize); 8] {
        let RulesTake {
            rules,
            names,
            destinations,
            ports,
            ids,
            shadows,
        } = self.rules;
        [
            ("policies", self.policies),
            ("rules", rules),
            ("names in `to`", names),
            (
                "destinations, of which each port of a range is one",
                destinations,
            ),
            ("different ports in `to`, counted in each policy", ports),
            ("entries of `uid`, `gid` and `process`", ids),
            ("rules in shadow", shadows),
            ("bytes", self.bytes),
        ]
    }
}

/// All policies together. What their rules take is bounded where they are parsed.
const ALL: Taken = Taken {
    policies: MAX_OBJECTS,
    bytes: MAX_OBJECTS_BYTES,
    rules: RulesTake {
        rules: usize::MAX,
        names: usize::MAX,
        destinations: usize::MAX,
        ports: usize::MAX,
        ids: usize::MAX,
        shadows: usize::MAX,
    },
};

/// Objects: those of all namespaces: half is left for the cluster's.
const NAMESPACES: Taken = Taken {
    policies: MAX_OBJECTS / 2,
    bytes: MAX_OBJECTS_BYTES / 2,
    rules: RulesTake {
        rules: MAX_NAMESPACES_RULES,
        names: MAX_NAMESPACES_NAMES,
        destinations: MAX_NAMESPACES_DESTINATIONS,
        ports: MAX_NAMESPACES_PORTS,
        ids: MAX_NAMESPACES_IDS,
        shadows: MAX_NAMESPACES_SHADOWS,
    },
};

/// Objects: those of one namespace.
const NAMESPACE: Taken = Taken {
    policies: MAX_NAMESPACE_OBJECTS,
    bytes: MAX_NAMESPACE_BYTES,
    rules: RulesTake {
        rules: MAX_NAMESPACE_RULES,
        names: MAX_NAMESPACE_NAMES,
        destinations: MAX_NAMESPACE_DESTINATIONS,
        ports: MAX_NAMESPACE_PORTS,
        ids: MAX_NAMESPACE_IDS,
        shadows: MAX_NAMESPACE_SHADOWS,
    },
};

/// Makes files of policies. What cannot be one is named in [`Fragments::unusable`].
pub(super) fn read(cluster: &Kept<Policy>, namespaced: &Kept<Policy>) -> Read {
    let mut read = Read::default();
    let (mut all, mut namespaces, mut own) = (Taken::default(), Taken::default(), None);
    for (kind, kept) in [(Kind::Cluster, cluster), (Kind::Namespaced, namespaced)] {
        if kept.is_cut {
            let why =
                "there are more than are read: of those that are not, what was in force stays";
            let name = kind.resource().to_owned();
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
            let more = all
                .and(&file, &ALL)
                .map_err(|share| format!("all policies have at most {share} together"))?;
            if kind == Kind::Namespaced {
                let of_own = match own {
                    Some((of, taken)) if of == namespace => taken,
                    _ => Taken::default(),
                };
                let of_own = of_own
                    .and(&file, &NAMESPACE)
                    .map_err(|share| format!("a namespace has at most {share} together"))?;
                namespaces = namespaces
                    .and(&file, &NAMESPACES)
                    .map_err(|share| format!("all namespaces have at most {share} together"))?;
                own = Some((namespace, of_own));
            }
            all = more;
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
    use super::*;

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
        namespaced.is_cut = true;
        let read = read(&Kept::default(), &namespaced);
        let is_there = |name: &str| read.fragments.may_have(name);
        assert!(is_there("underpasspolicies/n/z") && !is_there("clusterunderpasspolicies/z"));
        assert!(read.fragments.unusable.contains_key("underpasspolicies"));
        assert_eq!(read.fragments.files.len(), 1);
    }
}
