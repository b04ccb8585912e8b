//! The list of reporters, and their settings as they stand in the configuration.

use serde::Deserialize;

use super::{audit, count, debug, reporter::Reporter, slowlog, stats, trace};

/// Declares [`Settings`] from the list.
macro_rules! reporters {
    ($($module:ident => $variant:ident),+ $(,)?) => {
        /// A step of a pipeline, as in the configuration: `{ transform = "stats", ... }`.
        #[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
        #[serde(tag = "transform", rename_all = "snake_case")]
        #[expect(missing_docs, reason = "the settings say what their step does, and the schema shows that")]
        pub enum Settings {
            $(
                $variant($module::Settings),
            )+
        }

        impl Settings {
            /// Makes the step. Nothing is opened or made before a flow is followed.
            ///
            /// # Errors
            /// Names the bad setting, and what it should be.
            pub fn build(self) -> Result<Box<dyn Reporter>, String> {
                match self {
                    $(Self::$variant(settings) => settings.build(),)+
                }
            }
        }

        /// Every reporter's name.
        pub const NAMES: &[&str] = &[$(stringify!($module)),+];
    };
}

reporters! {
    audit => Audit,
    count => Count,
    debug => Debug,
    slowlog => Slowlog,
    stats => Stats,
    trace => Trace,
}
