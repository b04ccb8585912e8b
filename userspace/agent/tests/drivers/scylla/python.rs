//! `scylla-driver`, the Python driver's fork.
