//! The kernel's account of what programs used: CPU, context switches, memory, bytes.

mod processes;
mod sockets;

pub use processes::{Meter, Spent, field, forget_rss_peak, rss_peak_kib};
pub use sockets::{Socket, Sockets, connected, listener};
