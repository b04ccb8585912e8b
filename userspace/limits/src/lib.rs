//! Rates that the hosts of a fleet share, tenant by tenant. Pure: no I/O, no clock.
//!
//! Each host measures how much of a rate its tenants ask for, and publishes that ([`Record`]). One of the hosts, the leader, reads
//! what all have published, and publishes levels ([`Levels`]): two numbers for each tenant, from which every host computes its own
//! share of the rate. So no request waits for anybody, and what is published does not grow with the square of the hosts.
//!
//! - `limit`: a limit on this host, and the shares that its requests are held to; `demand`: how much is asked for.
//! - `level`: fair shares; `book`: the leader's part; `member`: every host's part.
//!
//! **Invariant**: a host grows only into what the leader knows it to want, and only when two levels in a row say so. It shrinks at
//! once. So shares add up to the rate, [`HEADROOM`] and [`FLOOR`] above it at most, while all hosts hear the leader.

#![forbid(unsafe_code)]

mod book;
mod demand;
mod level;
mod limit;
mod member;

pub use book::{
    Book, LEASE_PERIODS, Levels, MAX_LEVELS, MAX_WANTED, PERIOD, RECORDS_PER_SECOND, Record,
    SharedLevels, WAITS_IN_LEASE, Wanted,
};
pub use demand::Demand;
pub use level::{FLOOR, HEADROOM, Level, fair};
pub use limit::{FIRST_SHARE, Limit, MAX_TENANTS, Share, Tenant};
pub use member::{Held, MAX_TOLD, Member};
