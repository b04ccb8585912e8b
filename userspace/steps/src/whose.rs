//! The identity of a flow, for its reporters.

use std::{
    fmt,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use cql::{Database, Says};
use flow::Flow;
use parking_lot::Mutex;
use policy::RuleName;
use serde::{Deserialize, Serialize};

use crate::containers::{Contained, Containers};

/// The age of a flow up to which its container is looked up again: runtimes are asked once a second, and an application may dial sooner.
const LOOK_UP_FOR: Duration = Duration::from_secs(5);

/// A flow, its rule, and what its handshake has told of the client.
pub struct Whose {
    /// The flow.
    pub flow: Arc<Flow>,
    /// The rule that decided it.
    pub rule: RuleName,
    /// The client's cgroup, if the client is on this host. It is looked up when it is first asked
    /// for. That should be soon: it takes reading a few files, and the process has to be there.
    pub cgroup: LazyLock<Option<String>, Find>,
    containers: Arc<Containers>,
    container: OnceLock<Arc<Contained>>,
    /// Set when the container is not looked up again.
    is_settled: AtomicBool,
    log_in: Mutex<LogIn>,
    application: OnceLock<Box<str>>,
    driver: OnceLock<Box<str>>,
    driver_version: OnceLock<Box<str>>,
}

/// Returns a flow's database, as flows tell it from others.
pub fn database(flow: &Flow) -> Database {
    let netns = flow.netns.as_ref().map_or(0, |netns| netns.cookie);
    Database::new(flow.orig_dst.socket_addr(), netns)
}

/// Facts of a flow's client that it has told when it began, for another process that goes on with the flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhoseFacts {
    user: Option<Box<str>>,
    application: Option<Box<str>>,
    driver: Option<Box<str>>,
    driver_version: Option<Box<str>>,
}

/// The latest log-in that the database has accepted.
#[derive(Default)]
struct LogIn {
    user: Option<Arc<str>>,
    /// The number of log-ins until now.
    count: usize,
}

impl LogIn {
    fn set(&mut self, user: Option<&str>) {
        self.user = user.map(Into::into);
        self.count += 1;
    }
}

type Find = Box<dyn FnOnce() -> Option<String> + Send>;

impl fmt::Debug for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Whose").field(&self.flow.id).finish()
    }
}

impl Whose {
    /// Describes a flow whose rule is decided.
    pub fn new(flow: &Arc<Flow>, containers: &Arc<Containers>) -> Self {
        let of = flow.clone();
        let find: Find = Box::new(move || {
            let process = Some(&of.process).filter(|process| !process.is_elsewhere())?;
            let path = dataplane::host::cgroup_of(process.pid, process.cgroup_id)?;
            Some(path.display().to_string())
        });
        let whose = Self {
            flow: flow.clone(),
            rule: flow.rule(),
            cgroup: LazyLock::new(find),
            containers: containers.clone(),
            container: OnceLock::new(),
            is_settled: AtomicBool::new(false),
            log_in: Mutex::default(),
            application: OnceLock::new(),
            driver: OnceLock::new(),
            driver_version: OnceLock::new(),
        };
        if let Some(session) = flow.decided().session {
            let known = |to: &OnceLock<Box<str>>, value: Option<&String>| {
                value.map(|value| to.set(value.as_str().into()))
            };
            if let Some(user) = session.user.value() {
                whose.log_in.lock().set(Some(user));
            }
            known(&whose.application, session.application.value());
            known(&whose.driver, session.driver.value());
            known(&whose.driver_version, session.driver_version.value());
        }
        whose
    }

    /// Returns what the client has told.
    pub fn facts(&self) -> WhoseFacts {
        WhoseFacts {
            user: self.user().map(|user| (*user).into()),
            application: self.application.get().cloned(),
            driver: self.driver.get().cloned(),
            driver_version: self.driver_version.get().cloned(),
        }
    }

    /// Takes over what the client has told another process.
    pub fn learn(&self, facts: WhoseFacts) {
        let WhoseFacts {
            user,
            application,
            driver,
            driver_version,
        } = facts;
        // None: another one than the session's, by a log-in that nobody can read.
        self.log_in.lock().set(user.as_deref());
        for (to, known) in [
            (&self.application, application),
            (&self.driver, driver),
            (&self.driver_version, driver_version),
        ] {
            // A fact that is there already is the same one.
            let _ = known.map(|known| to.set(known));
        }
    }

    /// Returns the user that has logged in last, where that is known: by SASL PLAIN, while the flow
    /// was read. A client may log in again at any time.
    pub fn user(&self) -> Option<Arc<str>> {
        self.log_in.lock().user.clone()
    }

    /// Returns the STARTUP's APPLICATION_NAME, where that is known.
    pub fn application(&self) -> Option<&str> {
        self.application.get().map(|name| &**name)
    }

    /// Returns the STARTUP's DRIVER_NAME and DRIVER_VERSION, where they are known.
    pub fn driver(&self) -> [Option<&str>; 2] {
        [&self.driver, &self.driver_version].map(|known| known.get().map(|name| &**name))
    }

    /// Returns a number that grows when a fact becomes known, or another one takes its place.
    pub fn knows(&self) -> usize {
        let known = [&self.application, &self.driver, &self.driver_version];
        let known = known.iter().filter(|known| known.get().is_some()).count();
        known
            + self.log_in.lock().count
            + usize::from(self.flow.backend().is_some())
            + usize::from(self.container().is_some())
    }

    /// Returns the container that the client's process is in, where a runtime has told of it.
    pub fn container(&self) -> Option<&Contained> {
        if let Some(found) = self.container.get() {
            return Some(found);
        }
        if self.is_settled.load(Relaxed) {
            return None;
        }
        if self.containers.is_empty() {
            return None;
        }
        if self.flow.opened.elapsed() > LOOK_UP_FOR {
            self.is_settled.store(true, Relaxed);
        }
        let process = Some(&self.flow.process).filter(|process| !process.is_elsewhere())?;
        let above = || self.containers.at(Path::new(self.cgroup.as_deref()?));
        let found = self.containers.numbered(process.cgroup_id).or_else(above)?;
        Some(self.container.get_or_init(|| found))
    }

    /// Returns the name of the client's process, if that is on this host.
    pub fn process(&self) -> Option<&str> {
        let process = &self.flow.process;
        (!process.is_elsewhere()).then_some(process.name.as_str())
    }

    /// Returns the database's address.
    pub fn coordinator(&self) -> SocketAddr {
        let dialled = self.flow.orig_dst.socket_addr();
        self.flow.backend().unwrap_or(dialled)
    }

    /// Notes what the client says of itself, which the database has accepted. The first STARTUP
    /// counts, and the last log-in.
    pub(super) fn says(&self, says: &Says) {
        let set = |to: &OnceLock<Box<str>>, value: &Option<Box<str>>| {
            if let (None, Some(value)) = (to.get(), value) {
                let _ = to.set(value.clone());
            }
        };
        match says {
            Says::Startup(introduction) => {
                set(&self.application, &introduction.application);
                set(&self.driver, &introduction.driver);
                set(&self.driver_version, &introduction.driver_version);
            }
            Says::User(name) => self.log_in.lock().set(Some(name)),
            Says::UnknownUser => self.log_in.lock().set(None),
        }
    }
}
