//! Whose flow it is that reporters follow.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, LazyLock, OnceLock},
};

use cql::Says;
use policy::RuleName;

use crate::flows::Flow;

/// See the module.
pub struct Whose {
    /// The flow.
    pub flow: Arc<Flow>,
    /// The rule that decided it.
    pub rule: RuleName,
    /// The client's cgroup, if it is on this host. Looked up when it is first asked for, which is better
    /// soon: it takes reading a few files, and a process that is there.
    pub cgroup: LazyLock<Option<String>, Find>,
    user: OnceLock<Box<str>>,
    application: OnceLock<Box<str>>,
    driver: OnceLock<Box<str>>,
    driver_version: OnceLock<Box<str>>,
}

type Find = Box<dyn FnOnce() -> Option<String> + Send>;

impl fmt::Debug for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Whose").field(&self.flow.id).finish()
    }
}

impl Whose {
    /// Of a flow whose rule is decided.
    pub fn new(flow: &Arc<Flow>) -> Self {
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
            user: OnceLock::new(),
            application: OnceLock::new(),
            driver: OnceLock::new(),
            driver_version: OnceLock::new(),
        };
        if let Some(session) = flow.decided().session {
            let known = |to: &OnceLock<Box<str>>, value: Option<&String>| {
                value.map(|value| to.set(value.as_str().into()))
            };
            known(&whose.user, session.user.value());
            known(&whose.application, session.application.value());
            known(&whose.driver, session.driver.value());
            known(&whose.driver_version, session.driver_version.value());
        }
        whose
    }

    /// Who has logged in, where that is known: by SASL PLAIN, while the flow was read.
    pub fn user(&self) -> Option<&str> {
        self.user.get().map(|user| &**user)
    }

    /// STARTUP's APPLICATION_NAME, where that is known.
    pub fn application(&self) -> Option<&str> {
        self.application.get().map(|name| &**name)
    }

    /// STARTUP's DRIVER_NAME and DRIVER_VERSION, where they are known.
    pub fn driver(&self) -> [Option<&str>; 2] {
        [&self.driver, &self.driver_version].map(|known| known.get().map(|name| &**name))
    }

    /// How much of this is known by now: it only grows.
    pub fn knows(&self) -> usize {
        let known = [
            &self.user,
            &self.application,
            &self.driver,
            &self.driver_version,
        ];
        let known = known.iter().filter(|known| known.get().is_some()).count();
        known + usize::from(self.flow.backend().is_some())
    }

    /// The name of the client's process, if that is on this host.
    pub fn process(&self) -> Option<&str> {
        let process = &self.flow.process;
        (!process.is_elsewhere()).then_some(process.name.as_str())
    }

    /// The database's address.
    pub fn coordinator(&self) -> SocketAddr {
        let dialled = self.flow.orig_dst.socket_addr();
        self.flow.backend().unwrap_or(dialled)
    }

    /// The database has accepted what the client says. The first one counts.
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
            Says::User(name) => set(&self.user, &Some(name.clone())),
        }
    }
}
