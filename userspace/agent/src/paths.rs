//! Which paths this kernel has: each is tried out before it is used, and what fails is off, with
//! its reason in the log, the metrics and `underpass doctor`.

use std::time::{Duration, Instant};

use dataplane::{Calls, Down, Splices};
use prometheus::{GaugeVec, Opts, Registry};

use crate::proxy;

/// A canary that takes longer hangs: on a calm machine it takes a second, in an emulator ten.
const LIMIT: Duration = Duration::from_secs(60);

/// How flows are to be spliced: `agent.splice` in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Splicing {
    /// By the best engine that works here.
    #[default]
    Auto,
    /// By this one, if it works here.
    By(Down),
    /// Not at all: they are relayed.
    Off,
}

/// The ways to splice, best first, by the names that they have in the configuration.
pub const ENGINES: [(Down, &str); 2] = [(Down::Ingress, "ingress"), (Down::Egress, "egress")];

/// What came of trying a path.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Its name, as in metrics.
    pub path: String,
    /// How long that took; zero where nobody looked.
    pub took: Duration,
    /// Why it is not to be used.
    pub failure: Option<String>,
}

impl Tried {
    /// What came of trying the shortcut out.
    pub fn shortcut(outcome: Result<(), String>) -> Self {
        Self {
            path: "shortcut".into(),
            took: Duration::ZERO,
            failure: outcome.err(),
        }
    }
}

/// Tries the engines out that `splicing` asks for. Gives what came of each; the best one that works
/// is told as soon as it is known.
pub async fn try_engines(
    splices: &Splices,
    splicing: Splicing,
    mut use_it: impl FnMut(Splices),
) -> Vec<Tried> {
    let mut best = false;
    let mut tried = Vec::new();
    for (down, name) in ENGINES {
        if splicing != Splicing::Auto && splicing != Splicing::By(down) {
            continue;
        }
        let by = splices.by(down);
        let begun = Instant::now();
        let failure = match dataplane::switched_off(&path_name(name)) {
            Some(reason) => Some(reason),
            None => failure(&by).await,
        };
        if failure.is_none() {
            if !best {
                use_it(by);
            }
            best = true;
        }
        tried.push(Tried {
            path: path_name(name),
            took: begun.elapsed(),
            failure,
        });
    }
    tried
}

/// Why flows are better not carried so.
async fn failure(splices: &Splices) -> Option<String> {
    match tokio::time::timeout(LIMIT, proxy::try_out(splices)).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some(format!("it hangs: nothing came of it in {LIMIT:?}")),
    }
}

fn path_name(engine: &str) -> String {
    format!("splice_{engine}")
}

/// What doctor says of the splice: loads it for itself, and tries every engine.
pub async fn try_here() -> Vec<Tried> {
    let begun = Instant::now();
    let (splices, calls): (Splices, Calls) = match Splices::open() {
        Ok(both) => both,
        Err(error) => {
            let failed = ENGINES.map(|(_, name)| Tried {
                path: path_name(name),
                took: begun.elapsed(),
                failure: Some(error.to_string()),
            });
            return failed.into();
        }
    };
    tokio::select! {
        tried = try_engines(&splices, Splicing::Auto, drop) => tried,
        ended = calls.run() => ENGINES.map(|(_, name)| Tried {
            path: path_name(name),
            took: begun.elapsed(),
            failure: Some(format!("the kernel's calls cannot be read: {ended:?}")),
        }).into(),
    }
}

/// `underpass_path_available`.
#[derive(Clone, Debug)]
pub struct PathsAvailable(GaugeVec);

impl PathsAvailable {
    /// Declares and registers it.
    ///
    /// # Errors
    /// Another metric has the name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "underpass_path_available",
            "1 for each path that this kernel was seen to carry flows on without a fault, 0 with \
             the reason for each that is off.",
        );
        let gauge = GaugeVec::new(opts, &["path", "reason"])?;
        registry.register(Box::new(gauge.clone()))?;
        Ok(Self(gauge))
    }

    /// Enters what came of trying, and logs it.
    pub fn note(&self, tried: &Tried) {
        let path = tried.path.as_str();
        let took_ms = tried.took.as_millis() as u64;
        match &tried.failure {
            None => {
                tracing::info!(path, took_ms, "path works");
                self.0.with_label_values(&[path, ""]).set(1.0);
            }
            Some(reason) => {
                tracing::warn!(path, took_ms, reason, "path is off");
                self.0.with_label_values(&[path, reason]).set(0.0);
            }
        }
    }
}
