//! The fleet's policy: a thread follows it in etcd or in Kubernetes, and offers each change to whoever owns the policy
//! ([`crate::control`]).
//!
//! - `cache`: the last good policy on disk, for when the store is away at the start.
//! - `objects`: which policies of Kubernetes go into force.
//! - `metrics`: how old what is known is, and what became of it.
//! - `sharing`: limits that the hosts of the fleet share.
//!
//! **Invariant**: nothing of a flow waits for the store, and what is in force changes only by a policy that was checked whole.

mod cache;
mod metrics;
mod objects;
pub mod sharing;

use std::{io, path::Path, pin::Pin, sync::Arc, thread, time::Duration};

use dataplane::backends::Probe;
use policy_source::{Dial, Follower, Fragments, KubernetesFollower, News, Pace, Pods, Verdict};
use tokio::{runtime, sync::watch, task, time};

use self::objects::LOOK_AGAIN;
pub use self::{
    cache::read as cached,
    metrics::FleetMetrics,
    objects::{BESIDE, Choice, Halves, Refusal, Refusals, choose, for_status},
};
use crate::config::{Host, PolicySource, Store, file_of_object};

/// Threads that look names up: they block, and one is enough.
const LOOK_UPS: usize = 1;

/// Threads that write the cache: one write is under way at most.
const WRITES: usize = 1;

/// The time after which the log says that the cache is still being written: a disk takes hundredths of a second.
const SLOW_WRITE: Duration = Duration::from_secs(5);

/// The channels between the thread and the owner of the policy. In both, only the latest counts.
pub struct Channels {
    /// Policies that were read, to the owner.
    pub offers: watch::Sender<Option<Arc<Fragments>>>,
    /// Verdicts on them, from the owner.
    pub verdicts: watch::Sender<Option<Verdict>>,
    /// The pods of this node, where the store is Kubernetes.
    pub pods: watch::Sender<Arc<Pods>>,
}

impl Channels {
    /// Makes the channels. `offered`: a policy that is to be looked at, although the store was not asked yet.
    pub fn offering(offered: Option<Arc<Fragments>>) -> Self {
        Self {
            offers: watch::Sender::new(offered),
            verdicts: watch::Sender::new(None),
            pods: watch::Sender::new(Arc::default()),
        }
    }

    /// Returns the owner's end.
    pub fn offers(&self) -> watch::Receiver<Option<Arc<Fragments>>> {
        let mut offers = self.offers.subscribe();
        if offers.borrow().is_some() {
            offers.mark_changed();
        }
        offers
    }
}

/// The time after which what was refused is looked at again.
pub fn look_again_after() -> Duration {
    test_hooks::get().try_again.unwrap_or(LOOK_AGAIN)
}

/// Makes connections that no hook of this agent changes.
pub fn dial_by(probe: Probe) -> Dial {
    Arc::new(move |to| -> Pin<Box<dyn Future<Output = _> + Send>> {
        Box::pin(async move { probe.connect(to).await })
    })
}

/// Starts to follow, on a thread of its own.
///
/// # Errors
/// The system gives no thread, or no descriptors.
pub fn start(
    source: &PolicySource,
    host: &Host,
    dial: Dial,
    channels: &Channels,
    metrics: FleetMetrics,
    until: Until,
) -> io::Result<()> {
    metrics.begin();
    let told = metrics.clone();
    let name = source.store.name();
    let tell = Box::new(move |news: News<'_>| tell(name, &told, &news));
    let agent = env!("CARGO_PKG_VERSION").to_owned();
    let (offers, verdicts) = (channels.offers.clone(), channels.verdicts.subscribe());
    let following: Pin<Box<dyn Future<Output = _> + Send>> = match &source.store {
        Store::Etcd(settings) => Box::pin(
            Follower {
                settings: settings.clone(),
                host: host.name.clone(),
                agent,
                pace: Pace::default(),
                dial,
                offers,
                verdicts,
                tell,
            }
            .run(),
        ),
        Store::Kubernetes(settings) => Box::pin(
            KubernetesFollower {
                settings: Arc::new(settings.clone()),
                agent,
                pace: Pace::default(),
                since: since(source),
                dial,
                text: Box::new(file_of_object),
                offers,
                verdicts,
                pods: channels.pods.clone(),
                tell,
            }
            .run(),
        ),
    };
    let keeping = keep(source.clone(), channels.verdicts.subscribe(), metrics);
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(LOOK_UPS + WRITES)
        .build()?;
    let follow = move || {
        runtime.block_on(async {
            let following = async { tokio::join!(following, keeping) };
            tokio::select! {
                _ = following => {}
                () = over(until) => {}
            }
        });
    };
    thread::Builder::new().name("fleet".into()).spawn(follow)?;
    Ok(())
}

/// Ends when its sender is dropped: another agent speaks for this host from then on.
pub type Until = watch::Receiver<()>;

/// Waits for that.
async fn over(mut until: Until) {
    while until.changed().await.is_ok() {}
}

/// The version of what was in force last.
fn since(source: &PolicySource) -> i64 {
    let cached = cached(source).ok().flatten();
    cached.map_or(0, |cached| cached.revision)
}

fn tell(store: &str, metrics: &FleetMetrics, news: &News<'_>) {
    match news {
        News::InStep => {
            if metrics.in_step() {
                tracing::info!("the fleet's policy is followed in {store}");
            }
        }
        News::Heard => metrics.heard(),
        News::Failed(failure) => {
            let was = metrics.failed(failure.label());
            match was {
                true => tracing::warn!(
                    "the fleet's policy is not followed, the last one stays in force: {failure}"
                ),
                false => tracing::debug!("the fleet's policy is still not followed: {failure}"),
            }
        }
        News::Namesake(is_there) => {
            if metrics.namesake(*is_there) {
                tracing::warn!(
                    "another agent is alive that says it is this host: give each host a name of its own (`name` in [host]), or they \
                     write one status in {store} and have one share of the fleet's limits"
                );
            }
        }
        News::Unusable(verdict) => {
            metrics.refused();
            let why = verdict.error.as_deref().unwrap_or_default();
            tracing::error!("what is in {store} is no policy, the old one stays in force: {why}");
        }
    }
}

/// Keeps each policy that was put into force on disk. While one is written the newest waits, and takes the place of those before it.
async fn keep(
    source: PolicySource,
    mut verdicts: watch::Receiver<Option<Verdict>>,
    metrics: FleetMetrics,
) {
    let newest = watch::Sender::new(None::<Arc<Fragments>>);
    let mut waiting = newest.subscribe();
    let collecting = async move {
        while verdicts.changed().await.is_ok() {
            let kept = verdicts
                .borrow_and_update()
                .as_ref()
                .and_then(|verdict| verdict.kept.clone());
            // A verdict that puts nothing into force takes no policy's place.
            if kept.is_some() {
                newest.send_replace(kept);
            }
        }
    };
    let writing = async move {
        let mut last = cached(&source).ok().flatten().map(|cached| cached.digest());
        while waiting.changed().await.is_ok() {
            let Some(kept) = waiting.borrow_and_update().clone() else {
                continue;
            };
            let digest = Some(kept.digest());
            if last == digest {
                continue;
            }
            match write(&source.cache, kept).await {
                Ok(()) => last = digest,
                Err(error) => {
                    metrics.not_kept();
                    tracing::error!(
                        "the fleet's policy is in force, and cannot be kept in {} for the next start: {error}: \
                         make its folder, and let the agent write there",
                        source.cache.display()
                    );
                }
            }
        }
    };
    tokio::join!(collecting, writing);
}

/// Writes a policy to the cache. A disk that takes long holds up neither leases nor watches, and the log says so.
async fn write(to: &Path, kept: Arc<Fragments>) -> io::Result<()> {
    let path = to.to_owned();
    let mut writing = task::spawn_blocking(move || cache::write(&path, &kept));
    let written = match time::timeout(SLOW_WRITE, &mut writing).await {
        Ok(written) => written,
        Err(_) => {
            tracing::warn!(
                "the fleet's policy is in force, and after {} s not yet kept in {} for the next start: its disk is slow",
                SLOW_WRITE.as_secs(),
                to.display()
            );
            writing.await
        }
    };
    written.unwrap_or_else(|failed| Err(io::Error::other(failed)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use policy_source::Fragment;

    use super::*;
    use crate::config::Config;

    fn policy(number: i64) -> Fragments {
        let file = Fragment {
            name: "a.toml".into(),
            text: format!("# {number}"),
        };
        Fragments::new(number, vec![file]).unwrap()
    }

    fn verdict(kept: Option<Fragments>) -> Option<Verdict> {
        Some(Verdict {
            revision: 0,
            version: None,
            digest: String::new(),
            error: None,
            in_force: String::new(),
            in_force_version: None,
            refused: BTreeMap::new(),
            kept: kept.map(Arc::new),
        })
    }

    /// Lets whoever else has something to do go on, twice: it may have been before this one in its turn.
    async fn let_others() {
        task::yield_now().await;
        task::yield_now().await;
    }

    #[test]
    fn the_newest_that_is_in_force_is_kept_whatever_was_refused_behind_it() {
        const NEWEST: i64 = 20;
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[policy]\nsource = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]\ncache = {:?}",
            folder.path().join("policy.json")
        );
        let config = Config::parse("/own.toml".as_ref(), &text).unwrap();
        let source = config.source.unwrap();
        let metrics = FleetMetrics::register(&prometheus::Registry::new()).unwrap();
        let verdicts = watch::Sender::new(None);
        let keeping = keep(source.clone(), verdicts.subscribe(), metrics);
        let telling = async move {
            for number in 1..=NEWEST {
                verdicts.send_replace(verdict(Some(policy(number))));
                let_others().await;
                verdicts.send_replace(verdict(None));
                let_others().await;
            }
        };
        let mut runtime = runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async { tokio::join!(keeping, telling) });
        let kept = cached(&source).unwrap().unwrap();
        assert_eq!(kept.digest(), policy(NEWEST).digest());
    }
}
