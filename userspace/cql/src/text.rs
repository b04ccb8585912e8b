//! The texts of statements, token by token, for who changes them: `cql-edit`.

pub use crate::analysis::{MAX_DEPTH, Token, Tokens, is_reserved, is_understood};
pub use crate::lex::{MAX_NAME_BYTES, Name};
pub use crate::parse::{Parsed, parse};
pub use crate::statement::StatementRef;
