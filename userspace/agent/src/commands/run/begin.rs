//! The policy with which the agent begins: that of the host's files, and the last good one of the fleet.

use std::{path::Path, sync::Arc};

use policy_source::Fragments;

use crate::{
    config::{Config, ConfigError, Sources},
    fleet,
};

/// The policy that there is to begin with.
pub(super) struct Beginning {
    pub(super) sources: Sources,
    pub(super) config: Config,
    /// The fleet's files among the sources.
    pub(super) cached: Arc<Fragments>,
    /// Why the fleet's last policy is not among them, though it should be.
    pub(super) why_not: Option<String>,
}

/// Reads the host's files, and adds the fleet's policy from the cache. A bad cache does not keep the agent from
/// starting: the store has what is right, and the host's own rules hold until then.
///
/// # Errors
/// The host's own files are wrong.
pub(super) fn begin(file: &Path, dry: bool) -> Result<Beginning, ConfigError> {
    let check = |sources: &Sources| match dry {
        true => Config::dry(sources),
        false => Config::of(sources),
    };
    let own = Sources::read(file)?;
    let config = check(&own)?;
    let alone = |own, config, why_not| Beginning {
        sources: own,
        config,
        cached: Arc::default(),
        why_not,
    };
    let Some(source) = &config.source else {
        return Ok(alone(own, config, None));
    };
    let cached = match fleet::cached(source) {
        Ok(Some(cached)) => cached,
        Ok(None) => return Ok(alone(own, config, None)),
        Err(why) => return Ok(alone(own, config, Some(why))),
    };
    let sources = own.clone().with(&cached);
    match check(&sources) {
        Ok(config) => Ok(Beginning {
            sources,
            config,
            cached: Arc::new(cached),
            why_not: None,
        }),
        Err(why) => Ok(alone(own, config, Some(why.to_string()))),
    }
}
