//! [`Follower`]: looks names up again, each on a task of its own.

use std::{collections::HashMap, sync::Arc, time::Duration};

use policy::Name;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, timeout_at},
};

use crate::{
    Book, ClusterSettings, Dial, Failure, NameMetrics, Resolver, State, cluster::Control,
    resolver::LookedUp,
};

/// Names in one policy, each of which is looked up at least once a minute. They bound look-ups at the same time, too: names wait for
/// no turn, so that those of a zone whose servers do not answer are not in the way of others. While a policy waits for its names,
/// there are those of two.
pub const MAX_NAMES: usize = 128;

/// A look-up has to end by then, however many servers, domains and hosts there are to try.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(20);

/// Time that is left of a look-up when it stops to wait for hosts of a service: those that have answered are put together.
const TO_GATHER: Duration = Duration::from_millis(250);

/// The start waits for all names together for so long: a policy in which they are known holds from the first connection on.
const AT_START: Duration = Duration::from_secs(3);

/// A task that has ended, which only a mistake in this crate makes it do, is begun again after this.
const BEGIN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The names that are to be followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Each once.
    pub names: Vec<Name>,
    /// The clusters of the policy file, of which names may be some.
    pub clusters: Vec<Arc<ClusterSettings>>,
}

impl Wanted {
    fn cluster(&self, name: &Name) -> Option<Arc<ClusterSettings>> {
        let mut clusters = self.clusters.iter();
        let found =
            clusters.find(|cluster| matches!(name, Name::Cluster(name) if *name == cluster.name));
        found.cloned()
    }
}

/// Follows names.
pub struct Follower {
    resolver: Resolver,
    book: watch::Sender<Book>,
    metrics: NameMetrics,
}

/// Resources that the tasks have in common.
struct Common {
    resolver: Resolver,
    book: watch::Sender<Book>,
    metrics: NameMetrics,
}

impl Follower {
    /// Looks up all names once, for as long as a start may take.
    pub async fn begin(wanted: &Wanted, resolver: Resolver, metrics: NameMetrics) -> Self {
        let book = watch::Sender::new(Book::default());
        let found = look_up_all(wanted, &resolver, AT_START).await;
        let now = Instant::now();
        book.send_modify(|book| {
            for (name, result) in found {
                note(book, &name, result, now, &metrics);
            }
            metrics.show(book);
        });
        Self {
            resolver,
            book,
            metrics,
        }
    }

    /// Returns the book, as it is from now on.
    pub fn book(&self) -> watch::Receiver<Book> {
        self.book.subscribe()
    }

    /// Follows for ever. `dial` makes connections that no hook of the agent changes.
    pub async fn run(self, dial: Dial, mut wanted: watch::Receiver<Arc<Wanted>>) {
        let common = Arc::new(Common {
            resolver: self.resolver.dialling_by(dial),
            book: self.book,
            metrics: self.metrics,
        });
        let mut tasks = JoinSet::new();
        let mut running = HashMap::<Name, (Option<Arc<ClusterSettings>>, AbortHandle)>::new();
        loop {
            let now = wanted.borrow_and_update().clone();
            let names = &now.names;
            running.retain(|name, (cluster, task)| {
                let stays =
                    names.contains(name) && now.cluster(name) == *cluster && !task.is_finished();
                if !stays {
                    task.abort();
                }
                stays
            });
            common.forget_others(names);
            for name in names {
                let start = || {
                    let cluster = now.cluster(name);
                    let task = follow(name.clone(), cluster.clone(), common.clone());
                    (cluster, tasks.spawn(task))
                };
                running.entry(name.clone()).or_insert_with(start);
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() {
                    // The agent ends.
                    return;
                },
                Some(ended) = tasks.join_next() => if let Err(error) = ended && error.is_panic() {
                    tracing::error!("following a name failed: {error}");
                    sleep(BEGIN_AGAIN_AFTER).await;
                },
            }
        }
    }
}

impl Common {
    /// Forgets names that no rule has any more. Nobody asks for them, so nobody is told.
    fn forget_others(&self, names: &[Name]) {
        self.book.send_if_modified(|book| {
            book.keep(|name| names.contains(name));
            self.metrics.show(book);
            false
        });
    }
}

/// Follows a name for ever, whatever becomes of the others.
async fn follow(name: Name, cluster: Option<Arc<ClusterSettings>>, common: Arc<Common>) {
    let mut control = Control::default();
    // What is known of a cluster from the start came by a connection that is gone.
    let mut waits = cluster.is_none();
    loop {
        let next = common.book.borrow().next(&name);
        if let Some(next) = next.filter(|_| waits) {
            control.wait(next).await;
        }
        waits = true;
        let asked = (&name, cluster.as_deref());
        let result = look_up(asked, &mut control, &common.resolver, LOOK_UP_WITHIN).await;
        let now = Instant::now();
        common.book.send_if_modified(|book| {
            let has_changed = note(book, &name, result, now, &common.metrics);
            common.metrics.show(book);
            has_changed
        });
    }
}

/// Looks up names once, all at the same time.
pub async fn look_up_once(wanted: &Wanted, resolver: &Resolver) -> Book {
    let mut book = Book::default();
    let now = Instant::now();
    for (name, result) in look_up_all(wanted, resolver, AT_START).await {
        book.known(&name, now).looked_up(result, now, 0.0);
    }
    book
}

async fn look_up_all(
    wanted: &Wanted,
    resolver: &Resolver,
    within: Duration,
) -> Vec<(Name, Result<LookedUp, Failure>)> {
    let mut asking = JoinSet::new();
    for name in wanted.names.iter().cloned() {
        let (resolver, cluster) = (resolver.at_start(), wanted.cluster(&name));
        asking.spawn(async move {
            let asked = (&name, cluster.as_deref());
            let result = look_up(asked, &mut Control::default(), &resolver, within).await;
            (name, result)
        });
    }
    asking.join_all().await
}

/// Looks up a name, or asks a cluster by its settings.
async fn look_up(
    (name, cluster): (&Name, Option<&ClusterSettings>),
    control: &mut Control,
    resolver: &Resolver,
    within: Duration,
) -> Result<LookedUp, Failure> {
    let until = Instant::now() + within;
    let looked_up = timeout_at(until, async {
        match name {
            Name::Host(domain) => resolver.host(domain).await,
            Name::Service(domain) => resolver.service(domain, until - TO_GATHER).await,
            Name::Cluster(name) => match cluster {
                Some(settings) => control.read(settings, resolver).await,
                None => Err(Failure::NoNode(format!("there is no [[cluster]] {name}"))),
            },
        }
    });
    looked_up.await.unwrap_or(Err(Failure::Late))
}

/// Notes a result, and says in the log what has changed by it. Returns whether the addresses are others now, or known for the first
/// time.
fn note(
    book: &mut Book,
    name: &Name,
    result: Result<LookedUp, Failure>,
    now: Instant,
    metrics: &NameMetrics,
) -> bool {
    metrics.looked_up(name, &result);
    let known = book.known(name, now);
    let (before, had) = (known.state(), known.addresses().count());
    let (was_told, was_answered) = (known.failure().is_some(), known.answered().is_some());
    let has_changed = known.looked_up(result, now, fastrand::f64());
    let (addresses, lingering) = (known.addresses().count(), known.lingering());
    match (known.state(), known.failure()) {
        (state, Some(why)) if state != before || !was_told => match state {
            State::Unknown => tracing::warn!(
                %name,
                "a name in a rule has never been resolved, the rule does not hold for its addresses: {why}"
            ),
            State::Absent => tracing::warn!(
                %name, addresses,
                "a name in a rule stands for nothing any more, its rules hold a while longer for the last addresses: {why}"
            ),
            _ => tracing::warn!(
                %name, addresses,
                "a name in a rule cannot be looked up, its rules hold for the last addresses: {why}"
            ),
        },
        (State::Known, None) if before != State::Known => {
            tracing::info!(%name, addresses, "a name in a rule is resolved");
        }
        _ if has_changed => {
            tracing::info!(%name, addresses, had, lingering, "a name in a rule has other addresses");
        }
        _ => {}
    }
    has_changed || !was_answered && known.answered().is_some()
}
