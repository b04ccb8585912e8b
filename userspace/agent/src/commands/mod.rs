//! One file per command.

pub mod check;
pub mod detach;
pub mod doctor;
pub mod flows;
pub mod run;
mod table;
