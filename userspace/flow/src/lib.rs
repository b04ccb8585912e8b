//! Flows: the connections that the agent carries, what is known of each, and the commands that reach its task.
//!
//! - `flow`: one flow; `flows`: all of them.
//! - `standing`: the decision on a flow, and why its bytes travel as they do; `about`: its pipeline.
//! - `view`: a flow as `/flows` gives it.
//! - `close_reason`: the reasons for which flows end.
//! - `commands`: a command to a flow's task, and the answer.
//! - `handing`: whether a flow goes to an agent that has taken over.
//! - `selector`: conditions that pick running flows.
//!
//! **Boundary**: nothing here moves a byte. `proxy` does, and tells the flow.

#![forbid(unsafe_code)]

mod about;
mod close_reason;
pub mod commands;
mod flow;
mod flows;
mod handing;
mod selector;
mod standing;
mod view;

pub use about::About;
pub use close_reason::CloseReason;
pub use flow::{Decided, Flow, FlowId, Newcomer, Past, Path, UNDECIDED};
pub use flows::Flows;
pub use handing::{Handing, Stays};
pub use selector::{Holds, Known, Selector};
pub use standing::LegNow;
pub use view::{FlowView, SessionView};
