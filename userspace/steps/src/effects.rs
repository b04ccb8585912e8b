//! The list of effects, and their settings as they stand in the configuration.

use std::sync::Arc;

use serde::Deserialize;

use super::{cache, coalesce, effect::Effect, fold, mirror};

/// Declares [`EffectSettings`] from the list.
macro_rules! effects {
    ($($module:ident => $variant:ident($settings:ident)),+ $(,)?) => {
        /// A step of a pipeline, as in the configuration: `{ transform = "mirror", ... }`.
        #[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
        #[serde(tag = "transform", rename_all = "snake_case")]
        #[expect(missing_docs, reason = "the settings say what their step does, and the schema shows that")]
        pub enum EffectSettings {
            $(
                $variant($module::$settings),
            )+
        }

        impl EffectSettings {
            /// Makes the step, and opens nothing.
            ///
            /// # Errors
            /// Names the bad setting, and what it should be.
            pub fn build(self) -> Result<Arc<dyn Effect>, String> {
                Ok(match self {
                    $(Self::$variant(settings) => Arc::new(settings.build()?),)+
                })
            }
        }

        /// Every effect's name.
        pub const NAMES: &[&str] = &[$(stringify!($module)),+];
    };
}

effects! {
    cache => Cache(CacheSettings),
    coalesce => Coalesce(CoalesceSettings),
    fold => Fold(FoldSettings),
    mirror => Mirror(MirrorSettings),
}

impl EffectSettings {
    /// Marks the settings of a rule that speaks TLS to databases.
    #[must_use]
    pub fn encrypting(self) -> Self {
        match self {
            Self::Fold(settings) => Self::Fold(settings.encrypting()),
            other => other,
        }
    }
}
