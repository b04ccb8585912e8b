//! The policy with which the agent begins: that of the host's files, and the last good one of the fleet.

use std::{mem, path::Path, sync::Arc};

use anyhow::anyhow;
use policy::RuleName;
use policy_source::Fragments;

use crate::{
    config::{Config, ConfigError, Sources, Store, by_fail},
    fleet::{self, Halves},
};

/// Checks of the fleet's last policies, of which some are not right any more: the agent is to begin soon.
const MAX_CHECKS_AT_START: usize = 256;

/// The policy that there is to begin with.
pub(super) struct Beginning {
    pub(super) sources: Sources,
    pub(super) config: Config,
    /// The fleet's files among the sources.
    pub(super) cached: Arc<Fragments>,
    /// Files of the fleet as they were kept, where some of their rules are treated by their `fail`.
    pub(super) as_kept: Option<Arc<Fragments>>,
    /// Why the fleet's last policy, or a part of it, is not among them, though it should be.
    pub(super) why_not: Option<String>,
    own: Sources,
    is_dry: bool,
}

impl Beginning {
    /// Whether there are files of a fleet's.
    pub(super) fn is_fleets(&self) -> bool {
        !self.cached.files.is_empty()
    }

    /// Has rules of the fleet's treated by their `fail` of which something cannot be opened: each with the reason.
    ///
    /// # Errors
    /// The host's own rules are not right with the fleet's so treated.
    pub(super) fn treat_by_fail(
        &mut self,
        unopened: &[(RuleName, anyhow::Error)],
    ) -> anyhow::Result<()> {
        // The host's own are not: without what these name, the agent does not start.
        let own = check(&self.own, self.is_dry)?.policy.rules;
        let is_own = |name: &RuleName| own.iter().any(|rule| rule.name == *name);
        let fleets = || unopened.iter().filter(|(name, _)| !is_own(name));
        let is_meant = |name: &RuleName| fleets().any(|(rule, _)| rule == name);
        let rules = self.config.policy.rules.iter();
        let rules = rules.filter(|rule| is_meant(&rule.name));
        let rules = rules.map(|rule| (rule.name.clone(), rule.fail)).collect();
        let cached = by_fail(&self.cached, &rules).map_err(|why| anyhow!(why))?;
        let sources = self.own.clone().with(&cached);
        self.config = Config {
            log_format: self.config.log_format,
            ..check(&sources, self.is_dry)?
        };
        self.sources = sources;
        self.as_kept = Some(mem::replace(&mut self.cached, Arc::new(cached)));
        for (rule, why) in fleets() {
            tracing::error!(
                %rule,
                "a rule of the fleet's last policy is treated by its `fail`, until the policy can be put into force: {why:#}"
            );
        }
        Ok(())
    }
}

fn check(sources: &Sources, is_dry: bool) -> Result<Config, ConfigError> {
    match is_dry {
        true => Config::dry(sources),
        false => Config::of(sources),
    }
}

/// Reads the host's files, and adds the fleet's policy from the cache. A bad cache does not keep the agent from
/// starting: the store has what is right, and the host's own rules hold until then.
///
/// # Errors
/// The host's own files are wrong.
pub(super) fn begin(file: &Path, dry: bool) -> Result<Beginning, ConfigError> {
    let check = |sources: &Sources| check(sources, dry);
    let own = Sources::read(file)?;
    let config = check(&own)?;
    let beginning = |sources, config, cached, why_not| Beginning {
        sources,
        config,
        cached: Arc::new(cached),
        as_kept: None,
        why_not,
        own: own.clone(),
        is_dry: dry,
    };
    let alone = |config, why_not| beginning(own.clone(), config, Fragments::default(), why_not);
    let Some(source) = &config.source else {
        return Ok(alone(config, None));
    };
    let cached = match fleet::cached(source) {
        Ok(Some(cached)) => cached,
        Ok(None) => return Ok(alone(config, None)),
        Err(why) => return Ok(alone(config, Some(why))),
    };
    let sources = own.clone().with(&cached);
    let why = match check(&sources) {
        Ok(config) => return Ok(beginning(sources, config, cached, None)),
        Err(why) => why.to_string(),
    };
    // A fleet's files are one policy, and objects are many.
    if !matches!(source.store, Store::Kubernetes(_)) {
        return Ok(alone(config, Some(why)));
    }
    let mut halves = Halves::new(
        Fragments {
            revision: cached.revision,
            ..Fragments::default()
        },
        MAX_CHECKS_AT_START,
    );
    halves.try_all(vec![cached.files], &mut |some| {
        let checked = check(&own.clone().with(some));
        checked.map(drop).map_err(|why| why.to_string())
    });
    let refused = halves.refused.iter();
    let mut left_out: Vec<String> = refused.map(|(_, why)| why.clone()).collect();
    left_out.extend(
        halves
            .left
            .iter()
            .map(|name| format!("{name} was not tried")),
    );
    let sources = own.clone().with(&halves.good);
    let config = check(&sources)?;
    let why_not = format!(
        "{} of its objects are wrong, and the others in force: {}",
        left_out.len(),
        left_out.join("; ")
    );
    Ok(beginning(sources, config, halves.good, Some(why_not)))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use policy_source::Fragment;

    use super::*;

    #[test]
    fn one_object_that_is_not_right_any_more_does_not_keep_the_others_out() {
        let folder = tempfile::tempdir().unwrap();
        let (own, cache) = (
            folder.path().join("own.toml"),
            folder.path().join("kept/policy.json"),
        );
        let text = format!(
            "[policy]\nsource = \"kubernetes\"\nserver = \"https://a:1\"\ntls = {{ ca = \"/ca\" }}\ncache = {cache:?}\n"
        );
        fs::write(&own, text).unwrap();
        let rule = |name: &str, action: &str| Fragment {
            name: format!("underpasspolicies/n/{name}"),
            text: format!(
                "rule = [{{ name = \"{name}\", to = [\":1\"], action = \"{action}\" }},\n]\n"
            ),
        };
        let files = vec![
            rule("a", "bypass"),
            rule("b", "forgotten"),
            rule("c", "bypass"),
        ];
        let kept = Fragments::of_objects(7, files).unwrap();
        fs::create_dir(cache.parent().unwrap()).unwrap();
        fs::write(&cache, serde_json::to_vec(&kept).unwrap()).unwrap();
        for path in [&own, &cache] {
            fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        }
        let beginning = begin(&own, false).unwrap();
        let rules = beginning.config.policy.rules;
        let names: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
        let cached = beginning.cached.files.iter();
        let cached: Vec<_> = cached.map(|file| file.name.as_str()).collect();
        assert_eq!(cached, ["underpasspolicies/n/a", "underpasspolicies/n/c"]);
        assert_eq!(beginning.cached.revision, 7);
        let why = beginning.why_not.unwrap();
        assert!(
            why.starts_with("1 of its objects are wrong")
                && why.contains("kubernetes:underpasspolicies/n/b:1:"),
            "{why}"
        );
    }
}
