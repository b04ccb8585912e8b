//! Steps that ask somebody outside, or for keys.
//!
//! `cache` has a Redis in memory, `protect` keys of its own. `coalesce` is asked for its decisions before its own clock would ask; it has a thread
//! for that, as each `mirror` has one for its cluster, which is away. `fold` has connections in memory.

use std::sync::{Arc, LazyLock};

use cql_edit::Transform;
use policy::RuleName;
use prometheus::Registry;
use steps::{
    Services,
    cache::{self, CacheSettings},
    effects::EffectSettings,
    fold::{self, FoldSettings},
    pipelines::PipelineMetrics,
};
use telemetry::Metrics;

use crate::vault::protect;

/// The one whom a step asks.
#[derive(Debug, PartialEq, Eq)]
pub enum Asks {
    /// `cache`: a Redis.
    Redis,
    /// `coalesce`: other writes to the same partition.
    Others,
    /// `protect`: a vault.
    Keys,
    /// `mirror`, with these settings: a cluster that is away.
    Mirror(&'static str),
    /// `fold`: the database, on connections that flows share.
    Shared,
}

/// The ways to those whom steps ask, for whoever carries the bytes.
#[derive(Default)]
pub struct Ways {
    /// Between `cache` and its Redis.
    pub redis: Option<cache::ByHand>,
    /// Between `fold` and its database.
    pub shared: Option<fold::ByHand>,
}

const CACHE: &str = "redis = \"192.0.2.9:6379\"\ntables = [\"ks.t\", \"ks.u\"]\nttl = \"5s\"";

/// A window is longer than an input takes: it ends when it is asked for.
const COALESCE: &str = "transform = \"coalesce\"\nwindow = \"1s\"\nmax_statements = 3\n\
    tables.\"ks.t\" = { partition_key = [\"a\"], clustering = [\"b\"], columns = [\"v\", \"w\"] }";

/// Nobody connects to it: there is nothing to connect by.
const MIRROR: &str = "transform = \"mirror\"\nto = \"192.0.2.9:9042\"\n";

/// Services without a data plane.
static SERVICES: LazyLock<Services> = LazyLock::new(|| {
    let registry = Registry::new();
    let metrics = Metrics::register(&registry, &[]).expect("each metric once");
    let pipelines = PipelineMetrics::register(&registry).expect("each metric once");
    Services::register(&registry, &metrics, &pipelines, &[]).expect("each metric once")
});

/// Builds and opens a step, and notes the way to the one whom it asks.
pub fn build(asks: &Asks, ways: &mut Ways) -> Arc<dyn Transform> {
    match asks {
        Asks::Redis => {
            let settings: CacheSettings = toml::from_str(CACHE).expect(CACHE);
            let (step, by_hand) = settings.by_hand(&rule()).expect(CACHE);
            ways.redis = Some(by_hand);
            step
        }
        Asks::Others => opened(COALESCE),
        Asks::Keys => protect(&[("ks.t", &["v"]), ("ks.u", &["v"])]),
        Asks::Mirror(settings) => opened(&format!("{MIRROR}{settings}")),
        Asks::Shared => {
            let settings: FoldSettings = toml::from_str("").expect("settings by default");
            let (step, by_hand) = settings.by_hand(&rule()).expect("settings by default");
            ways.shared = Some(by_hand);
            step
        }
    }
}

fn opened(text: &str) -> Arc<dyn Transform> {
    let settings: EffectSettings = toml::from_str(text).expect(text);
    let step = settings.build().expect(text);
    step.open(&rule(), &SERVICES).expect(text);
    step
}

fn rule() -> RuleName {
    RuleName::new("r")
}
