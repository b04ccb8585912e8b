//! Whether every byte arrives: once, in order, unharmed, in time, on whatever path.
//!
//! Clients and a server send each other random streams in which each byte is known by its
//! position (`stream`), in every manner in which applications use sockets (`behaviour`). What
//! a connection does follows from the seed and the connection's number (`script`), so that both
//! ends know it and a run can be repeated. In the end there is a [`Report`]: wrong bytes, hangs,
//! and *violations*, which are what a socket does that one of a direct connection would not.
//!
//! The way of a connection:
//!
//! 1. `drive`: begun, as the [`Plan`] says; `handshake`: as a driver does, if that is asked for.
//! 2. `hello`: the first message, from which `server` derives the same script.
//! 3. `end`: one end, played by `events` (it never blocks) or `threads` (it does), which use
//!    `reading`, `writing` and `waiting`.
//! 4. `check`: what came, against what should have; `watch`: whether anything comes at all.
//! 5. `report`: all of it; the server's part is fetched over a connection of its own.
//!
//! `child` plays an end that is killed. `contents`, `front`: frames that somebody edits on their way, and what arrives
//! of them.

mod behaviour;
mod check;
mod child;
mod contents;
mod dice;
mod drive;
mod end;
mod events;
mod frames;
mod front;
mod handshake;
mod hello;
mod notes;
mod options;
mod plan;
mod ranges;
mod reading;
mod report;
mod script;
mod server;
mod stream;
mod threads;
mod waiting;
mod watch;
mod writing;

pub use behaviour::{Choices, Reading, Shape, Waiting, Writing};
pub use check::Wrong;
pub use child::child;
pub use drive::{drive, drive_while};
pub use front::{CLIENTS_KEYSPACE, SERVERS_KEYSPACE};
pub use plan::{Cql, Helper, Plan};
pub use report::{Corruption, Hang, Kind, Report, Side};
pub use server::{Options, Server, listen};
pub use stream::Direction;
