//! `underpass policy count`: runs until it is ended.

use std::{path::Path, process::ExitCode, sync::Arc};

use anyhow::{Context as _, bail};
use policy_source::{KubernetesCounter, News, OwnPod, Pace, dial_plainly};
use tokio::signal::unix::{SignalKind, signal};

use super::store;
use crate::config::Store;

pub(super) async fn run(config: &Path, daemon_set: &str) -> anyhow::Result<ExitCode> {
    let Store::Kubernetes(settings) = store(config)? else {
        bail!(
            "{} does not follow Kubernetes: of a fleet in etcd `underpass policy status` tells",
            config.display()
        );
    };
    let pod = OwnPod::of_environment().context(
        "POD_NAME, POD_NAMESPACE and POD_UID: expected in the environment, as the chart has them",
    )?;
    // The first process of a pod is not ended by a signal that it does not ask for.
    let mut terminate = signal(SignalKind::terminate())?;
    let counter = KubernetesCounter {
        settings: Arc::new(settings),
        namespace: pod.namespace,
        daemon_set: daemon_set.to_owned(),
        pace: Pace::default(),
        dial: dial_plainly(),
        tell: Box::new(|news| match news {
            News::InStep => eprintln!("policies are counted"),
            News::Failed(why) => {
                eprintln!("cannot count policies, or write down what was counted: {why}")
            }
            News::Heard | News::Unusable(_) | News::Namesake(_) => {}
        }),
    };
    tokio::select! {
        never = counter.run() => match never {},
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
    }
}
