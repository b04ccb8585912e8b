//! The findings of `doctor` about the fleet's policy: whether etcd answers, and whether this host has what is there.

use dataplane::doctor::{Finding, State};
use policy_source::{Fleet, dial_plainly};
use tokio::runtime;

use crate::{config::PolicySource, fleet};

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
    let connected = Fleet::connect(&source.settings, &dial_plainly()).await;
    let mut etcd = connected.map_err(|failure| failure.to_string())?;
    let read = etcd.wanted().await.map_err(|failure| failure.to_string())?;
    let wanted = read.map_err(|why| format!("what is in etcd is no policy: {why}"))?;
    let kept = fleet::cached(&source.cache)?;
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
