//! One file per command.

pub mod backends;
pub mod check;
mod control;
pub mod denied;
pub mod detach;
pub mod doctor;
mod doubts;
pub mod endpoint;
pub mod explain;
pub mod filter;
pub mod flows;
pub mod keep;
mod live;
pub mod marks;
pub mod namespaces;
pub mod run;
pub mod schema;
pub mod statements;
mod table;
pub mod tail;
pub mod top;
mod trial;
