//! The versions that a node speaks and claims to be.

/// The oldest protocol version spoken.
pub(super) const MIN_VERSION: u8 = 3;
/// The newest protocol version spoken.
pub(super) const MAX_VERSION: u8 = 5;
/// The version of the language, as `system.local` has it.
pub(super) const CQL_VERSION: &str = "3.4.7";
/// The version of the database, as `system.local` has it.
pub(super) const RELEASE_VERSION: &str = "5.0.0-underpass-testkit";
