//! ScyllaDB's fork of gocql.
