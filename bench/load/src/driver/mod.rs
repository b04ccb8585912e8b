//! Real drivers, as applications have them.

pub mod cql;
pub mod redis;
mod requests;
