//! Effects: steps of a pipeline that the agent carries out, because they need more than the frames
//! that pass.
//!
//! To the pipeline each effect is a [`Transform`], which lets everything pass until it is open. How
//! it asks somebody outside, and makes requests wait for that, is its own matter
//! ([`Ticket`](cql_edit::Ticket)). Each effect is one file, or folder, and one line in the list
//! below.

use cql_edit::Transform;
use policy::RuleName;

use crate::services::Services;

/// A step that has to open something before it can do anything.
pub trait Effect: Transform {
    /// Reads the certificates that the step names, as [`Self::open`] does, only to check whether
    /// they are good.
    ///
    /// # Errors
    /// Names the bad certificate, and the reason.
    fn reads(&self) -> Result<(), String> {
        Ok(())
    }

    /// Opens what the step needs, before its rule is in force.
    ///
    /// # Errors
    /// Names what cannot be opened, and the reason.
    fn open(&self, rule: &RuleName, services: &Services) -> Result<(), String>;

    /// Whether the step has to be behind all transforms, because it takes the requests that it sees
    /// for those that the database gets.
    fn is_last(&self) -> bool {
        false
    }
}
