//! The Cassandra that `cargo xtask test` provides.

use std::net::SocketAddr;

use sandbox::skip;

/// A node, and its superuser.
pub struct Cassandra {
    pub addr: SocketAddr,
    pub user: String,
    pub password: String,
}

impl Cassandra {
    /// None: there is none, and `test` is skipped, or goes without it.
    pub fn provided(test: &str) -> Option<Self> {
        Some(Self {
            addr: skip::provided(test, "UNDERPASS_CASSANDRA")?
                .parse()
                .unwrap(),
            user: skip::provided(test, "UNDERPASS_CASSANDRA_USER")?,
            password: skip::provided(test, "UNDERPASS_CASSANDRA_PASSWORD")?,
        })
    }
}
