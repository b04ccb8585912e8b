//! CQL statements at random, as clients may write them: quoted names, comments, `$$`, no blanks where none are needed,
//! JSON, user types, vectors, conditions, counters, `IN ?`, bound values with names, GROUP BY, functions.
//!
//! Tests of the editor take them without a database; the differential test asks a real Cassandra. The files:
//!
//! 1. `schema`: the tables that statements are about, and how they are made.
//! 2. `statement`: one statement; `select`, `write`: its kinds.
//! 3. `term`: constants, functions, and values that are bound, with their bytes.
//! 4. `text`: tokens, with what may stand between them; `random`: the numbers behind it all.
//!
//! **Invariant**: a statement is a function of the seed, its number and the length of the keyspace's name: the same
//! ones in two keyspaces differ in that name alone.

#![forbid(unsafe_code)]

mod random;
mod schema;
mod select;
mod statement;
mod term;
mod text;
mod write;

pub use random::Random;
pub use schema::{TABLES, schema};
pub use statement::{Statement, Value, statement};
