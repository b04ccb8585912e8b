//! [`Note`]: data of a step's own that the editor keeps for it.

use std::any::Any;
use std::sync::Arc;

/// A value that a step keeps with a request until its response is there.
pub type Note = Arc<dyn Any + Send + Sync>;
