//! `lookup`: the texts of statements that were prepared where nobody looked.
//!
//! On the flow's own connection it is a transform, because there the editor asks (`cql_edit`). On a connection of the agent's
//! own it is a reporter: nothing of the flow is changed, so that its rule can tap.
//!
//! - `settings`: its settings.
//! - `asker`: the thread that asks databases, one for each rule.

mod asker;
mod settings;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Instant,
};

use cql::{Completed, Details, PreparedStatements};
use dataplane::backends::Probe;
use policy::RuleName;

use crate::{
    Following, Reporter, Services, Whose,
    login::LoginSettings,
    pipeline_metrics::PipelineMetrics,
    register::{self, Register},
};

use asker::{AGAIN, Asker};
pub use settings::{Built, LookupSettings};

/// The name in the configuration.
pub const NAME: &str = "lookup";

/// Ids that a flow remembers to have asked for, with [`cql::MAX_PREPARED_ID_BYTES`] each at most; beyond it, it starts over.
const MAX_ASKED: usize = 256;

/// The threads that ask databases.
#[derive(Debug)]
pub struct Lookups {
    open: Register<Asker>,
    prepared: Arc<PreparedStatements>,
    metrics: PipelineMetrics,
}

impl Lookups {
    /// Makes the register; nobody asks yet. `prepared`: told of the texts.
    pub fn new(prepared: Arc<PreparedStatements>, metrics: PipelineMetrics) -> Self {
        Self {
            open: Register::new(),
            prepared,
            metrics,
        }
    }

    /// Gives the threads the probe with which they connect from now on.
    pub fn dial_by(&self, probe: Probe) {
        self.open.dial_by(probe);
    }

    /// Returns this rule's thread, or starts it.
    fn open(&self, rule: &RuleName, login: &OwnLogin) -> Option<Arc<Asker>> {
        let login = login.0.get()?;
        let is_same = |asker: &Asker| asker.is_for(rule, login.as_ref());
        let start = |dials| {
            Asker::start(
                rule.clone(),
                login.clone(),
                dials,
                self.prepared.clone(),
                self.metrics.of(rule),
            )
        };
        self.open
            .one(is_same, start)
            .inspect_err(|error| tracing::error!(%rule, %error, "nobody looks statements up"))
            .ok()
    }
}

/// The credentials, once they were read. None within: nobody logs in.
#[derive(Debug, Default)]
struct OwnLogin(OnceLock<Option<crate::login::Login>>);

/// The step on a connection of the agent's own.
#[derive(Debug)]
struct OwnLookup {
    settings: Option<LoginSettings>,
    login: OwnLogin,
}

impl OwnLookup {
    fn read(&self) -> Result<Option<crate::login::Login>, String> {
        let login = self.settings.as_ref().map(LoginSettings::read);
        login.transpose().map_err(|e| format!("{NAME}: {e}"))
    }
}

impl Reporter for OwnLookup {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self) -> Result<(), String> {
        self.read().map(drop)
    }

    fn open(&self, _: &Services) -> Result<(), String> {
        register::once(&self.login.0, || self.read())
    }

    fn wants_requests(&self) -> bool {
        false
    }

    fn follow(&self, whose: &Arc<Whose>, services: &Arc<Services>) -> Box<dyn Following> {
        Box::new(FlowLookup {
            asker: services.lookups.open(&whose.rule, &self.login),
            database: whose.coordinator(),
            asked: HashMap::new(),
        })
    }
}

/// The step's part in one flow.
struct FlowLookup {
    asker: Option<Arc<Asker>>,
    database: SocketAddr,
    /// When each id was asked for.
    asked: HashMap<Box<[u8]>, Instant>,
}

impl Following for FlowLookup {
    fn completed(&mut self, _: &Completed<'_>, _: &Details) {}

    fn unknown_prepared(&mut self, id: &[u8]) {
        let Some(asker) = self
            .asker
            .as_ref()
            .filter(|_| id.len() <= cql::MAX_PREPARED_ID_BYTES)
        else {
            return;
        };
        let now = Instant::now();
        let lately = |at: &Instant| now.saturating_duration_since(*at) < AGAIN;
        if self.asked.get(id).is_some_and(lately) {
            return;
        }
        if self.asked.len() >= MAX_ASKED {
            self.asked.clear();
        }
        self.asked.insert(id.into(), now);
        asker.ask(self.database, id);
    }
}
