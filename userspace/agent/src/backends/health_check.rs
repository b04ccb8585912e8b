//! HealthCheck of health checks.

use std::time::Duration;

/// Backends that are checked: each costs a connection in every interval.
pub const MAX_CHECKED: usize = 1024;

/// The settings of health checks, and of what follows from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The time from one check to the next, approximately.
    pub interval: Duration,
    /// The time after which a check has failed. `fall` checks of this length fit into nine tenths
    /// of an interval, so that a backend that dies gets no new connections two intervals later.
    pub timeout: Duration,
    /// The number of good checks in a row that bring a backend back.
    pub rise: u32,
    /// The number of failed checks in a row that take a backend out.
    pub fall: u32,
    /// The time after which a backend that comes back gets its full share.
    pub slow_start: Duration,
    /// Whether a backend has to answer as CQL does; otherwise it is enough to accept a connection.
    pub cql: bool,
    /// The treatment of connections to a backend that is found dead.
    pub established: Established,
}

/// The treatment of connections to a backend that is found dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// The connections end as they would end without us.
    Leave,
    /// The connections are reset: those that the agent carries, and those of its network namespace
    /// that connect() has sent straight to the backend.
    Reset,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            timeout: Duration::from_millis(400),
            rise: 2,
            fall: 2,
            slow_start: Duration::from_secs(10),
            cql: true,
            established: Established::Leave,
        }
    }
}
