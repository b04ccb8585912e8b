//! Effects: steps of a pipeline that are carried out by the agent, because they need more than the frames that pass.
//!
//! To the pipeline each is a [`Transform`], of which everything passes until it is open; what it shows to somebody
//! outside, and what it has wait for that, is its own ([`Ticket`](cql::edit::Ticket)). Each is one file, or folder, and
//! one line in the list below.

pub mod cache;
pub mod coalesce;
pub mod fold;
pub mod mirror;
mod register;
mod stream;

use std::sync::Arc;

use cql::edit::Transform;
use dataplane::policy::RuleName;
use serde::Deserialize;

use crate::reporters::Means;

/// A step of which something is to be opened, before it can do anything.
pub trait Effect: Transform {
    /// Reads the certificates that it names, as [`Self::open`] does, for who only wants to know whether they are good.
    ///
    /// # Errors
    /// Which is not, and why.
    fn reads(&self) -> Result<(), String> {
        Ok(())
    }

    /// Opens what it needs, before its rule is in force.
    ///
    /// # Errors
    /// What cannot be opened, and why.
    fn open(&self, rule: &RuleName, means: &Means) -> Result<(), String>;

    /// Whether it has to stand behind all transforms, because it takes what it is shown for what the database gets.
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
            /// The step. Nothing is opened.
            ///
            /// # Errors
            /// Which setting cannot be, and what it should be.
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
    /// Of a rule by which databases are spoken to by TLS.
    #[must_use]
    pub fn encrypting(self) -> Self {
        match self {
            Self::Fold(settings) => Self::Fold(settings.encrypting()),
            other => other,
        }
    }
}
