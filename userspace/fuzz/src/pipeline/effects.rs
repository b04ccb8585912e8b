//! Steps that ask somebody outside, or for keys.
//!
//! `cache` has a Redis in memory, `protect` keys of its own. `coalesce` is asked for its decisions before its own clock would ask; it has a thread
//! for that, as each `mirror` has one for its cluster, which is away. What `fold` needs is not here: several flows, and a worker's connections.

use std::sync::{Arc, LazyLock};

use cql_edit::Transform;
use policy::RuleName;
use prometheus::Registry;
use steps::{
    Services,
    cache::{ByHand, CacheSettings},
    effects::EffectSettings,
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

/// Builds and opens a step.
pub fn build(asks: &Asks) -> (Arc<dyn Transform>, Option<ByHand>) {
    match asks {
        Asks::Redis => {
            let settings: CacheSettings = toml::from_str(CACHE).expect(CACHE);
            let (step, by_hand) = settings.by_hand(&rule()).expect(CACHE);
            (step, Some(by_hand))
        }
        Asks::Others => (opened(COALESCE), None),
        Asks::Keys => (protect(&[("ks.t", &["v"]), ("ks.u", &["v"])]), None),
        Asks::Mirror(settings) => (opened(&format!("{MIRROR}{settings}")), None),
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
