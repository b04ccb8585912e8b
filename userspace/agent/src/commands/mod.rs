//! One file per command.

pub mod check;
mod control;
pub mod detach;
pub mod doctor;
pub mod flows;
pub mod keep;
pub mod marks;
pub mod run;
mod table;
