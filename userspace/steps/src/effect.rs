//! Effects: steps of a pipeline that the agent carries out, because they need more than the frames
//! that pass.
//!
//! To the pipeline each effect is a [`Transform`], which lets everything pass until it is open. How
//! it asks somebody outside, and makes requests wait for that, is its own matter
//! ([`Ticket`](cql_edit::Ticket)). Each effect is one file, or folder, and one line in the list
//! below.

use std::sync::Arc;

use cql_edit::Transform;
use policy::RuleName;
use serde::Deserialize;

use crate::{Means, cache, coalesce, fold, mirror};

/// A step that has to open something before it can do anything.
pub trait Effect: Transform {
    /// Reads the certificates that the step names, as [`Self::open`] does, only to check whether
    /// they are good.
    ///
    /// # Errors
    /// Names the bad certificate, and the reason.
    fn reads(&self) -> Result<(), String> {
        Ok(())
    }

    /// Opens what the step needs, before its rule is in force.
    ///
    /// # Errors
    /// Names what cannot be opened, and the reason.
    fn open(&self, rule: &RuleName, means: &Means) -> Result<(), String>;

    /// Whether the step has to be behind all transforms, because it takes the requests that it sees
    /// for those that the database gets.
    fn is_last(&self) -> bool {
        false
    }
}

/// Declares [`Settings`] from the list.
macro_rules! effects {
    ($($module:ident => $variant:ident),+ $(,)?) => {
        /// A step of a pipeline, as in the configuration: `{ transform = "mirror", ... }`.
        #[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
        #[serde(tag = "transform", rename_all = "snake_case")]
        #[expect(missing_docs, reason = "the settings say what their step does, and the schema shows that")]
        pub enum Settings {
            $(
                $variant($module::Settings),
            )+
        }

        impl Settings {
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
    cache => Cache,
    coalesce => Coalesce,
    fold => Fold,
    mirror => Mirror,
}

impl Settings {
    /// Marks the settings of a rule that speaks TLS to databases.
    #[must_use]
    pub fn encrypting(self) -> Self {
        match self {
            Self::Fold(settings) => Self::Fold(settings.encrypting()),
            other => other,
        }
    }
}
