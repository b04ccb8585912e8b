//! The count: on how many nodes each policy is in force, written into the policies' own status. One process of a cluster counts
//! what the agents of all nodes say (`UnderpassNode`).
//!
//! A status is an object's, and each change of an object goes to every agent. So a status is written soon after its policy has changed,
//! and the less often, the longer that is ago ([`Due`]); and never more than [`MAX_STATUS_WRITES`] of all of them in a second.

use std::{
    collections::{BTreeMap, HashSet},
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{self, Instant, MissedTickBehavior};

use super::{
    GROUP, KubernetesSettings, VERSION,
    collection::{Collection, Kept, Metadata},
    conditions::{Status, Tally},
    objects::Kind,
    session::Session,
};
use crate::{Dial, Failure, MAX_OBJECTS, News, Pace, status::cut};

/// Nodes that are counted: Kubernetes is made for 5,000.
pub const MAX_NODES: usize = 8192;

/// Policies of a kind that are counted: as many as agents read.
const MAX_POLICIES: usize = 2 * MAX_OBJECTS;

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Statuses that are written in one look. Each goes to every agent of the cluster.
const MAX_STATUS_WRITES: usize = 2;

/// The time from a change of a policy to its status: agents answer within two seconds, those that are busy later.
const SOONEST: Duration = Duration::from_secs(4);

/// The time between two statuses of a policy that has not changed for long.
const LATEST: Duration = Duration::from_secs(300);

/// Counts for a cluster.
pub struct KubernetesCounter {
    /// Where the API server is.
    pub settings: Arc<KubernetesSettings>,
    /// The namespace of the agents, in which they say what they have in force.
    pub namespace: String,
    /// The DaemonSet of the agents, which knows on how many nodes there should be one.
    pub daemon_set: String,
    /// The times.
    pub pace: Pace,
    /// How connections are made.
    pub dial: Dial,
    /// The one that hears news.
    pub tell: Box<dyn Fn(News<'_>) + Send + Sync>,
}

/// A text that many nodes say.
type Said = Arc<str>;

/// The part of what a node says that is counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Node {
    in_force: Vec<(Said, i64)>,
    refused: Vec<(Said, i64, Said)>,
}

/// A policy, and its status as it stands there.
#[derive(Debug, PartialEq)]
struct Policy {
    uid: String,
    generation: i64,
    status: Status,
}

#[derive(Default, Deserialize)]
struct NodeBody {
    #[serde(default)]
    state: NodeState,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeState {
    #[serde(default)]
    in_force: BTreeMap<String, i64>,
    #[serde(default)]
    refused: BTreeMap<String, Refused>,
}

#[derive(Default, Deserialize)]
struct Refused {
    #[serde(default)]
    generation: i64,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct PolicyBody<'b> {
    #[serde(default, borrow)]
    status: Option<&'b RawValue>,
}

#[derive(Default, Deserialize)]
struct DaemonSet {
    #[serde(default)]
    status: DaemonSetStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DaemonSetStatus {
    #[serde(default)]
    desired_number_scheduled: usize,
}

/// Objects that are listed by now. None: they are not yet.
#[derive(Default)]
struct Listed {
    cluster: Option<Kept<Policy>>,
    namespaced: Option<Kept<Policy>>,
    nodes: Option<Kept<Node>>,
    wanted: Option<usize>,
}

/// The time at which the status of a policy is to be written.
#[derive(Clone, Copy, Debug)]
struct Due {
    generation: i64,
    changed: Instant,
    written: Option<Instant>,
}

impl Due {
    fn at(&self) -> Instant {
        match self.written {
            None => self.changed + SOONEST,
            Some(written) => written + (written - self.changed).clamp(SOONEST, LATEST),
        }
    }
}

/// The kind, namespace and name of a policy.
type Name = (&'static str, String, String);

impl KubernetesCounter {
    /// Counts for ever.
    pub async fn run(self) -> Infallible {
        let mut failures = 0;
        let mut dues = BTreeMap::new();
        loop {
            let began = Instant::now();
            let failure = match self.session(&mut dues).await {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            if began.elapsed() > self.pace.longest_wait {
                failures = 0;
            }
            (self.tell)(News::Failed(&failure));
            failures += 1;
            time::sleep(self.pace.wait(failures, 1)).await;
        }
    }

    async fn session(&self, dues: &mut BTreeMap<Name, Due>) -> Result<Infallible, Failure> {
        let session = Session::open(&self.settings, &self.dial, &self.pace).await?;
        let listed = Mutex::new(Listed::default());
        let put = |put: &dyn Fn(&mut Listed)| {
            put(&mut listed.lock().unwrap_or_else(PoisonError::into_inner));
        };
        let texts = Mutex::default();
        let (mut seen, ignored) = (<[String; 4]>::default(), || ());
        let [of_cluster, of_namespaced, of_nodes, of_set] = &mut seen;
        let (cluster, namespaced) = (policies(Kind::Cluster), policies(Kind::Namespaced));
        let namespace = &self.namespace;
        let nodes = Collection {
            path: format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/underpassnodes"),
            query: String::new(),
            most: MAX_NODES,
            keep: Box::new(|_, object| node(object, &texts)),
        };
        let set = Collection {
            path: format!("/apis/apps/v1/namespaces/{namespace}/daemonsets"),
            query: format!("&fieldSelector=metadata.name%3D{}", self.daemon_set),
            most: 1,
            keep: Box::new(|_, object| {
                let set: DaemonSet = serde_json::from_str(object.get()).unwrap_or_default();
                (set.status.desired_number_scheduled, 0)
            }),
        };
        let cluster = cluster.follow(
            &session,
            of_cluster,
            |all| put(&|listed| listed.cluster = Some(all.clone())),
            ignored,
        );
        let namespaced = namespaced.follow(
            &session,
            of_namespaced,
            |all| put(&|listed| listed.namespaced = Some(all.clone())),
            ignored,
        );
        let nodes = nodes.follow(
            &session,
            of_nodes,
            |all| put(&|listed| listed.nodes = Some(all.clone())),
            ignored,
        );
        let set = set.follow(
            &session,
            of_set,
            |all| {
                let wanted = all.iter().map(|(_, _, wanted)| *wanted).sum();
                put(&|listed| listed.wanted = Some(wanted));
            },
            ignored,
        );
        let counting = async {
            let mut looks = time::interval(LOOK);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut is_in_step = false;
            loop {
                looks.tick().await;
                let statuses = {
                    let listed = listed.lock().unwrap_or_else(PoisonError::into_inner);
                    count(&listed, dues, Instant::now())
                };
                let Some(statuses) = statuses else {
                    continue;
                };
                if !is_in_step {
                    is_in_step = true;
                    (self.tell)(News::InStep);
                }
                forget_unsaid(&texts);
                for (name, uid, status) in statuses {
                    self.write(&session, &name, &uid, &status).await;
                    if let Some(due) = dues.get_mut(&name) {
                        due.written = Some(Instant::now());
                    }
                }
            }
        };
        tokio::select! {
            ended = cluster => ended,
            ended = namespaced => ended,
            ended = nodes => ended,
            ended = set => ended,
            never = counting => never,
        }
    }

    async fn write(&self, session: &Session, name: &Name, uid: &str, status: &Status) {
        let (resource, namespace, name) = name;
        let (kind, at) = match *resource == Kind::Cluster.resource() {
            true => (Kind::Cluster, String::new()),
            false => (Kind::Namespaced, format!("/namespaces/{namespace}")),
        };
        let path = format!("/apis/{GROUP}/{VERSION}{at}/{resource}/{name}/status");
        // Of another one by the same name this is not the status.
        let mut metadata = serde_json::json!({"name": name, "uid": uid});
        if let (Kind::Namespaced, Some(metadata)) = (kind, metadata.as_object_mut()) {
            metadata.insert("namespace".to_owned(), namespace.as_str().into());
        }
        let object = serde_json::json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": kind.as_str(),
            "metadata": metadata,
            "status": status,
        });
        // A policy that is gone goes from what is listed, and a connection that is gone ends the session by itself.
        if let Err(failure) = session.apply(&path, &object).await {
            (self.tell)(News::Failed(&failure));
        }
    }
}

fn policies(kind: Kind) -> Collection<'static, Policy> {
    Collection {
        path: kind.path(),
        query: String::new(),
        most: MAX_POLICIES,
        keep: Box::new(|metadata, object| (policy(metadata, object), 0)),
    }
}

fn policy(metadata: &Metadata, object: &RawValue) -> Policy {
    let body: Option<PolicyBody<'_>> = serde_json::from_str(object.get()).ok();
    let status = body.and_then(|body| body.status);
    let status = status.and_then(|status| serde_json::from_str(status.get()).ok());
    Policy {
        uid: metadata.uid.clone(),
        generation: metadata.generation,
        status: status.unwrap_or_default(),
    }
}

/// Makes of what a node says what is kept of it. Nodes say much the same, so each text is kept once.
fn node(object: &RawValue, texts: &Mutex<HashSet<Said>>) -> (Node, usize) {
    let body: NodeBody = serde_json::from_str(object.get()).unwrap_or_default();
    let mut texts = texts.lock().unwrap_or_else(PoisonError::into_inner);
    let mut said = |text: &str| match texts.get(text) {
        Some(said) => said.clone(),
        None => {
            let said = Said::from(text);
            texts.insert(said.clone());
            said
        }
    };
    let in_force = body.state.in_force.iter().take(MAX_OBJECTS);
    let in_force = in_force.map(|(name, generation)| (said(&cut(name)), *generation));
    let in_force = in_force.collect::<Vec<_>>();
    let refused = body.state.refused.iter().take(2 * MAX_POLICIES);
    let refused = refused.map(|(name, refused)| {
        let why = said(&cut(&refused.message));
        (said(&cut(name)), refused.generation, why)
    });
    let refused = refused.collect::<Vec<_>>();
    let bytes = 32 * (in_force.len() + refused.len());
    (Node { in_force, refused }, bytes)
}

/// Forgets the texts that nobody says any more.
fn forget_unsaid(texts: &Mutex<HashSet<Said>>) {
    let mut texts = texts.lock().unwrap_or_else(PoisonError::into_inner);
    texts.retain(|text| Arc::strong_count(text) > 1);
}

/// Counts, and returns the statuses that are to be written now. None: not all is listed yet.
fn count(
    listed: &Listed,
    dues: &mut BTreeMap<Name, Due>,
    now: Instant,
) -> Option<Vec<(Name, String, Status)>> {
    let (cluster, namespaced) = (listed.cluster.as_ref()?, listed.namespaced.as_ref()?);
    let (nodes, wanted) = (listed.nodes.as_ref()?, listed.wanted?);
    let of = |kind: Kind, kept: &'_ Kept<Policy>| -> Vec<(Name, String)> {
        let names = kept.iter().map(|(namespace, name, _)| {
            let at = (kind.resource(), namespace.to_owned(), name.to_owned());
            (at, kind.name_of(namespace, name))
        });
        names.collect()
    };
    let clusters = of(Kind::Cluster, cluster);
    let others = of(Kind::Namespaced, namespaced);
    let names = clusters.into_iter().chain(others);
    let policies = cluster.iter().chain(namespaced.iter());
    let mut counted: BTreeMap<String, (Name, &Policy, Tally<'_>)> = names
        .zip(policies)
        .map(|((at, name), (_, _, policy))| (name, (at, policy, Tally::default())))
        .collect();
    for (_, node, said) in nodes.iter() {
        for (name, generation) in &said.in_force {
            if let Some((_, policy, tally)) = counted.get_mut(&**name)
                && policy.generation == *generation
            {
                tally.in_force += 1;
            }
        }
        for (name, generation, why) in &said.refused {
            if let Some((_, policy, tally)) = counted.get_mut(&**name)
                && policy.generation == *generation
            {
                tally.refused += 1;
                tally.first.get_or_insert((node, &**why));
            }
        }
    }
    let all = wanted.max(nodes.len());
    let mut ready = Vec::new();
    let mut known = BTreeMap::new();
    for (at, policy, tally) in counted.into_values() {
        let generation = policy.generation;
        let new = Due {
            generation,
            changed: now,
            written: None,
        };
        let due = dues.remove(&at).unwrap_or(new);
        let due = match due.generation == generation {
            true => due,
            false => new,
        };
        let status = tally.status(generation, all, &policy.status);
        if status != policy.status && due.at() <= now {
            ready.push((due.at(), at.clone(), policy.uid.clone(), status));
        }
        known.insert(at, due);
    }
    *dues = known;
    ready.sort_by_key(|(due, ..)| *due);
    ready.truncate(MAX_STATUS_WRITES);
    let ready = ready
        .into_iter()
        .map(|(_, at, uid, status)| (at, uid, status));
    Some(ready.collect())
}

#[cfg(test)]
mod tests;
