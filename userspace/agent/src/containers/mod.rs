//! Containers' names: runtimes are asked for them while a rule wants to know.
//!
//! - `runtime.rs`: one runtime: its containers, and their processes.
//! - `docker.rs`, `cri.rs`: the protocols.
//! - `http.rs`: bounded requests over a unix socket.
//! - `failure.rs`: the reasons why a runtime has not answered.
//! - `metrics.rs`: the metrics.
//!
//! **Invariant**: a runtime's answer decides which cgroups a rule matches, and by which names records call them; no
//! answer, or nonsense, changes nothing ([decision 11](docs/decisions/0011-namespaces.md)).

mod book;
mod cri;
mod docker;
mod failure;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod http;
mod metrics;
mod runtime;
mod socket;

use std::{sync::Arc, time::Duration};

use policy::Policy;
use policy_source::Pods;
use steps::containers::Containers;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{self, Instant},
};

pub use book::Book;
pub use failure::Failure;
pub use metrics::ContainerMetrics;
pub use runtime::{MAX_CONTAINERS, Runtime};
pub use socket::{Socket, Speaks, default_sockets};

/// Runtimes that are asked. A host has one or two.
pub const MAX_RUNTIMES: usize = 8;

/// A container that a runtime has started without telling is known after this at the latest. As often
/// as a kubelet asks.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// However much a runtime has to tell.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Every runtime, asked once and at the same time.
///
/// Each is given [`runtime::ASK_TIMEOUT`].
pub async fn ask_all(sockets: &[Socket]) -> Vec<(Runtime, Result<(), Failure>)> {
    let mut asking = JoinSet::new();
    for (n, socket) in sockets.iter().cloned().enumerate() {
        asking.spawn(async move {
            let mut runtime = Runtime::new(socket);
            let asked = runtime.ask().await;
            (n, runtime, asked)
        });
    }
    let mut asked = asking.join_all().await;
    asked.sort_by_key(|(n, ..)| *n);
    asked.into_iter().map(|(_, r, asked)| (r, asked)).collect()
}

/// The names that records have.
#[derive(Clone, Debug)]
pub struct Naming {
    /// Where the containers that run are noted.
    pub containers: Arc<Containers>,
    /// The keys of the labels that records have.
    pub labels: Arc<[String]>,
    /// Whether runtimes are asked though no rule names a container.
    pub is_wanted: bool,
}

impl Naming {
    fn note(&self, book: &Book) {
        self.containers.run(book.running(), &self.labels);
    }
}

/// The runtimes of this host, and what they have said.
pub struct Watch {
    runtimes: Vec<Runtime>,
    naming: Naming,
    book: watch::Sender<Book>,
    metrics: ContainerMetrics,
}

impl Watch {
    /// Prepares for a policy that is about to be put into force: if it names containers, the
    /// runtimes have been asked on return.
    pub async fn new(
        sockets: &[Socket],
        policy: &mut Policy,
        naming: Naming,
        metrics: ContainerMetrics,
    ) -> Self {
        let mut runtimes = Vec::new();
        if policy.names_containers() {
            for (mut runtime, asked) in ask_all(sockets).await {
                runtime.note(&asked, &metrics);
                runtimes.push(runtime);
            }
        } else {
            runtimes.extend(sockets.iter().cloned().map(Runtime::new));
        }
        let book = Book(runtimes.iter().map(Runtime::page).collect());
        metrics.known(&book);
        metrics.left_out(policy.find_containers(book.running()));
        naming.note(&book);
        Self {
            runtimes,
            naming,
            book: watch::Sender::new(book),
            metrics,
        }
    }

    /// Returns the runtimes' containers from now on.
    pub fn book(&self) -> watch::Receiver<Book> {
        self.book.subscribe()
    }

    /// Asks for ever, while the policy in force names containers. `pods`: what an API server knows of them.
    pub async fn run(self, policy: watch::Receiver<Arc<Policy>>, pods: watch::Receiver<Arc<Pods>>) {
        let mut tasks = JoinSet::new();
        let Self {
            runtimes,
            naming,
            book,
            metrics,
        } = self;
        let book = Arc::new(book);
        for (n, runtime) in runtimes.into_iter().enumerate() {
            let (book, metrics) = (book.clone(), metrics.clone());
            tasks.spawn(tend(
                n,
                runtime,
                book,
                naming.clone(),
                metrics,
                policy.clone(),
                pods.clone(),
            ));
        }
        // Each runs for ever; with no runtime there is nothing to wait for.
        while tasks.join_next().await.is_some() {}
        std::future::pending().await
    }
}

/// Watches one runtime, so that none waits for another.
async fn tend(
    n: usize,
    mut runtime: Runtime,
    book: Arc<watch::Sender<Book>>,
    naming: Naming,
    metrics: ContainerMetrics,
    mut policy: watch::Receiver<Arc<Policy>>,
    mut pods: watch::Receiver<Arc<Pods>>,
) {
    let news = Arc::new(Notify::new());
    let mut listening = JoinSet::new();
    loop {
        // The agent is about to end when there is no policy any more.
        let is_wanted = |policy: &Arc<Policy>| naming.is_wanted || policy.names_containers();
        if policy.wait_for(is_wanted).await.is_err() {
            return;
        }
        let asked_at = Instant::now();
        let asked = runtime.ask().await;
        runtime.note(&asked, &metrics);
        while listening.try_join_next().is_some() {}
        if asked.is_ok() && listening.is_empty() {
            listening.spawn(runtime.listen(news.clone()));
        }
        let mut now = runtime.page();
        now.learn(&pods.borrow_and_update());
        book.send_if_modified(|book| match book.0.get_mut(n) {
            Some(page) if *page != now => {
                *page = now;
                naming.note(book);
                true
            }
            _ => false,
        });
        metrics.known(&book.borrow());
        time::sleep_until(asked_at + ASK_AGAIN_AFTER).await;
        let changed = async {
            tokio::select! {
                () = news.notified() => {}
                Ok(()) = pods.changed() => {}
            }
        };
        drop(time::timeout_at(asked_at + ASK_EVERY, changed).await);
    }
}

/// Explains to people why the containers that a policy names are unknown: one line for each runtime
/// that does not answer, when none does.
pub fn doubts(policy: &Policy, asked: &[(Runtime, Result<(), Failure>)]) -> Vec<String> {
    if asked.iter().any(|(_, result)| result.is_ok()) {
        return Vec::new();
    }
    let reasons = asked.iter().map(|(runtime, result)| {
        let reason = result.as_ref().err().map(ToString::to_string);
        format!(
            "{}: {}",
            runtime.path().display(),
            reason.unwrap_or_default()
        )
    });
    let reasons: Vec<String> = reasons.collect();
    let rules = policy
        .rules
        .iter()
        .filter(|rule| !rule.containers.is_empty());
    rules
        .map(|rule| {
            format!(
                "rule {}: it names containers and holds for nobody, because no container runtime \
                 answers here ({})",
                rule.name,
                reasons.join("; ")
            )
        })
        .collect()
}
