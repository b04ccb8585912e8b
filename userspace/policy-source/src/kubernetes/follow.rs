//! An agent's part: it follows policies and the pods of its node, and says what became of each policy.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, watch},
    time,
};

use super::{
    KubernetesSettings, MAX_PODS, Pods,
    collection::{Collection, Kept},
    objects::{self, Kind, Policy, PolicyFile, Read, Text},
    pods,
    session::Session,
    status,
};
use crate::{Dial, Failure, Fragments, MAX_OBJECTS, News, Pace, Verdict};

/// Events that come within this time of each other are one change.
const SETTLE: Duration = Duration::from_millis(20);

/// The longest time by which what an agent says is put off, by chance: the agents of 1,000 nodes say then 500 things a second.
const SPREAD: Duration = Duration::from_secs(2);

/// Up to so many policies of a kind are read; beyond, the last names of the namespace that has the most are not kept.
const MOST_READ: usize = 2 * MAX_OBJECTS;

/// Follows what is in a cluster.
pub struct KubernetesFollower {
    /// Where the API server is.
    pub settings: Arc<KubernetesSettings>,
    /// The agent's version.
    pub agent: String,
    /// The times.
    pub pace: Pace,
    /// The version of the last policy that was in force: an API server that is behind it is not believed. 0: there was none.
    pub since: i64,
    /// How connections are made.
    pub dial: Dial,
    /// Writes a policy as a file.
    pub text: Text,
    /// Where policies are offered. Only the last one counts.
    pub offers: watch::Sender<Option<Arc<Fragments>>>,
    /// Verdicts on them.
    pub verdicts: watch::Receiver<Option<Verdict>>,
    /// The pods of the node.
    pub pods: watch::Sender<Arc<Pods>>,
    /// The one that hears news.
    pub tell: Box<dyn Fn(News<'_>) + Send + Sync>,
}

/// The versions that were seen last, also in sessions before.
#[derive(Default)]
struct Seen {
    cluster: String,
    namespaced: String,
    pods: String,
}

/// Policies that have been listed by now.
#[derive(Default)]
struct Listed {
    cluster: Option<Kept<Policy>>,
    namespaced: Option<Kept<Policy>>,
}

impl KubernetesFollower {
    /// Follows for ever.
    pub async fn run(mut self) -> Infallible {
        let mut failures = 0;
        let since = match self.since {
            0 => String::new(),
            since => since.to_string(),
        };
        let mut seen = Seen {
            cluster: since.clone(),
            namespaced: since,
            pods: String::new(),
        };
        loop {
            let began = Instant::now();
            let failure = match self.session(&mut seen).await {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            // One that ends soon is no success.
            if began.elapsed() > self.pace.longest_wait {
                failures = 0;
            }
            (self.tell)(News::Failed(&failure));
            failures += 1;
            time::sleep(self.pace.wait(failures, 1)).await;
        }
    }

    async fn session(&mut self, seen: &mut Seen) -> Result<Infallible, Failure> {
        let session = Session::open(&self.settings, &self.dial, &self.pace).await?;
        let listed = Mutex::new(Listed::default());
        let news = Notify::new();
        let is_news = |put: &dyn Fn(&mut Listed)| {
            put(&mut listed.lock().unwrap_or_else(PoisonError::into_inner));
            news.notify_one();
        };
        let (tell, pods) = (&self.tell, &self.pods);
        // Until all policies are listed, a server that is there says nothing of them.
        let is_in_step = AtomicBool::new(false);
        let heard = || {
            if is_in_step.load(Relaxed) {
                tell(News::Heard);
            }
        };
        let cluster = policies(Kind::Cluster, &self.text);
        let cluster = cluster.follow(
            &session,
            &mut seen.cluster,
            |all| is_news(&|listed| listed.cluster = Some(all.clone())),
            heard,
        );
        let namespaced = policies(Kind::Namespaced, &self.text);
        let namespaced = namespaced.follow(
            &session,
            &mut seen.namespaced,
            |all| is_news(&|listed| listed.namespaced = Some(all.clone())),
            heard,
        );
        let of_node = Collection {
            path: "/api/v1/pods".to_owned(),
            query: format!("&fieldSelector=spec.nodeName%3D{}", self.settings.node),
            most: MAX_PODS,
            keep: Box::new(pods::pod),
        };
        let of_node = of_node.follow(
            &session,
            &mut seen.pods,
            |all| {
                let now = pods::facts(all);
                pods.send_if_modified(|known| {
                    let is_new = **known != now;
                    if is_new {
                        *known = Arc::new(now);
                    }
                    is_new
                });
            },
            // Pods are no policies.
            || (),
        );
        let reads = watch::Sender::new(Read::default());
        let offers = &self.offers;
        let offering = async {
            loop {
                news.notified().await;
                time::sleep(SETTLE).await;
                let read = {
                    let listed = listed.lock().unwrap_or_else(PoisonError::into_inner);
                    match (&listed.cluster, &listed.namespaced) {
                        (Some(cluster), Some(namespaced)) => objects::read(cluster, namespaced),
                        // Of half a policy nothing is made.
                        _ => continue,
                    }
                };
                let fragments = Arc::new(read.fragments.clone());
                reads.send_replace(read);
                offers.send_replace(Some(fragments));
                is_in_step.store(true, Relaxed);
                tell(News::InStep);
            }
        };
        let verdicts = &mut self.verdicts;
        // One that came before this session is told again.
        verdicts.mark_changed();
        let acknowledging = acknowledge(
            &session,
            &self.settings,
            &self.agent,
            &reads,
            verdicts,
            self.pace,
        );
        // The connection has answered pings for as long as it is there.
        let alive = async {
            loop {
                time::sleep(self.pace.probe).await;
                heard();
            }
        };
        tokio::select! {
            ended = cluster => ended,
            ended = namespaced => ended,
            ended = of_node => ended,
            never = acknowledging => match never {},
            never = offering => never,
            never = alive => never,
        }
    }
}

impl KubernetesSettings {
    /// Counts the policies that there are.
    ///
    /// # Errors
    /// The API server does not answer, or refuses.
    pub async fn count(&self, dial: &Dial, pace: &Pace) -> Result<usize, Failure> {
        let session = Session::open(&Arc::new(self.clone()), dial, pace).await?;
        let mut count = 0;
        for kind in [Kind::Cluster, Kind::Namespaced] {
            let text: Text = Box::new(|_| Ok(PolicyFile::default()));
            count += policies(kind, &text).list_once(&session).await?.len();
        }
        Ok(count)
    }
}

/// Says what became of policies, after each verdict and for ever; the same as last time only after a while.
async fn acknowledge(
    session: &Session,
    settings: &KubernetesSettings,
    agent: &str,
    reads: &watch::Sender<Read>,
    verdicts: &mut watch::Receiver<Option<Verdict>>,
    pace: Pace,
) -> Infallible {
    let next = || time::Instant::now() + pace.again();
    let (mut last, mut again) = (None, next());
    loop {
        match time::timeout_at(again, verdicts.changed()).await {
            Ok(Ok(())) => {}
            // The agent ends.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => (last, again) = (None, next()),
        }
        time::sleep(SPREAD.mul_f64(fastrand::f64())).await;
        let verdict = verdicts.borrow_and_update().clone();
        let Some(verdict) = verdict else {
            continue;
        };
        let said = status::said(settings, agent, &reads.borrow(), &verdict);
        // Without a verdict on what was read last there is one to come.
        let Some((path, said)) = said else {
            continue;
        };
        if last.as_ref() == Some(&said) {
            continue;
        }
        match session.apply(&path, &said).await {
            Ok(()) => (last, again) = (Some(said), next()),
            // Policies are followed all the same. A connection that is gone ends the session by itself.
            Err(failure) => {
                tracing::warn!(
                    "cannot say in Kubernetes what became of policies, and will try again: {failure}"
                );
                time::sleep(pace.longest_wait).await;
                verdicts.mark_changed();
            }
        }
    }
}

fn policies(kind: Kind, text: &Text) -> Collection<'_, Policy> {
    Collection {
        path: kind.path(),
        query: String::new(),
        most: MOST_READ,
        keep: Box::new(move |metadata, object| objects::policy(kind, metadata, object, text)),
    }
}

#[cfg(test)]
mod tests;
