//! The paths that this kernel has: each path is tried out before it is used. A path that fails is
//! off, with its reason in the log, the metrics and `underpass doctor`.

use std::time::{Duration, Instant};

use dataplane::{Calls, Engine, ProbeResult, Splicer};
use prometheus::{GaugeVec, Opts, Registry};

/// The time after which a canary counts as hanging. On a calm machine it takes a second, in an
/// emulator ten.
const LIMIT: Duration = Duration::from_secs(60);

/// The trials of an engine before it is off: what a busy machine delays for a second, or the lack of a descriptor, is no fault of
/// the kernel's.
const TRIALS: u32 = 3;
/// The pause between two of them.
const TRIAL_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The choice of the splice's engine: `agent.splice` in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Splicing {
    /// Each flow whose rule lets the applications' sockets into a sockmap goes by the first engine that
    /// it can go by, of those that work here.
    #[default]
    Auto,
    /// All flows go by this engine, if it works here.
    By(Engine),
    /// No flow is spliced: all are relayed.
    Off,
}

impl Splicing {
    /// Returns the engines that may carry flows, to be tried out.
    pub fn engines(self) -> Vec<Engine> {
        match self {
            Self::Auto => Engine::ALL.into(),
            Self::By(down) => vec![down],
            Self::Off => Vec::new(),
        }
    }
}

/// An engine's name in the configuration.
pub const fn engine_name(down: Engine) -> &'static str {
    match down {
        Engine::Sender => "sender",
        Engine::Egress => "egress",
    }
}

/// Tries out an engine.
pub async fn try_engine(splices: &Splicer, down: Engine) -> ProbeResult {
    let begun = Instant::now();
    let path = path_name(down);
    let failure = match test_hooks::get().off(&path) {
        Some(reason) => Some(reason),
        None => failure(&splices.by(&[down])).await,
    };
    ProbeResult {
        path,
        took: begun.elapsed(),
        failure,
    }
}

/// Returns the reason why flows should not be carried by these engines.
async fn failure(splices: &Splicer) -> Option<String> {
    let mut trials = 0;
    loop {
        trials += 1;
        let reason = match tokio::time::timeout(LIMIT, crate::try_out(splices)).await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => return Some(format!("it hangs: nothing came of it in {LIMIT:?}")),
        };
        if trials == TRIALS {
            return Some(reason);
        }
        tracing::info!(
            reason,
            "a trial of the splice has failed, and is made again"
        );
        tokio::time::sleep(TRIAL_AGAIN_AFTER).await;
    }
}

fn path_name(down: Engine) -> String {
    format!("splice_{}", engine_name(down))
}

/// Tries the splice's engines for `underpass doctor`, which loads the splice for itself.
pub async fn try_here() -> Vec<ProbeResult> {
    let begun = Instant::now();
    let all_failed = |reason: String| {
        let failed = |down| ProbeResult {
            path: path_name(down),
            took: begun.elapsed(),
            failure: Some(reason.clone()),
        };
        Engine::ALL.map(failed).into()
    };
    let (splices, calls): (Splicer, Calls) = match Splicer::open() {
        Ok(both) => both,
        Err(error) => return all_failed(error.to_string()),
    };
    let each = async {
        let mut tried = Vec::new();
        for down in Engine::ALL {
            tried.push(try_engine(&splices, down).await);
        }
        tried
    };
    tokio::select! {
        tried = each => tried,
        ended = calls.run() => all_failed(format!("the kernel's calls cannot be read: {ended:?}")),
    }
}

/// The metric `underpass_path_available`.
#[derive(Clone, Debug)]
pub struct PathsAvailable(GaugeVec);

impl PathsAvailable {
    /// Declares and registers the metric.
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

    /// Gives the metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.0.with_label_values(&["path", ""]);
    }

    /// Sets the metric to the outcome of a trial, and logs it.
    pub fn note(&self, tried: &ProbeResult) {
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
