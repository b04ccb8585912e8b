//! The fleet's policy: a thread follows it in etcd, and offers each change to whoever owns the policy ([`crate::control`]).
//!
//! - `cache`: the last good policy on disk, for when etcd is away at the start.
//! - `metrics`: how old what is known is, and what became of it.
//!
//! **Invariant**: nothing of a flow waits for etcd, and what is in force changes only by a policy that was checked whole.

mod cache;
mod metrics;

use std::{path::PathBuf, pin::Pin, sync::Arc, thread};

use dataplane::backends::Probe;
use policy_source::{Dial, Follower, Fragments, News, Pace, Verdict};
use tokio::{runtime, sync::watch};

pub use self::{cache::read as cached, metrics::FleetMetrics};
use crate::config::{Host, PolicySource};

/// Threads that look names up: they block, and one is enough.
const LOOK_UPS: usize = 1;

/// The channels between the thread and the owner of the policy. In both, only the latest counts.
pub struct Channels {
    /// Policies that were read, to the owner.
    pub offers: watch::Sender<Option<Arc<Fragments>>>,
    /// Verdicts on them, from the owner.
    pub verdicts: watch::Sender<Option<Verdict>>,
}

impl Default for Channels {
    fn default() -> Self {
        Self {
            offers: watch::Sender::new(None),
            verdicts: watch::Sender::new(None),
        }
    }
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
) -> std::io::Result<()> {
    metrics.begin();
    let told = metrics.clone();
    let follower = Follower {
        settings: source.settings.clone(),
        host: host.name.clone(),
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        pace: Pace::default(),
        dial,
        offers: channels.offers.clone(),
        verdicts: channels.verdicts.subscribe(),
        tell: Box::new(move |news| tell(&told, &news)),
    };
    let keeping = keep(
        source.cache.clone(),
        channels.offers.subscribe(),
        channels.verdicts.subscribe(),
        metrics,
    );
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(LOOK_UPS)
        .build()?;
    let follow = move || {
        runtime.block_on(async {
            tokio::join!(follower.run(), keeping);
        });
    };
    thread::Builder::new().name("fleet".into()).spawn(follow)?;
    Ok(())
}

fn tell(metrics: &FleetMetrics, news: &News<'_>) {
    match news {
        News::InStep => {
            if metrics.in_step() {
                tracing::info!("the fleet's policy is followed in etcd");
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
        News::Unusable(verdict) => {
            metrics.refused();
            let why = verdict.error.as_deref().unwrap_or_default();
            tracing::error!("what is in etcd is no policy, the old one stays in force: {why}");
        }
    }
}

/// Keeps each policy that was put into force on disk.
async fn keep(
    path: PathBuf,
    offers: watch::Receiver<Option<Arc<Fragments>>>,
    mut verdicts: watch::Receiver<Option<Verdict>>,
    metrics: FleetMetrics,
) {
    let mut kept = cached(&path).ok().flatten().map(|cached| cached.digest());
    while verdicts.changed().await.is_ok() {
        let verdict = verdicts.borrow_and_update().clone();
        let offered = offers.borrow().clone();
        let (Some(verdict), Some(offered)) = (verdict, offered) else {
            continue;
        };
        let is_good = verdict.error.is_none() && verdict.digest == offered.digest();
        if !is_good || kept.as_ref() == Some(&verdict.digest) {
            continue;
        }
        match cache::write(&path, &offered) {
            Ok(()) => kept = Some(verdict.digest),
            Err(error) => {
                metrics.not_kept();
                tracing::error!(
                    "the fleet's policy is in force, and cannot be kept in {} for the next start: {error}: \
                     make its folder, and let the agent write there",
                    path.display()
                );
            }
        }
    }
}
