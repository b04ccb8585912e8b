//! The texts of statements: their tokens, their kinds and tables, and their grammar.
//!
//! - `lex`: words and names; `parse`: which statement a text is, and of which table; `statement`: what is remembered of it.
//! - `analysis`: what else a text asks for, by Cassandra's grammar.
//!
//! What is public here is for who changes texts (`cql-edit`).

pub(crate) mod analysis;
pub(crate) mod lex;
pub(crate) mod parse;
pub(crate) mod statement;

pub use analysis::{MAX_DEPTH, Token, Tokens, is_reserved, is_understood, kept};
pub use lex::{MAX_NAME_BYTES, Name};
pub use parse::{Parsed, parse};
pub use statement::StatementRef;
