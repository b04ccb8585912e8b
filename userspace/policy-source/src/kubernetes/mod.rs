//! A policy that is kept in Kubernetes, and the pods of the agent's own node.
//!
//! - `settings`: where the API server is, and how it is asked; `session`: a connection to it.
//! - `collection`: objects of one kind, listed once and then watched.
//! - `objects`: policies as files, of which each has its verdict; `shares`: how much of everything namespaces may have.
//! - `pods`: what is known of a pod.
//! - `follow`: an agent's part; `status`: what it says of each policy.
//! - `count`: what all agents say, added up; `conditions`: the policies' own status.
//!
//! **Invariant**: what comes from the API server is bounded before it is kept ([`MAX_OBJECTS`](crate::MAX_OBJECTS), [`MAX_OBJECTS_BYTES`](crate::MAX_OBJECTS_BYTES),
//! [`MAX_LINE_BYTES`], [`MAX_PODS`]), and nothing here decides what a rule means.

mod collection;
mod conditions;
mod count;
mod follow;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod objects;
mod pods;
mod session;
mod settings;
mod shares;
mod status;

pub use collection::MAX_LINE_BYTES;
pub use count::{KubernetesCounter, MAX_NODES};
pub use follow::KubernetesFollower;
pub use objects::{GROUP, Kind, PolicyFile, PolicyObject, Text, VERSION};
pub use pods::{MAX_PODS, PodFacts, Pods};
pub use settings::{API_SERVER, KubernetesSettings, OwnPod, SERVICE_ACCOUNT, in_cluster};
pub use shares::{RulesTake, Shares};
