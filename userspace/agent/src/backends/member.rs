//! One backend, as the task that owns backends knows it.

use std::time::SystemTime;

use policy::RuleName;
use tokio::time::Instant;

use super::health::Health;

/// A backend, as its owner knows it.
pub(super) struct Member {
    pub health: Health,
    /// The rules that name the backend, in the policy's order.
    pub rules: Vec<RuleName>,
    pub changed_at: SystemTime,
    pub last_error: Option<String>,
    pub good: u64,
    pub failed: u64,
    pub next_check: Instant,
    pub is_checked: bool,
}
