//! The count: on how many nodes each policy is in force, written into the policies' own status. One process of a cluster counts
//! what the agents of all nodes say (`UnderpassNode`).
//!
//! A status is an object's, and each change of an object goes to every agent. So a status is written soon after its policy has changed,
//! and the less often, the longer that is ago ([`Due`]); and never more than [`MAX_STATUS_WRITES`] of all of them in a second.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
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

/// Policies that a node may speak of: of both kinds, as many as its agent reads. For each, eight bytes are kept.
const MAX_ANSWERS: usize = 2 * MAX_POLICIES;

/// Bytes of what all nodes say, beside the answers themselves.
const MAX_ANSWERS_BYTES: usize = 128 << 20;

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

/// The answer of a node on a policy. Many nodes say the same.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Answer {
    policy: String,
    generation: i64,
    /// Why it is refused. None: it is in force.
    refused: Option<String>,
}

/// All answers that any node says, each once.
type Answers = Mutex<HashSet<Arc<Answer>>>;

/// The part of what a node says that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node(Vec<Arc<Answer>>);

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

impl Listed {
    /// Whether there are more nodes than are counted.
    fn has_uncounted_nodes(&self) -> bool {
        let nodes = self.nodes.as_ref();
        nodes.is_some_and(|nodes| !nodes.cut.is_empty())
    }
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
        let answers = Answers::default();
        let (mut seen, ignored) = (<[String; 4]>::default(), || ());
        let [of_cluster, of_namespaced, of_nodes, of_set] = &mut seen;
        let (cluster, namespaced) = (policies(Kind::Cluster), policies(Kind::Namespaced));
        let namespace = &self.namespace;
        let nodes = Collection {
            path: format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/underpassnodes"),
            query: String::new(),
            most: MAX_NODES,
            // They are bounded by their number, so that all have room whatever they say.
            keep: Box::new(|_, object| (node(object, &answers), 0)),
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
            let (mut is_in_step, mut were_uncounted) = (false, false);
            loop {
                looks.tick().await;
                let (statuses, are_uncounted) = {
                    let listed = listed.lock().unwrap_or_else(PoisonError::into_inner);
                    let statuses = count(&listed, dues, Instant::now());
                    (statuses, listed.has_uncounted_nodes())
                };
                // There are so many until all are listed again, so this is said rarely.
                if are_uncounted && !were_uncounted {
                    let why =
                        format!("there are more than {MAX_NODES} nodes, and no more are counted");
                    (self.tell)(News::Failed(&Failure::TooLarge(why)));
                }
                were_uncounted = are_uncounted;
                let Some(statuses) = statuses else {
                    continue;
                };
                if !is_in_step {
                    is_in_step = true;
                    (self.tell)(News::InStep);
                }
                forget_unsaid(&answers);
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

/// Makes of what a node says what is kept of it. Nodes say much the same, so each answer is kept once.
fn node(object: &RawValue, answers: &Answers) -> Node {
    const { assert!(MAX_NODES * MAX_ANSWERS * size_of::<Arc<Answer>>() <= MAX_ANSWERS_BYTES) };
    let body: NodeBody = serde_json::from_str(object.get()).unwrap_or_default();
    let NodeState { in_force, refused } = body.state;
    let in_force = in_force.iter().map(|(policy, generation)| Answer {
        policy: cut(policy),
        generation: *generation,
        refused: None,
    });
    let refused = refused.iter().map(|(policy, refused)| Answer {
        policy: cut(policy),
        generation: refused.generation,
        refused: Some(cut(&refused.message)),
    });
    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    let all = in_force.chain(refused).take(MAX_ANSWERS);
    let all = all.map(|answer| match answers.get(&answer) {
        Some(said) => said.clone(),
        None => {
            let said = Arc::new(answer);
            answers.insert(said.clone());
            said
        }
    });
    Node(all.collect())
}

/// Forgets the answers that nobody says any more.
fn forget_unsaid(answers: &Answers) {
    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    answers.retain(|answer| Arc::strong_count(answer) > 1);
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
    // Each answer is compared once, however many nodes give it: how many do, and the first of them.
    let mut answers = HashMap::<*const Answer, (&Answer, usize, &str)>::new();
    for (_, node, said) in nodes.iter() {
        for answer in &said.0 {
            let known = answers.entry(Arc::as_ptr(answer));
            known.or_insert((answer.as_ref(), 0, node)).1 += 1;
        }
    }
    for (answer, sayers, first) in answers.into_values() {
        let Some((_, policy, tally)) = counted.get_mut(&answer.policy) else {
            continue;
        };
        match &answer.refused {
            _ if policy.generation != answer.generation => {}
            None => tally.in_force += sayers,
            Some(why) => {
                tally.refused += sayers;
                if tally.first.is_none_or(|(known, _)| first < known) {
                    tally.first = Some((first, why.as_str()));
                }
            }
        }
    }
    let bound = listed.has_uncounted_nodes().then_some(MAX_NODES);
    // There is one at least beyond those that are counted.
    let all = wanted.max(nodes.len() + usize::from(bound.is_some()));
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
        let status = tally.status(generation, all, bound, &policy.status);
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
