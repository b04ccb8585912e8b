//! The transforms: one file each, and one list, which is this.
//!
//! `docs/writing-a-transform.md` shows how one is made.

mod consistency;
mod guard;
mod lookup;
pub use lookup::lookup;
mod null;
mod paging;
mod prepared;
pub use prepared::{Prepared, Preparing};
mod readable;
pub use readable::readable;
mod rewrite;
mod tag;
mod throttle;
mod tracing;

pub use guard::Reason as GuardReason;

use std::sync::Arc;

use serde::Deserialize;

use crate::Transform;

/// Declares [`TransformSettings`] from the list.
macro_rules! transforms {
    ($($module:ident => $variant:ident($settings:ident)),+ $(,)?) => {
        /// A step of a pipeline, as in the configuration: `{ transform = "tag", ... }`.
        #[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
        #[serde(tag = "transform", rename_all = "snake_case")]
        #[expect(missing_docs, reason = "the settings say what their step does, and the schema shows that")]
        #[non_exhaustive]
        pub enum TransformSettings {
            $(
                $variant($module::$settings),
            )+
        }

        impl TransformSettings {
            /// Builds the step.
            ///
            /// # Errors
            /// Which setting cannot be, and what it should be.
            pub fn build(self) -> Result<Arc<dyn Transform>, String> {
                match self {
                    $(Self::$variant(settings) => settings.build(),)+
                }
            }
        }

        /// Every transform's name.
        pub const NAMES: &[&str] = &[$(stringify!($module)),+];
    };
}

impl TransformSettings {
    /// Returns the settings of a step of this rule.
    #[must_use]
    pub fn of_rule(self, rule: &str) -> Self {
        match self {
            Self::Throttle(settings) => Self::Throttle(settings.of_rule(rule)),
            others => others,
        }
    }
}

transforms! {
    consistency => Consistency(ConsistencySettings),
    guard => Guard(GuardSettings),
    null => Null(NullSettings),
    paging => Paging(PagingSettings),
    rewrite => Rewrite(RewriteSettings),
    tag => Tag(TagSettings),
    throttle => Throttle(ThrottleSettings),
    tracing => Tracing(TracingSettings),
}
