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
pub mod flows;
pub mod init;
pub mod keep;
pub mod log;
pub mod marks;
pub mod namespaces;
pub mod pages;
pub mod run;
pub mod schema;
pub mod statements;
mod table;
pub mod top;
mod trial;
