//! The identity of a flow, for its reporters.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, LazyLock, OnceLock},
};

use cql::Says;
use flow::Flow;
use policy::RuleName;

/// A flow, its rule, and what its handshake has told of the client.
pub struct Whose {
    /// The flow.
    pub flow: Arc<Flow>,
    /// The rule that decided it.
    pub rule: RuleName,
    /// The client's cgroup, if the client is on this host. It is looked up when it is first asked
    /// for. That should be soon: it takes reading a few files, and the process has to be there.
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
    /// Describes a flow whose rule is decided.
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

    /// Returns the user that has logged in, where that is known: by SASL PLAIN, while the flow was
    /// read.
    pub fn user(&self) -> Option<&str> {
        self.user.get().map(|user| &**user)
    }

    /// Returns the STARTUP's APPLICATION_NAME, where that is known.
    pub fn application(&self) -> Option<&str> {
        self.application.get().map(|name| &**name)
    }

    /// Returns the STARTUP's DRIVER_NAME and DRIVER_VERSION, where they are known.
    pub fn driver(&self) -> [Option<&str>; 2] {
        [&self.driver, &self.driver_version].map(|known| known.get().map(|name| &**name))
    }

    /// Returns the number of facts that are known by now. It only grows.
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

    /// Notes what the client says of itself, which the database has accepted. Only the first value
    /// counts.
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
