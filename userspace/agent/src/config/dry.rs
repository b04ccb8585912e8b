//! A dry run: what is left of a policy whose rules only count.

use policy::Action;
use toml::Spanned;

use super::raw::{RawConfig, RawRule};

impl RawConfig {
    /// Has every rule that holds count its connections, and do nothing else. Nothing is steered here, or decided packet by
    /// packet.
    pub(super) fn only_count(&mut self) {
        for rule in &mut self.rule {
            rule.get_mut().only_counts();
        }
        self.default.fail = None;
        self.default.action.iter_mut().for_each(only_observes);
        self.incoming.clear();
        self.xdp.clear();
    }
}

impl RawRule {
    /// Leaves the conditions, and takes away what is done.
    fn only_counts(&mut self) {
        only_observes(&mut self.action);
        self.do_nothing();
    }

    /// Takes away everything but the conditions and the action.
    pub(super) fn do_nothing(&mut self) {
        let is_condition = |tls: &Spanned<toml::Value>| tls.get_ref().is_bool();
        self.tls = self.tls.take().filter(is_condition);
        self.pipeline.clear();
        self.fail = None;
        self.upstream_tls = None;
        self.backends.clear();
        self.path = None;
        self.shortcut = None;
        self.remember = None;
        self.sample = None;
        self.holdout = None;
        self.trigger = None;
        self.limit = None;
    }
}

fn only_observes(action: &mut Spanned<String>) {
    if action.get_ref() != Action::Bypass.as_str() {
        *action.get_mut() = Action::Observe.as_str().to_owned();
    }
}
