//! Which paths this kernel has: each is tried out before it is used, and what fails is off, with
//! its reason in the log, the metrics and `underpass doctor`.

use std::time::{Duration, Instant};

use dataplane::{Calls, Down, Splices, Tried};
use prometheus::{GaugeVec, Opts, Registry};

use crate::proxy;

/// A canary that takes longer hangs: on a calm machine it takes a second, in an emulator ten.
const LIMIT: Duration = Duration::from_secs(60);

/// How flows are to be spliced: `agent.splice` in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Splicing {
    /// Each by the first engine that it can go by, of those that work here.
    #[default]
    Auto,
    /// By this engine, if it works here.
    By(Down),
    /// Not at all: they are relayed.
    Off,
}

impl Splicing {
    /// What may carry them, to be tried out.
    pub fn engines(self) -> Vec<Down> {
        match self {
            Self::Auto => Down::ALL.into(),
            Self::By(down) => vec![down],
            Self::Off => Vec::new(),
        }
    }
}

/// An engine's name in the configuration.
pub const fn engine_name(down: Down) -> &'static str {
    match down {
        Down::Sender => "sender",
        Down::Egress => "egress",
    }
}

/// Tries out an engine.
pub async fn try_engine(splices: &Splices, down: Down) -> Tried {
    let begun = Instant::now();
    let path = path_name(down);
    let failure = match dataplane::switched_off(&path) {
        Some(reason) => Some(reason),
        None => failure(&splices.by(&[down])).await,
    };
    Tried {
        path,
        took: begun.elapsed(),
        failure,
    }
}

/// Why flows are better not carried so.
async fn failure(splices: &Splices) -> Option<String> {
    match tokio::time::timeout(LIMIT, proxy::try_out(splices)).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some(format!("it hangs: nothing came of it in {LIMIT:?}")),
    }
}

fn path_name(down: Down) -> String {
    format!("splice_{}", engine_name(down))
}

/// What doctor says of the splice: loads it for itself, and tries its engines.
pub async fn try_here() -> Vec<Tried> {
    let begun = Instant::now();
    let all_failed = |reason: String| {
        let failed = |down| Tried {
            path: path_name(down),
            took: begun.elapsed(),
            failure: Some(reason.clone()),
        };
        Down::ALL.map(failed).into()
    };
    let (splices, calls): (Splices, Calls) = match Splices::open() {
        Ok(both) => both,
        Err(error) => return all_failed(error.to_string()),
    };
    let each = async {
        let mut tried = Vec::new();
        for down in Down::ALL {
            tried.push(try_engine(&splices, down).await);
        }
        tried
    };
    tokio::select! {
        tried = each => tried,
        ended = calls.run() => all_failed(format!("the kernel's calls cannot be read: {ended:?}")),
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
