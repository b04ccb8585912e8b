//! A recursive-descent parser for CQL: the cursor, names, terms, and the choice of statement.

use super::ast::{Function, Operator, Relation, SchemaStatement, Statement, TableName, Term};
use super::failure::{Failure, Result};
use super::lexer::{Token, tokenize};

/// How deep collections and types may nest: a bound on the parser's stack.
pub(super) const MAX_DEPTH: usize = 32;

/// Parses one statement; a trailing semicolon is allowed.
pub(super) fn parse(text: &str) -> Result<Statement> {
    let mut parser = Parser {
        tokens: tokenize(text)?,
        at: 0,
        markers: 0,
    };
    let statement = parser.statement()?;
    parser.accept(";");
    match parser.peek() {
        None => Ok(statement),
        Some(_) => Err(parser.unexpected("the end of the statement")),
    }
}

#[derive(Debug)]
pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    markers: usize,
}

impl Parser {
    fn statement(&mut self) -> Result<Statement> {
        let word = self.word()?;
        match word.as_str() {
            "select" => self.select().map(Statement::Select),
            "insert" => self.insert().map(Statement::Modify),
            "update" => self.update().map(Statement::Modify),
            "delete" => self.delete().map(Statement::Modify),
            "begin" => self.batch().map(Statement::Batch),
            "create" => self.create().map(Statement::Schema),
            "drop" => self.drop_statement().map(Statement::Schema),
            "truncate" => {
                self.accept_word("table");
                Ok(Statement::Schema(SchemaStatement::Truncate(
                    self.table_name()?,
                )))
            }
            "use" => Ok(Statement::Use(self.name()?)),
            "describe" | "desc" => self.describe().map(Statement::Describe),
            other => Err(Failure::syntax(format!(
                "line 1:0 no viable alternative at input '{other}'"
            ))),
        }
    }

    /// `WHERE a = ? AND b IN (1, 2) …`, or nothing.
    pub(super) fn relations(&mut self) -> Result<Vec<Relation>> {
        let mut relations = Vec::new();
        if !self.accept_word("where") {
            return Ok(relations);
        }
        loop {
            if matches!(self.peek(), Some(Token::Word(w)) if w == "token") && self.sign_follows("(")
            {
                return Err(Failure::invalid("token() is not supported by this node"));
            }
            let column = self.name()?;
            let (operator, terms) = self.operator_and_terms()?;
            relations.push(Relation {
                column,
                operator,
                terms,
            });
            if !self.accept_word("and") {
                return Ok(relations);
            }
        }
    }

    fn operator_and_terms(&mut self) -> Result<(Operator, Vec<Term>)> {
        if self.accept_word("in") {
            if matches!(self.peek(), Some(Token::Marker(_))) {
                return Ok((Operator::InMarker, vec![self.term()?]));
            }
            self.expect("(")?;
            return Ok((Operator::In, self.terms_until(")", 0)?));
        }
        let operator = match self.peek() {
            Some(Token::Sign("=")) => Operator::Equal,
            Some(Token::Sign("<")) => Operator::Less,
            Some(Token::Sign("<=")) => Operator::LessOrEqual,
            Some(Token::Sign(">")) => Operator::Greater,
            Some(Token::Sign(">=")) => Operator::GreaterOrEqual,
            _ => return Err(self.unexpected("an operator")),
        };
        self.at += 1;
        Ok((operator, vec![self.term()?]))
    }

    pub(super) fn term(&mut self) -> Result<Term> {
        self.term_at(0)
    }

    fn term_at(&mut self, depth: usize) -> Result<Term> {
        if depth > MAX_DEPTH {
            return Err(Failure::syntax("terms are nested too deeply"));
        }
        let Some(token) = self.tokens.get(self.at).cloned() else {
            return Err(self.unexpected("a term"));
        };
        self.at += 1;
        match token {
            Token::Text(s) => Ok(Term::Text(s)),
            Token::Number(n) => Ok(Term::Number(n)),
            Token::Uuid(u) => Ok(Term::Uuid(u)),
            Token::Blob(b) => Ok(Term::Blob(b)),
            Token::Marker(name) => {
                self.markers += 1;
                Ok(Term::Marker(self.markers - 1, name))
            }
            Token::Sign("[") => self.terms_until("]", depth).map(Term::List),
            Token::Sign("(") => self.terms_until(")", depth).map(Term::Tuple),
            Token::Sign("{") => self.set_or_map(depth),
            Token::Word(word) => match word.as_str() {
                "null" => Ok(Term::Null),
                "true" => Ok(Term::Bool(true)),
                "false" => Ok(Term::Bool(false)),
                "nan" | "infinity" => Ok(Term::Number(word)),
                _ if self.accept("(") => self.function(&word).map(Term::Function),
                _ => {
                    self.at -= 1;
                    Err(self.unexpected("a term"))
                }
            },
            _ => {
                self.at -= 1;
                Err(self.unexpected("a term"))
            }
        }
    }

    /// The rest of a call, after its opening parenthesis.
    pub(super) fn function(&mut self, name: &str) -> Result<Function> {
        let function = match name {
            "now" | "currenttimeuuid" | "current_timeuuid" => Function::Now,
            "uuid" => Function::Uuid,
            "currenttimestamp" | "current_timestamp" => Function::Timestamp,
            "totimestamp" | "to_timestamp" => {
                self.expect_word("now")?;
                self.expect("(")?;
                self.expect(")")?;
                Function::Timestamp
            }
            _ => return Err(Failure::invalid(format!("Unknown function '{name}'"))),
        };
        self.expect(")")?;
        Ok(function)
    }

    fn terms_until(&mut self, close: &str, depth: usize) -> Result<Vec<Term>> {
        let mut terms = Vec::new();
        if self.accept(close) {
            return Ok(terms);
        }
        loop {
            terms.push(self.term_at(depth + 1)?);
            if self.accept(close) {
                return Ok(terms);
            }
            self.expect(",")?;
        }
    }

    fn set_or_map(&mut self, depth: usize) -> Result<Term> {
        if self.accept("}") {
            return Ok(Term::Set(Vec::new()));
        }
        let first = self.term_at(depth + 1)?;
        if !self.accept(":") {
            let mut terms = vec![first];
            if self.accept(",") {
                terms.extend(self.terms_until("}", depth)?);
            } else {
                self.expect("}")?;
            }
            return Ok(Term::Set(terms));
        }
        let mut pairs = vec![(first, self.term_at(depth + 1)?)];
        while self.accept(",") {
            let key = self.term_at(depth + 1)?;
            self.expect(":")?;
            pairs.push((key, self.term_at(depth + 1)?));
        }
        self.expect("}")?;
        Ok(Term::Map(pairs))
    }

    pub(super) fn table_name(&mut self) -> Result<TableName> {
        let first = self.name()?;
        if self.accept(".") {
            return Ok(TableName {
                keyspace: Some(first),
                table: self.name()?,
            });
        }
        Ok(TableName {
            keyspace: None,
            table: first,
        })
    }

    /// A name: unquoted (lower-cased) or quoted.
    pub(super) fn name(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Word(s)) if !s.starts_with(|c: char| c.is_ascii_digit()) => {
                let s = s.clone();
                self.at += 1;
                Ok(s)
            }
            Some(Token::QuotedName(s)) => {
                let s = s.clone();
                self.at += 1;
                Ok(s)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(super) fn word(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Word(s)) => {
                let s = s.clone();
                self.at += 1;
                Ok(s)
            }
            _ => Err(self.unexpected("a keyword")),
        }
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    /// Takes `word` when nothing but options follows it.
    pub(super) fn accept_last_word(&mut self, word: &str) -> bool {
        let last = match self.tokens.get(self.at + 1) {
            None | Some(Token::Sign(";")) => true,
            Some(Token::Word(next)) => next == "with",
            Some(_) => false,
        };
        last && self.accept_word(word)
    }

    pub(super) fn sign_follows(&self, sign: &str) -> bool {
        matches!(self.tokens.get(self.at + 1), Some(Token::Sign(s)) if *s == sign)
    }

    pub(super) fn accept(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Sign(s)) if *s == sign);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, sign: &str) -> Result<()> {
        if self.accept(sign) {
            Ok(())
        } else {
            Err(self.unexpected(&format!("'{sign}'")))
        }
    }

    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(w)) if w == word);
        self.at += usize::from(found);
        found
    }

    /// Steps over `5s` and the like.
    pub(super) fn duration(&mut self) -> Result<()> {
        let begins = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
        match self.peek() {
            Some(Token::Word(word)) if begins(word) => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.unexpected("a duration")),
        }
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.accept_word(word) {
            Ok(())
        } else {
            Err(self.unexpected(&word.to_ascii_uppercase()))
        }
    }

    pub(super) fn unexpected(&self, wanted: &str) -> Failure {
        let found = match self.peek() {
            None => "<EOF>".to_owned(),
            Some(Token::Word(s) | Token::QuotedName(s) | Token::Number(s)) => s.clone(),
            Some(Token::Text(s)) => format!("'{}'", s.chars().take(32).collect::<String>()),
            Some(Token::Uuid(_)) => "a uuid".to_owned(),
            Some(Token::Blob(_)) => "a blob".to_owned(),
            Some(Token::Marker(_)) => "a bind marker".to_owned(),
            Some(Token::Sign(s)) => (*s).to_owned(),
        };
        Failure::syntax(format!(
            "line 1: mismatched input '{found}' expecting {wanted}"
        ))
    }
}
