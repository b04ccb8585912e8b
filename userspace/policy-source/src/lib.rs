//! The policy of a fleet, kept in etcd or in Kubernetes: agents follow it and acknowledge what they made of it, operators change it.
//!
//! - `settings`: where etcd is, and how it is reached; `session`: a connection to one of its members.
//! - `fragments`: the files of a policy, their bounds and their digest; `keys`: where they are.
//! - `follow`: an agent's part. Each change is offered whole; the verdict on it becomes the host's status.
//! - `namesake`: whether another agent says that it is the same host.
//! - `status`: that status; `fleet`: what operators do: push, roll back, read statuses.
//! - `sharing`: an agent's part in limits that the fleet shares.
//! - `kubernetes`: an agent's part where policies are objects of a cluster, and who counts what agents say of them.
//! - `failure`: why etcd could not be read; `pace`: how often it is asked.
//!
//! **Invariant**: what comes from etcd is bounded before it is kept ([`MAX_FRAGMENTS`], [`MAX_FRAGMENT_BYTES`],
//! [`MAX_MESSAGE_BYTES`]), and nothing here decides what a policy means.

#![forbid(unsafe_code)]

mod failure;
mod fleet;
mod follow;
mod fragments;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod keys;
mod kubernetes;
mod namesake;
mod pace;
mod session;
mod settings;
mod sharing;
mod status;

pub use failure::Failure;
pub use fleet::{Fleet, KEPT_VERSIONS, Version};
pub use follow::{Follower, News};
pub use fragments::{
    Fragment, Fragments, MAX_FRAGMENT_BYTES, MAX_FRAGMENTS, MAX_NAME_BYTES, MAX_NAMESPACE_BYTES,
    MAX_NAMESPACE_DESTINATIONS, MAX_NAMESPACE_IDS, MAX_NAMESPACE_NAMES, MAX_NAMESPACE_OBJECTS,
    MAX_NAMESPACE_PORTS, MAX_NAMESPACE_RULES, MAX_NAMESPACE_SHADOWS, MAX_NAMESPACES_DESTINATIONS,
    MAX_NAMESPACES_IDS, MAX_NAMESPACES_NAMES, MAX_NAMESPACES_PORTS, MAX_NAMESPACES_RULES,
    MAX_NAMESPACES_SHADOWS, MAX_OBJECT_BYTES, MAX_OBJECTS, MAX_OBJECTS_BYTES, Unusable,
};
pub use keys::MAX_PREFIX_BYTES;
pub use kubernetes::{
    API_SERVER, GROUP, Kind, KubernetesCounter, KubernetesFollower, KubernetesSettings,
    MAX_LINE_BYTES, MAX_NODES, MAX_PODS, OwnPod, PodFacts, Pods, PolicyFile, PolicyObject,
    RulesTake, SERVICE_ACCOUNT, Shares, Text, VERSION, in_cluster,
};
pub use pace::{Pace, SAY_AGAIN};
pub use session::{Dial, MAX_MESSAGE_BYTES, dial_plainly};
pub use settings::{ETCD, Login, MAX_ENDPOINTS, Settings};
pub use sharing::{LONGEST_PERIOD, Sharer, Sharing};
pub use status::{MAX_ERROR_BYTES, STATUS_TTL, Status, Verdict};

#[cfg(test)]
mod tests;
