//! [`Statement`]: a statement's kind, and the keyspace and table that it names.
//!
//! [`Statements`] hands out one `Arc` for equal statements, so that a flow which keeps asking the
//! same things allocates nothing.

use crate::hash::{BuildSpread, Fnv};
use crate::labelled;
use crate::text::lex::Name;
use std::collections::HashMap;
use std::sync::Arc;

/// Statements that one flow keeps at hand. An application asks a few dozen different things of a
/// few dozen tables; 256 of them are at most 150 KiB, usually 20. When full, all are forgotten: it
/// costs each of those in use one allocation, and needs no bookkeeping on every frame.
const MAX_STATEMENTS: usize = 256;

/// The kind of a statement. Labels of metrics, so a fixed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatementKind {
    /// SELECT
    Select,
    /// INSERT
    Insert,
    /// UPDATE
    Update,
    /// DELETE
    Delete,
    /// A BATCH request, or the text `BEGIN .. BATCH ..`
    Batch,
    /// USE; `keyspace` is the one it asks for
    Use,
    /// TRUNCATE
    Truncate,
    /// CREATE of anything
    Create,
    /// ALTER of anything
    Alter,
    /// DROP of anything
    Drop,
    /// GRANT
    Grant,
    /// REVOKE
    Revoke,
    /// LIST
    List,
    /// DESCRIBE
    Describe,
    /// A QUERY request whose text could not be read
    Query,
    /// An EXECUTE request of a statement that is not known
    Execute,
    /// A PREPARE request; keyspace and table are those of the statement that it prepares
    Prepare,
    /// A STARTUP request
    Startup,
    /// An OPTIONS request
    Options,
    /// A REGISTER request
    Register,
    /// An AUTH_RESPONSE request
    AuthResponse,
    /// A text that begins with none of the above, or a request with an unknown opcode
    Unknown,
}

labelled!(StatementKind {
    Select => "select",
    Insert => "insert",
    Update => "update",
    Delete => "delete",
    Batch => "batch",
    Use => "use",
    Truncate => "truncate",
    Create => "create",
    Alter => "alter",
    Drop => "drop",
    Grant => "grant",
    Revoke => "revoke",
    List => "list",
    Describe => "describe",
    Query => "query",
    Execute => "execute",
    Prepare => "prepare",
    Startup => "startup",
    Options => "options",
    Register => "register",
    AuthResponse => "auth_response",
    Unknown => "unknown",
});

/// A statement's kind, keyspace and table. Names are as the database stores them: folded to lower case
/// unless they were quoted, and at most 256 bytes long (`lex::MAX_NAME_BYTES`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Statement {
    /// The statement's kind.
    pub kind: StatementKind,
    /// The keyspace: the table's own qualifier, or that of the request, or the flow's. `None` if
    /// none of them is known.
    pub keyspace: Option<Box<str>>,
    /// The table; of a batch, its first child's that has one.
    pub table: Option<Box<str>>,
}

impl Statement {
    /// The statement with another kind, its names borrowed.
    pub(crate) fn as_kind(&self, kind: StatementKind) -> StatementRef<'_> {
        StatementRef {
            kind,
            keyspace: self.keyspace.as_deref().map(Name::Exact),
            table: self.table.as_deref().map(Name::Exact),
        }
    }
}

/// A [`Statement`] whose names still lie in a request's text.
#[derive(Clone, Copy, Debug)]
pub struct StatementRef<'t> {
    /// The statement's kind.
    pub kind: StatementKind,
    /// The keyspace that the text names.
    pub keyspace: Option<Name<'t>>,
    /// The table that the text names.
    pub table: Option<Name<'t>>,
}

impl StatementRef<'_> {
    /// A statement of which only the kind is known.
    pub(crate) fn bare(kind: StatementKind) -> Self {
        Self {
            kind,
            keyspace: None,
            table: None,
        }
    }

    pub(crate) fn is(&self, statement: &Statement) -> bool {
        let same = |name: Option<Name<'_>>, owned: &Option<Box<str>>| match (name, owned) {
            (Some(name), Some(owned)) => name.is(owned),
            (None, None) => true,
            _ => false,
        };
        self.kind == statement.kind
            && same(self.keyspace, &statement.keyspace)
            && same(self.table, &statement.table)
    }

    fn hash(&self) -> u64 {
        let mut hash = Fnv::default().with(self.kind as u8);
        for name in [self.keyspace, self.table] {
            // 0xFF and 0xFE occur in no UTF-8: "no name" differs from "", "ab" + "c" from "a" + "bc".
            hash = match name {
                Some(name) => name.bytes().fold(hash, Fnv::with).with(0xFF),
                None => hash.with(0xFE),
            };
        }
        hash.0
    }

    pub(crate) fn to_owned(self) -> Statement {
        Statement {
            kind: self.kind,
            keyspace: self.keyspace.map(Name::to_boxed),
            table: self.table.map(Name::to_boxed),
        }
    }
}

/// The statements that a flow used lately.
#[derive(Debug, Default)]
pub(crate) struct Statements {
    by_hash: HashMap<u64, Arc<Statement>, BuildSpread>,
    /// The last one of which only the kind was known: what nearly every frame asks for.
    bare: Option<Arc<Statement>>,
}

impl Statements {
    /// The one `Arc` of the statement of which only the kind is known.
    #[inline]
    pub(crate) fn bare(&mut self, kind: StatementKind) -> Arc<Statement> {
        match &self.bare {
            Some(bare) if bare.kind == kind => Arc::clone(bare),
            _ => self.another_bare(kind),
        }
    }

    #[cold]
    #[inline(never)]
    fn another_bare(&mut self, kind: StatementKind) -> Arc<Statement> {
        let bare = self.get(StatementRef::bare(kind));
        self.bare = Some(Arc::clone(&bare));
        bare
    }

    /// The one `Arc` of this statement.
    pub(crate) fn get(&mut self, wanted: StatementRef<'_>) -> Arc<Statement> {
        let hash = wanted.hash();
        if let Some(known) = self.by_hash.get(&hash)
            && wanted.is(known)
        {
            return Arc::clone(known);
        }
        if self.by_hash.len() >= MAX_STATEMENTS {
            self.by_hash.clear();
        }
        let statement = Arc::new(wanted.to_owned());
        self.by_hash.insert(hash, Arc::clone(&statement));
        statement
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(table: &str) -> StatementRef<'_> {
        StatementRef {
            kind: StatementKind::Select,
            keyspace: None,
            table: Some(Name::Exact(table)),
        }
    }

    #[test]
    fn equal_statements_are_one() {
        let mut statements = Statements::default();
        let first = statements.get(select("t"));
        let folded = StatementRef {
            table: Some(Name::Folded("T")),
            ..select("")
        };
        assert!(Arc::ptr_eq(&first, &statements.get(folded)));
        assert_eq!(first.table.as_deref(), Some("t"));
        for other in [
            select("u"),
            StatementRef {
                kind: StatementKind::Insert,
                ..select("t")
            },
            StatementRef {
                keyspace: Some(Name::Exact("")),
                ..select("t")
            },
            StatementRef {
                keyspace: Some(Name::Exact("t")),
                table: None,
                ..select("")
            },
        ] {
            assert_ne!(first, statements.get(other));
        }
    }

    #[test]
    fn a_bare_statement_is_one_by_either_way() {
        let mut statements = Statements::default();
        for kind in [StatementKind::Query, StatementKind::Execute].repeat(2) {
            let bare = statements.bare(kind);
            assert_eq!(*bare, StatementRef::bare(kind).to_owned());
            assert!(Arc::ptr_eq(&bare, &statements.bare(kind)));
            assert!(Arc::ptr_eq(
                &bare,
                &statements.get(StatementRef::bare(kind))
            ));
        }
    }

    #[test]
    fn a_collision_never_mislabels() {
        let mut statements = Statements::default();
        let other = Arc::new(select("other").to_owned());
        statements.by_hash.insert(select("t").hash(), other);
        assert_eq!(statements.get(select("t")).table.as_deref(), Some("t"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut statements = Statements::default();
        for i in 0..10 * MAX_STATEMENTS {
            statements.get(select(&i.to_string()));
            assert!(statements.by_hash.len() <= MAX_STATEMENTS);
        }
    }
}
