//! The findings of `doctor` about the fleet's policy: whether the store answers, and whether this host has what is there.

use dataplane::doctor::{Finding, State};
use policy_source::{Fleet, Fragments, KubernetesSettings, Pace, dial_plainly};
use tokio::runtime;

use crate::{
    config::{PolicySource, Store},
    fleet,
};

/// Looks in etcd, and at what is kept of the last policy that was put into force.
pub(super) fn examine(source: &PolicySource) -> anyhow::Result<Finding> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (state, detail) = match runtime.block_on(compare(source)) {
        Ok(same) => (State::Ok, same),
        // The last policy stays in force.
        Err(why) => (State::Notice, why),
    };
    Ok(Finding {
        what: "fleet's policy".into(),
        state,
        detail,
    })
}

async fn compare(source: &PolicySource) -> Result<String, String> {
    let kept = fleet::cached(source)?;
    let settings = match &source.store {
        Store::Etcd(settings) => settings,
        Store::Kubernetes(settings) => return in_kubernetes(settings, kept.as_ref()).await,
    };
    let connected = Fleet::connect(settings, &dial_plainly()).await;
    let mut etcd = connected.map_err(|failure| failure.to_string())?;
    let read = etcd.wanted().await.map_err(|failure| failure.to_string())?;
    let wanted = read.map_err(|why| format!("what is in etcd is no policy: {why}"))?;
    let (wanted_digest, files) = (wanted.digest(), wanted.files.len());
    match kept {
        Some(kept) if kept.digest() == wanted_digest => Ok(format!(
            "{files} files, digest {wanted_digest}, in etcd and in force"
        )),
        None if files == 0 => Ok("there are no files in etcd".to_owned()),
        kept => {
            let kept = kept.map_or_else(|| "nothing".to_owned(), |kept| kept.digest());
            Err(format!(
                "what is in etcd ({wanted_digest}) is not what this host has in force ({kept}): `underpass policy status` says why"
            ))
        }
    }
}

/// Whether the API server answers and lets this host read; the statuses of policies say more than can be compared here.
async fn in_kubernetes(
    settings: &KubernetesSettings,
    kept: Option<&Fragments>,
) -> Result<String, String> {
    let counted = settings.count(&dial_plainly(), &Pace::default()).await;
    let counted = counted.map_err(|failure| failure.to_string())?;
    let kept = kept.map_or(0, |kept| kept.files.len());
    match kept == counted {
        true => Ok(format!("{counted} policies, in Kubernetes and in force")),
        false => Err(format!(
            "Kubernetes has {counted} policies, and this host has {kept} in force: `kubectl get underpasspolicies,clusterunderpasspolicies -A` says why"
        )),
    }
}
