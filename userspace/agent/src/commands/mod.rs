//! One file per command.

pub mod check;
mod control;
pub mod detach;
pub mod doctor;
pub mod flows;
pub mod marks;
pub mod run;
mod table;
