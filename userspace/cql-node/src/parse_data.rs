//! Parsing of SELECT, INSERT, UPDATE, DELETE and BEGIN BATCH.

use super::ast::{
    Assignment, Change, Condition, Modify, ModifyKind, Output, Relation, Select, Term,
};
use super::failure::{Failure, Result};
use super::lexer::Token;
use super::parse::Parser;

type Using = Vec<(&'static str, Term)>;

impl Parser {
    pub(super) fn select(&mut self) -> Result<Select> {
        let distinct = self.accept_word("distinct");
        let outputs = if self.accept("*") {
            Vec::new()
        } else {
            self.outputs()?
        };
        self.expect_word("from")?;
        let table = self.table_name()?;
        let relations = self.relations()?;
        let mut order_by = Vec::new();
        if self.accept_word("order") {
            self.expect_word("by")?;
            order_by = self.ordering()?;
        }
        let limit = if self.accept_word("limit") {
            Some(self.term()?)
        } else {
            None
        };
        let allow_filtering = self.accept_word("allow");
        if allow_filtering {
            self.expect_word("filtering")?;
        }
        self.timeout()?;
        Ok(Select {
            table,
            distinct,
            outputs,
            relations,
            order_by,
            limit,
            allow_filtering,
        })
    }

    /// ScyllaDB's `USING TIMEOUT 2s`, which is read and dropped.
    fn timeout(&mut self) -> Result<()> {
        if self.accept_word("using") {
            self.expect_word("timeout")?;
            self.duration()?;
        }
        Ok(())
    }

    fn outputs(&mut self) -> Result<Vec<(Output, Option<String>)>> {
        let mut outputs = Vec::new();
        loop {
            let output = if self.sign_follows("(") {
                self.call()?
            } else {
                Output::Column(self.name()?)
            };
            let alias = if self.accept_word("as") {
                Some(self.name()?)
            } else {
                None
            };
            outputs.push((output, alias));
            if !self.accept(",") {
                return Ok(outputs);
            }
        }
    }

    fn call(&mut self) -> Result<Output> {
        let function = self.word()?;
        self.expect("(")?;
        if function != "count" {
            return self.function(&function).map(Output::Function);
        }
        if !self.accept("*") {
            match self.term()? {
                Term::Number(n) if n == "1" => {}
                _ => {
                    return Err(Failure::invalid(
                        "only count(*) and count(1) are supported by this node",
                    ));
                }
            }
        }
        self.expect(")")?;
        Ok(Output::Count)
    }

    pub(super) fn insert(&mut self) -> Result<Modify> {
        self.expect_word("into")?;
        let table = self.table_name()?;
        if matches!(self.peek(), Some(Token::Word(w)) if w == "json") {
            return Err(Failure::invalid(
                "INSERT JSON is not supported by this node",
            ));
        }
        self.expect("(")?;
        let names = self.names_until(")")?;
        self.expect_word("values")?;
        self.expect("(")?;
        let mut sets = Vec::with_capacity(names.len());
        for (i, column) in names.into_iter().enumerate() {
            if i > 0 {
                self.expect(",")?;
            }
            sets.push(Assignment {
                column,
                change: Change::Set(self.term()?),
            });
        }
        self.expect(")")?;
        let condition = self.condition()?;
        let using = self.using()?;
        Ok(Modify {
            kind: ModifyKind::Insert,
            table,
            sets,
            relations: Vec::new(),
            using,
            condition,
        })
    }

    pub(super) fn update(&mut self) -> Result<Modify> {
        let table = self.table_name()?;
        let using = self.using()?;
        self.expect_word("set")?;
        let mut sets = vec![self.assignment()?];
        while self.accept(",") {
            sets.push(self.assignment()?);
        }
        let relations = self.required_relations()?;
        let condition = self.condition()?;
        Ok(Modify {
            kind: ModifyKind::Update,
            table,
            sets,
            relations,
            using,
            condition,
        })
    }

    fn assignment(&mut self) -> Result<Assignment> {
        let column = self.name()?;
        self.expect("=")?;
        let is_column =
            matches!(self.peek(), Some(Token::Word(w) | Token::QuotedName(w)) if *w == column);
        let add = is_column && self.sign_follows("+");
        let subtract = is_column && self.sign_follows("-");
        if !add && !subtract {
            return Ok(Assignment {
                column,
                change: Change::Set(self.term()?),
            });
        }
        self.name()?;
        self.expect(if add { "+" } else { "-" })?;
        let term = self.term()?;
        Ok(Assignment {
            column,
            change: if add {
                Change::Add(term)
            } else {
                Change::Subtract(term)
            },
        })
    }

    pub(super) fn delete(&mut self) -> Result<Modify> {
        let mut sets = Vec::new();
        while !self.accept_word("from") {
            if !sets.is_empty() {
                self.expect(",")?;
            }
            sets.push(Assignment {
                column: self.name()?,
                change: Change::Set(Term::Null),
            });
        }
        let table = self.table_name()?;
        let using = self.using()?;
        let relations = self.required_relations()?;
        let condition = self.condition()?;
        Ok(Modify {
            kind: ModifyKind::Delete,
            table,
            sets,
            relations,
            using,
            condition,
        })
    }

    fn required_relations(&mut self) -> Result<Vec<Relation>> {
        match self.relations()? {
            relations if relations.is_empty() => Err(self.unexpected("WHERE")),
            relations => Ok(relations),
        }
    }

    /// `USING TTL x AND TIMESTAMP y`.
    fn using(&mut self) -> Result<Using> {
        let mut using = Vec::new();
        if !self.accept_word("using") {
            return Ok(using);
        }
        loop {
            let option = match self.word()?.as_str() {
                "ttl" => "[ttl]",
                "timestamp" => "[timestamp]",
                other => {
                    return Err(Failure::syntax(format!(
                        "unknown option '{other}' after USING"
                    )));
                }
            };
            using.push((option, self.term()?));
            if !self.accept_word("and") {
                return Ok(using);
            }
        }
    }

    fn condition(&mut self) -> Result<Condition> {
        if !self.accept_word("if") {
            return Ok(Condition::None);
        }
        if self.accept_word("exists") {
            return Ok(Condition::Exists);
        }
        if self.accept_word("not") {
            self.expect_word("exists")?;
            return Ok(Condition::NotExists);
        }
        let mut expected = Vec::new();
        loop {
            let column = self.name()?;
            self.expect("=")?;
            expected.push((column, self.term()?));
            if !self.accept_word("and") {
                return Ok(Condition::Equal(expected));
            }
        }
    }

    /// The rest of `BEGIN [UNLOGGED|LOGGED|COUNTER] BATCH … APPLY BATCH`.
    pub(super) fn batch(&mut self) -> Result<Vec<Modify>> {
        let _ = self.accept_word("unlogged")
            || self.accept_word("logged")
            || self.accept_word("counter");
        self.expect_word("batch")?;
        let outer = self.using()?;
        let mut statements = Vec::new();
        loop {
            while self.accept(";") {}
            let mut statement = match self.word()?.as_str() {
                "insert" => self.insert()?,
                "update" => self.update()?,
                "delete" => self.delete()?,
                "apply" => {
                    self.expect_word("batch")?;
                    return Ok(statements);
                }
                other => {
                    return Err(Failure::syntax(format!(
                        "'{other}' cannot stand in a batch"
                    )));
                }
            };
            if statements.is_empty() {
                statement.using.splice(0..0, outer.iter().cloned());
            }
            statements.push(statement);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ast::{Operator, Statement};
    use super::super::parse::parse;
    use super::*;

    #[test]
    fn statements_that_parse() {
        for text in [
            "SELECT * FROM ks.t",
            "SELECT a FROM t WHERE k = 1 USING TIMEOUT 2000ms",
            "select a, b as c, count(*) from t where x = ? and y in (1, 2) order by y desc limit :n allow filtering;",
            "INSERT INTO t (a, b) VALUES (?, {'k': [1, 2]}) IF NOT EXISTS USING TTL ? AND TIMESTAMP 5",
            "UPDATE t USING TTL 3 SET n = n - 1, v = 'x' WHERE k = 0x01 IF v = 'y'",
            "DELETE a, b FROM t WHERE k = :k IF EXISTS",
            "BEGIN UNLOGGED BATCH INSERT INTO t (a) VALUES (1); DELETE FROM t WHERE a = 2; APPLY BATCH;",
            "CREATE TABLE t (a int, b text, c map<text, frozen<list<int>>>, PRIMARY KEY ((a, b)))",
            "CREATE TABLE IF NOT EXISTS t (a int PRIMARY KEY) WITH comment = 'x' AND gc_grace_seconds = 5",
            "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
            "DESCRIBE TABLE ks.t",
            "DROP TABLE IF EXISTS t",
        ] {
            assert!(parse(text).is_ok(), "{text}: {:?}", parse(text));
        }
    }

    #[test]
    fn statements_that_do_not() {
        for text in [
            "",
            "SELEC * FROM t",
            "SELECT FROM t",
            "INSERT INTO t (a, b) VALUES (1)",
            "DELETE FROM t",
            "SELECT * FROM t extra",
            "CREATE TABLE t (a int)",
            "BEGIN BATCH SELECT * FROM t APPLY BATCH",
            "INSERT INTO t (a) VALUES ([[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn markers_are_numbered_in_order() {
        let Ok(Statement::Select(select)) = parse("SELECT a FROM t WHERE a = ? AND b IN ? LIMIT ?")
        else {
            panic!()
        };
        assert!(matches!(select.limit, Some(Term::Marker(2, None))));
        assert!(matches!(select.relations[1].operator, Operator::InMarker));
    }
}
