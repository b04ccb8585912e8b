//! The user that a node lets in.

use std::fmt;

/// A user and password, checked as Cassandra's `PasswordAuthenticator` does.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name `system_views.clients` tells.
    pub user: String,
    /// In the clear: this is a test database.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}
