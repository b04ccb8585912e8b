//! One file per command.

pub mod backends;
pub mod check;
mod control;
pub mod debug_bundle;
pub mod denied;
pub mod detach;
pub mod doctor;
mod doubts;
pub mod endpoint;
pub mod explain;
pub mod filter;
pub mod flows;
pub mod init;
pub mod keep;
mod live;
pub mod log;
pub mod marks;
pub mod namespaces;
pub mod overhead;
pub mod pages;
pub mod run;
pub mod schema;
pub mod statements;
mod table;
pub mod tail;
pub mod top;
mod trial;
