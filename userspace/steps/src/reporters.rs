//! The list of reporters, and their settings as they stand in the configuration.

use serde::Deserialize;

use super::{
    audit, count, debug, otlp::CollectorSettings, reporter::Reporter, slowlog, stats, trace,
};

/// Declares [`ReporterSettings`] from the list.
macro_rules! reporters {
    ($($module:ident => $variant:ident($settings:ident)),+ $(,)?) => {
        /// A step of a pipeline, as in the configuration: `{ transform = "stats", ... }`.
        #[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
        #[serde(tag = "transform", rename_all = "snake_case")]
        #[expect(missing_docs, reason = "the settings say what their step does, and the schema shows that")]
        pub enum ReporterSettings {
            $(
                $variant($module::$settings),
            )+
        }

        impl ReporterSettings {
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
    audit => Audit(AuditSettings),
    count => Count(CountSettings),
    debug => Debug(DebugSettings),
    slowlog => Slowlog(SlowlogSettings),
    stats => Stats(StatsSettings),
    trace => Trace(TraceSettings),
}

impl ReporterSettings {
    /// Names the collector of `[otlp]`, for steps that may send to it.
    #[must_use]
    pub fn with_collector(mut self, collector: Option<&CollectorSettings>) -> Self {
        let of_step = match &mut self {
            Self::Audit(settings) => &mut settings.collector,
            Self::Slowlog(settings) => &mut settings.collector,
            Self::Trace(settings) => &mut settings.collector,
            Self::Count(_) | Self::Debug(_) | Self::Stats(_) => return self,
        };
        *of_step = collector.cloned();
        self
    }
}
