//! [`parse`]: which statement a CQL text is, and which keyspace and table it names.
//!
//! Not a parser: it reads the first words and looks for the one table. The database decides what is
//! valid. Where a text does not look as expected, the name is left out rather than guessed.

use crate::text::lex::{Lexer, MAX_NAME_BYTES, Name, Token};
use crate::text::statement::{Statement, StatementKind, StatementRef};

/// The statement that [`parse`] found.
#[derive(Clone, Copy, Debug)]
pub struct Parsed<'t> {
    /// The keyspace is only there when the text names it.
    pub statement: StatementRef<'t>,
    /// The part that is read ended before everything was found.
    pub cut: bool,
}

/// Words that cannot be a name unless quoted and that stand where one is missing.
const NOT_NAMES: [&str; 12] = [
    "from", "if", "in", "into", "limit", "order", "select", "set", "table", "token", "using",
    "where",
];

/// `text`: the beginning of a statement that is `declared` bytes long.
pub fn parse(text: &[u8], declared: usize) -> Parsed<'_> {
    let mut reader = Reader {
        lexer: Lexer::new(text, declared),
        token: Token::Other,
    };
    reader.advance();
    let statement = reader.statement();
    let missing = statement.keyspace.is_none() && statement.table.is_none();
    Parsed {
        statement,
        cut: missing && reader.token == Token::Cut,
    }
}

/// A lexer and the token at hand.
struct Reader<'t> {
    lexer: Lexer<'t>,
    token: Token<'t>,
}

impl<'t> Reader<'t> {
    fn statement(&mut self) -> StatementRef<'t> {
        use StatementKind as Kind;
        let Token::Word(verb) = self.token else {
            return StatementRef::bare(Kind::Unknown);
        };
        self.advance();
        let is = |keyword: &str| verb.eq_ignore_ascii_case(keyword);
        // The data statements first: they are the frequent ones.
        if is("select") {
            self.behind_from(Kind::Select)
        } else if is("insert") {
            self.insert()
        } else if is("update") {
            self.table(Kind::Update)
        } else if is("delete") {
            self.behind_from(Kind::Delete)
        } else if is("begin") {
            self.batch()
        } else if is("use") {
            let keyspace = self.name();
            StatementRef {
                keyspace,
                ..StatementRef::bare(Kind::Use)
            }
        } else if is("truncate") {
            _ = self.accept("table") || self.accept("columnfamily");
            self.table(Kind::Truncate)
        } else if is("create") {
            self.definition(Kind::Create)
        } else if is("alter") {
            self.definition(Kind::Alter)
        } else if is("drop") {
            self.definition(Kind::Drop)
        } else if is("grant") {
            StatementRef::bare(Kind::Grant)
        } else if is("revoke") {
            StatementRef::bare(Kind::Revoke)
        } else if is("list") {
            StatementRef::bare(Kind::List)
        } else if is("describe") || is("desc") {
            StatementRef::bare(Kind::Describe)
        } else {
            StatementRef::bare(Kind::Unknown)
        }
    }

    /// `.. FROM t`, whatever is selected or deleted.
    fn behind_from(&mut self, kind: StatementKind) -> StatementRef<'t> {
        let mut depth = 0_usize;
        loop {
            match self.token {
                Token::Open => depth += 1,
                // A bracket too many: this is no statement.
                Token::Close if depth == 0 => return StatementRef::bare(kind),
                Token::Close => depth -= 1,
                Token::Word(word) if depth == 0 && word.eq_ignore_ascii_case("from") => break,
                Token::End | Token::Cut => return StatementRef::bare(kind),
                _ => {}
            }
            self.advance();
        }
        self.advance();
        self.table(kind)
    }

    /// `INTO t ..`
    fn insert(&mut self) -> StatementRef<'t> {
        if self.accept("into") {
            self.table(StatementKind::Insert)
        } else {
            StatementRef::bare(StatementKind::Insert)
        }
    }

    /// `[UNLOGGED | COUNTER] BATCH [USING ..] child ..`: the first child's names.
    fn batch(&mut self) -> StatementRef<'t> {
        _ = self.accept("unlogged") || self.accept("counter");
        if !self.accept("batch") {
            return StatementRef::bare(StatementKind::Unknown);
        }
        let child = loop {
            if self.accept("insert") {
                break self.insert();
            } else if self.accept("update") {
                break self.table(StatementKind::Update);
            } else if self.accept("delete") {
                break self.behind_from(StatementKind::Delete);
            } else if let Token::End | Token::Cut = self.token {
                break StatementRef::bare(StatementKind::Batch);
            }
            self.advance();
        };
        StatementRef {
            kind: StatementKind::Batch,
            ..child
        }
    }

    /// Parses the words behind CREATE, ALTER or DROP. Only tables and keyspaces are named.
    fn definition(&mut self, kind: StatementKind) -> StatementRef<'t> {
        if self.accept("table") || self.accept("columnfamily") {
            self.if_exists();
            self.table(kind)
        } else if self.accept("keyspace") || self.accept("schema") {
            self.if_exists();
            let keyspace = self.name();
            StatementRef {
                keyspace,
                ..StatementRef::bare(kind)
            }
        } else {
            StatementRef::bare(kind)
        }
    }

    /// `[IF [NOT] EXISTS]`
    fn if_exists(&mut self) {
        if self.accept("if") {
            self.accept("not");
            self.accept("exists");
        }
    }

    /// `t` or `ks.t`
    fn table(&mut self, kind: StatementKind) -> StatementRef<'t> {
        let first = self.name();
        let second = self.qualified();
        let (keyspace, table) = match (first, second) {
            (Some(table), Qualified::No) => (None, Some(table)),
            (Some(keyspace), Qualified::By(table)) => (Some(keyspace), Some(table)),
            _ => (None, None),
        };
        StatementRef {
            kind,
            keyspace,
            table,
        }
    }

    fn qualified(&mut self) -> Qualified<'t> {
        // A keyspace's name that ends what is read may be followed by a dot.
        match self.token {
            Token::Cut => return Qualified::Oddly,
            Token::Dot => self.advance(),
            _ => return Qualified::No,
        }
        match (self.name(), self.token) {
            (Some(table), token) if token != Token::Dot => Qualified::By(table),
            _ => Qualified::Oddly,
        }
    }

    /// A name, which is consumed.
    fn name(&mut self) -> Option<Name<'t>> {
        let (text, name) = match self.token {
            Token::Word(word) => {
                if NOT_NAMES.iter().any(|not| word.eq_ignore_ascii_case(not)) {
                    return None;
                }
                (word, Name::Folded(word))
            }
            Token::Quoted(text) => (text, Name::Quoted(text)),
            _ => return None,
        };
        self.advance();
        (1..=MAX_NAME_BYTES).contains(&text.len()).then_some(name)
    }

    /// Consumes `keyword` if it is at hand.
    fn accept(&mut self, keyword: &str) -> bool {
        let here = matches!(self.token, Token::Word(word) if word.eq_ignore_ascii_case(keyword));
        if here {
            self.advance();
        }
        here
    }

    fn advance(&mut self) {
        self.token = self.lexer.next();
    }
}

/// The words behind the first part of a table's name.
enum Qualified<'t> {
    No,
    By(Name<'t>),
    /// Not what can follow.
    Oddly,
}

impl Statement {
    /// Reads the statement of `text`, as far as its first words tell.
    pub fn of(text: &[u8]) -> Self {
        parse(text, text.len()).statement.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> String {
        let statement = parse(text.as_bytes(), text.len()).statement;
        let name = |name: Option<Name<'_>>| name.map_or("-".into(), Name::to_boxed);
        format!(
            "{} {} {}",
            statement.kind,
            name(statement.keyspace),
            name(statement.table)
        )
    }

    #[test]
    fn statements() {
        for (text, expected) in [
            // data
            ("SELECT * FROM t", "select - t"),
            ("select a,b from Ks.Tbl where a=1", "select ks tbl"),
            ("SELECT JSON * FROM \"Ks\".\"T\"\"b\";", "select Ks T\"b"),
            ("SELECT DISTINCT a FROM ks . t", "select ks t"),
            ("SELECT 'x from y', $$ from z $$ FROM t", "select - t"),
            ("SELECT CAST(a AS int), f(g(b), from) FROM t", "select - t"),
            ("SELECT m['from'], \"from\" FROM t", "select - t"),
            ("SELECT m[? FROM], a FROM t", "select - t"),
            ("SELECT m[a FROM t", "select - -"),
            (
                "SELECT a -- from c\n, b // from d\n /* from e */ FROM t--",
                "select - t",
            ),
            ("SELECT count(*) FROM system.local", "select system local"),
            ("INSERT INTO ks.t (a) VALUES (?)", "insert ks t"),
            ("INSERT INTO t JSON '{}'", "insert - t"),
            ("insert/**/into\"t\"(a)values(1)", "insert - t"),
            ("UPDATE t USING TTL 3 SET a = 1", "update - t"),
            ("UPDATE ks.t SET a = 1", "update ks t"),
            ("DELETE FROM ks.t WHERE a = 1", "delete ks t"),
            ("DELETE a['from'], b FROM t USING TIMESTAMP 1", "delete - t"),
            ("TRUNCATE t", "truncate - t"),
            ("TRUNCATE TABLE ks.t", "truncate ks t"),
            ("TRUNCATE COLUMNFAMILY t", "truncate - t"),
            ("USE ks", "use ks -"),
            ("use \"Ks\";", "use Ks -"),
            // batches
            (
                "BEGIN BATCH INSERT INTO ks.t (a) VALUES (1) APPLY BATCH",
                "batch ks t",
            ),
            (
                "BEGIN UNLOGGED BATCH USING TIMESTAMP 1 UPDATE t SET a=1",
                "batch - t",
            ),
            ("begin counter batch delete a from t", "batch - t"),
            (
                "BEGIN BATCH USING TIMESTAMP :delete INSERT INTO t",
                "batch - t",
            ),
            ("BEGIN BATCH APPLY BATCH", "batch - -"),
            ("BEGIN TRANSACTION SELECT * FROM t", "unknown - -"),
            // definitions
            ("CREATE TABLE ks.t (a int PRIMARY KEY)", "create ks t"),
            ("CREATE TABLE IF NOT EXISTS t (a int)", "create - t"),
            ("CREATE COLUMNFAMILY t (a int)", "create - t"),
            ("CREATE KEYSPACE IF NOT EXISTS ks WITH x", "create ks -"),
            ("CREATE SCHEMA ks", "create ks -"),
            ("CREATE INDEX i ON ks.t (a)", "create - -"),
            ("CREATE OR REPLACE FUNCTION f()", "create - -"),
            ("CREATE ROLE r", "create - -"),
            ("ALTER TABLE IF EXISTS ks.t ADD b int", "alter ks t"),
            ("ALTER KEYSPACE ks WITH x", "alter ks -"),
            ("DROP TABLE IF EXISTS t", "drop - t"),
            ("DROP KEYSPACE ks", "drop ks -"),
            ("DROP TYPE ks.t", "drop - -"),
            // the rest
            ("GRANT SELECT ON ks.t TO r", "grant - -"),
            ("REVOKE SELECT ON ks.t FROM r", "revoke - -"),
            ("LIST ROLES", "list - -"),
            ("DESC TABLES", "describe - -"),
            ("DESCRIBE KEYSPACES", "describe - -"),
            // no guesses
            ("", "unknown - -"),
            ("/* SELECT", "unknown - -"),
            ("(SELECT a FROM t)", "unknown - -"),
            ("SELECTA FROM t", "unknown - -"),
            ("\"SELECT\" a FROM t", "unknown - -"),
            ("SELECT 'open FROM t", "select - -"),
            ("SELECT f( FROM t", "select - -"),
            ("SELECT a) FROM t", "select - -"),
            ("SELECT * FROM", "select - -"),
            ("SELECT * FROM WHERE a = 1", "select - -"),
            ("SELECT * FROM ?", "select - -"),
            ("SELECT * FROM ks.", "select - -"),
            ("SELECT * FROM .t", "select - -"),
            ("SELECT * FROM a.b.c", "select - -"),
            ("SELECT * FROM \"\"", "select - -"),
            ("INSERT t (a) VALUES (1)", "insert - -"),
            ("UPDATE SET a = 1", "update - -"),
            ("USE ?", "use - -"),
            ("BEGIN", "unknown - -"),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_left_out() {
        let longest = "x".repeat(MAX_NAME_BYTES);
        assert_eq!(
            parsed(&format!("USE {longest}")),
            format!("use {longest} -")
        );
        assert_eq!(parsed(&format!("USE {longest}x")), "use - -");
        assert_eq!(parsed(&format!("SELECT * FROM {longest}x.t")), "select - -");
    }

    #[test]
    fn a_cut_text_says_so_and_names_nothing_half() {
        let text = "SELECT a FROM keyspace1.table1 WHERE a = 1";
        let whole = text.find(" WHERE").unwrap();
        for len in 0..text.len() {
            let parsed = parse(&text.as_bytes()[..len], text.len());
            let table = parsed.statement.table.map(Name::to_boxed);
            assert_eq!(table.as_deref(), (len > whole).then_some("table1"), "{len}");
            assert_eq!(parsed.cut, len <= whole, "{len}");
        }
    }

    proptest! {
        #[test]
        fn survives_anything(text: Vec<u8>, cut: bool) {
            parse(&text, text.len() + usize::from(cut));
        }

        #[test]
        fn survives_what_looks_like_cql(
            words in proptest::collection::vec(
                proptest::sample::select(vec![
                    "select", "from", "insert", "into", "begin", "batch", "use", "create", "table",
                    "if", "not", "exists", "t", ".", "\"", "'", "$$", "/*", "*/", "--", "\n", " ",
                    "(", ")", ";", "delete", "update", "\u{e9}",
                ]),
                0..30,
            ),
            cut: bool,
        ) {
            let text = words.concat();
            let parsed = parse(text.as_bytes(), text.len() + usize::from(cut));
            prop_assert!(cut || !parsed.cut);
        }

        /// A table is found whatever is selected from it.
        #[test]
        fn finds_the_table_behind_any_columns(
            columns in proptest::collection::vec(
                proptest::sample::select(vec![
                    "a", "\"from\"", "'from'", "$$from$$", "f(a, 'from')", "m['from']", "*",
                    "/* from x */ b", "count(*)", "CAST(a AS text)", ":from", "c -- from x\n",
                ]),
                1..8,
            ),
        ) {
            let text = format!("SELECT {} FROM ks.\"T\" WHERE a = 'from b'", columns.join(", "));
            prop_assert_eq!(parsed(&text), "select ks T");
        }
    }
}
