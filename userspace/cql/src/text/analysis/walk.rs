//! Follows a statement from its first word to its last.

use super::fingerprint::{Fingerprint, Writer};
use super::shape::{Batch, BatchKind, MAX_BATCH_PARTS, Number, Restriction, Shape};
use super::token::{Token, Tokens};
use crate::text::lex::{MAX_NAME_BYTES, Name};
use crate::text::statement::{Statement, StatementKind, StatementRef};

/// How deep expressions may be nested. Each level is a few frames of the stack; people write three.
pub const MAX_DEPTH: usize = 32;

/// Words that are no names unless they are quoted (`ReservedKeywords.java`).
pub fn is_reserved(word: &str) -> bool {
    const LONGEST: usize = "materialized".len();
    let mut lower = [0; LONGEST];
    let Some(lower) = lower.get_mut(..word.len()) else {
        return false;
    };
    lower.copy_from_slice(word.as_bytes());
    lower.make_ascii_lowercase();
    #[rustfmt::skip]
    let reserved = matches!(
        &*lower,
        b"add" | b"allow" | b"alter" | b"and" | b"apply" | b"asc" | b"authorize" |
            b"batch" | b"begin" | b"by" | b"columnfamily" | b"create" | b"delete" |
            b"desc" | b"describe" | b"drop" | b"entries" | b"execute" | b"from" |
            b"full" | b"grant" | b"if" | b"in" | b"index" | b"infinity" | b"insert" |
            b"into" | b"is" | b"keyspace" | b"limit" | b"materialized" | b"modify" |
            b"nan" | b"norecursive" | b"not" | b"null" | b"of" | b"on" | b"or" |
            b"order" | b"primary" | b"rename" | b"revoke" | b"schema" | b"select" |
            b"set" | b"table" | b"to" | b"token" | b"truncate" | b"unlogged" | b"update"
            | b"use" | b"using" | b"view" | b"where" | b"with"
    );
    reserved
}

/// Whether `text` is one whole statement, or several, that this crate understands to its end.
pub fn is_understood(text: &[u8]) -> bool {
    walk(text).is_some()
}

/// Returns which words of a text are keywords and names by the grammar, and which numbers stand behind LIMIT: how many bytes
/// of the text are behind each, in the text's order. Any other word stands where a value does, whatever its quotes. `None`: the
/// text is not understood.
pub fn kept(text: &[u8]) -> Option<Vec<usize>> {
    follow(text, Some(Vec::new()))?.kept
}

/// Follows a statement by the grammar. None: it is not understood.
pub(super) fn walk(text: &[u8]) -> Option<(Shape, Fingerprint)> {
    let mut walk = follow(text, None)?;
    walk.shape.restrictions = walk.restrictions.into();
    Some((walk.shape, walk.out.finish()))
}

/// Follows a statement to its end.
fn follow(text: &[u8], kept: Option<Vec<usize>>) -> Option<Walk<'_>> {
    let mut tokens = Tokens::new(text);
    let token = tokens.next_token();
    let mut walk = Walk {
        tokens,
        token,
        out: Writer::default(),
        shape: Shape::default(),
        restrictions: Vec::new(),
        table: None,
        depth: 0,
        names_written: 0,
        kept,
    };
    walk.statement()?;
    while walk.skips(Token::Sign(b';')) {}
    (walk.token == Token::End).then_some(walk)
}

/// The token at hand, and what was found up to it. Methods give `None` where the text goes another
/// way than the grammar; what was written by then is of no use.
pub(super) struct Walk<'t> {
    pub(super) tokens: Tokens<'t>,
    pub(super) token: Token<'t>,
    pub(super) out: Writer,
    pub(super) shape: Shape,
    pub(super) restrictions: Vec<Restriction>,
    table: Option<(Option<Name<'t>>, Name<'t>)>,
    pub(super) depth: usize,
    pub(super) names_written: usize,
    /// See [`kept`], where it is asked for.
    pub(super) kept: Option<Vec<usize>>,
}

impl<'t> Walk<'t> {
    fn statement(&mut self) -> Option<()> {
        if self.accept("SELECT") {
            self.select()
        } else if self.at("BEGIN") {
            self.batch()
        } else if self.at("INSERT") || self.at("UPDATE") || self.at("DELETE") {
            self.change().map(drop)
        } else {
            self.definition()
        }
    }

    fn select(&mut self) -> Option<()> {
        if self.is_modifier("JSON") {
            self.accept("JSON");
        }
        if self.is_modifier("DISTINCT") {
            self.accept("DISTINCT");
        }
        if !self.accept_sign(b'*') {
            self.selectors()?;
        }
        self.expect("FROM")?;
        self.table()?;
        if self.accept("WHERE") {
            self.shape.has_where = true;
            self.relations(true)?;
        }
        if self.accept("GROUP") {
            self.expect("BY")?;
            self.selectors()?;
        }
        if self.accept("ORDER") {
            self.expect("BY")?;
            self.orderings()?;
        }
        if self.accept("PER") {
            self.expect("PARTITION")?;
            self.expect("LIMIT")?;
            self.shape.per_partition_limit = Some(self.limit()?);
        }
        if self.accept("LIMIT") {
            self.shape.limit = Some(self.limit()?);
        }
        if self.accept("ALLOW") {
            self.expect("FILTERING")?;
            self.shape.allow_filtering = true;
        }
        if self.accept("BYPASS") {
            self.expect("CACHE")?;
        }
        self.using_timeout()
    }

    /// `[USING TIMEOUT 5s]`: ScyllaDB's, as `BYPASS CACHE` is. Its drivers ask so for the schema.
    pub(super) fn using_timeout(&mut self) -> Option<()> {
        if self.accept("USING") {
            self.expect("TIMEOUT")?;
            self.value()?;
        }
        Some(())
    }

    /// `word` is at hand, and what follows says that it is no column of that name.
    fn is_modifier(&self, word: &str) -> bool {
        if !self.at(word) {
            return false;
        }
        match self.peek() {
            Token::Word(next) => !["from", "as"].iter().any(|w| next.eq_ignore_ascii_case(w)),
            Token::Quoted(_) | Token::Literal | Token::Integer(_) | Token::Marker => true,
            Token::Sign(b'*') => {
                let mut ahead = self.tokens;
                ahead.next_token();
                matches!(ahead.next_token(), Token::Word(word) if word.eq_ignore_ascii_case("from"))
            }
            _ => false,
        }
    }

    fn orderings(&mut self) -> Option<()> {
        loop {
            self.name()?;
            if self.accept("ANN") {
                self.expect("OF")?;
                self.value()?;
            }
            _ = self.accept("ASC") || self.accept("DESC");
            if !self.accept_sign(b',') {
                return Some(());
            }
        }
    }

    /// INSERT, UPDATE or DELETE: a statement of its own, or one of a batch.
    fn change(&mut self) -> Option<StatementKind> {
        if self.accept("INSERT") {
            self.insert()?;
            Some(StatementKind::Insert)
        } else if self.accept("UPDATE") {
            self.update()?;
            Some(StatementKind::Update)
        } else if self.accept("DELETE") {
            self.delete()?;
            Some(StatementKind::Delete)
        } else {
            None
        }
    }

    fn insert(&mut self) -> Option<()> {
        self.expect("INTO")?;
        self.table()?;
        if self.accept("JSON") {
            self.value()?;
            if self.accept("DEFAULT") {
                _ = self.accept("NULL") || self.accept("UNSET");
            }
        } else {
            self.expect_sign(b'(')?;
            self.names()?;
            self.expect_sign(b')')?;
            self.expect("VALUES")?;
            self.expect_sign(b'(')?;
            self.values()?;
            self.expect_sign(b')')?;
        }
        if self.accept("IF") {
            self.expect("NOT")?;
            self.expect("EXISTS")?;
            self.shape.conditional = true;
        }
        self.using()
    }

    fn update(&mut self) -> Option<()> {
        self.table()?;
        self.using()?;
        self.expect("SET")?;
        loop {
            self.assignment()?;
            if !self.accept_sign(b',') {
                break;
            }
        }
        self.expect("WHERE")?;
        self.shape.has_where = true;
        self.relations(true)?;
        self.conditions()
    }

    fn delete(&mut self) -> Option<()> {
        if !self.at("FROM") {
            loop {
                self.name()?;
                self.part()?;
                if !self.accept_sign(b',') {
                    break;
                }
            }
        }
        self.expect("FROM")?;
        self.table()?;
        self.using()?;
        self.expect("WHERE")?;
        self.shape.has_where = true;
        self.relations(true)?;
        self.conditions()
    }

    /// `[IF EXISTS | IF condition AND ..]`
    fn conditions(&mut self) -> Option<()> {
        if !self.accept("IF") {
            return Some(());
        }
        self.shape.conditional = true;
        match self.accept("EXISTS") {
            true => Some(()),
            false => self.relations(false),
        }
    }

    /// `[USING TIMESTAMP n AND TTL n]`, and ScyllaDB's `TIMEOUT 5s`.
    fn using(&mut self) -> Option<()> {
        if !self.accept("USING") {
            return Some(());
        }
        loop {
            if self.accept("TIMEOUT") {
                self.value()?;
            } else {
                let is_ttl = self.accept("TTL");
                if !is_ttl {
                    self.expect("TIMESTAMP")?;
                }
                let number = self.number()?;
                let known = match is_ttl {
                    true => &mut self.shape.ttl,
                    false => &mut self.shape.timestamp,
                };
                *known = Some(known.map_or(number, |before| before.max(number)));
            }
            if !self.accept("AND") {
                return Some(());
            }
        }
    }

    fn batch(&mut self) -> Option<()> {
        self.expect("BEGIN")?;
        let kind = if self.accept("UNLOGGED") {
            BatchKind::Unlogged
        } else if self.accept("COUNTER") {
            BatchKind::Counter
        } else {
            BatchKind::Logged
        };
        self.expect("BATCH")?;
        self.using()?;
        let mut statements = 0_u32;
        let mut parts = Vec::new();
        let mut before = None;
        while !self.at("APPLY") {
            // Its own, so that it can be told whether it is one more of the same.
            let outer = std::mem::take(&mut self.out);
            let kind = self.change()?;
            self.out.sign(b';');
            let child = std::mem::replace(&mut self.out, outer);
            let hash = child.hash();
            if before != Some(hash) {
                self.out.append(child);
            }
            before = Some(hash);
            self.skips(Token::Sign(b';'));
            self.restrictions.clear();
            self.add_part(&mut parts, kind)?;
            statements = statements.saturating_add(1);
        }
        self.expect("APPLY")?;
        self.expect("BATCH")?;
        self.shape.has_where = false;
        self.shape.batch = Some(Batch {
            kind,
            statements,
            parts: parts.into(),
        });
        Some(())
    }

    fn add_part(&mut self, parts: &mut Vec<Statement>, kind: StatementKind) -> Option<()> {
        let (keyspace, table) = self.table.take()?;
        let part = StatementRef {
            kind,
            keyspace,
            table: Some(table),
        };
        if !parts.iter().any(|known| part.is(known)) {
            if parts.len() >= MAX_BATCH_PARTS {
                return None;
            }
            parts.push(part.to_owned());
        }
        Some(())
    }

    /// `t` or `ks.t`
    pub(super) fn table(&mut self) -> Option<()> {
        let first = self.name()?;
        self.table = Some(match self.accept_sign(b'.') {
            true => (Some(first), self.name()?),
            false => (None, first),
        });
        Some(())
    }

    /// Names with commas between.
    fn names(&mut self) -> Option<()> {
        loop {
            self.name()?;
            if !self.accept_sign(b',') {
                return Some(());
            }
        }
    }

    /// The number behind LIMIT, which is no value.
    fn limit(&mut self) -> Option<Number> {
        if let Token::Integer(_) = self.token {
            self.keep();
        }
        self.number()
    }

    /// An integer or a marker.
    fn number(&mut self) -> Option<Number> {
        let minus = self.skips(Token::Sign(b'-'));
        let number = match self.token {
            Token::Integer(digits) => {
                let number = digits.parse::<i64>().ok()?;
                Number::Is(if minus { number.checked_neg()? } else { number })
            }
            _ if minus => return None,
            _ => {
                self.marker()?;
                return Some(Number::Marker);
            }
        };
        self.advance();
        self.out.value();
        Some(number)
    }

    /// `?` or `:name`
    pub(super) fn marker(&mut self) -> Option<()> {
        match self.token {
            Token::Marker => {}
            Token::Sign(b':') => {
                self.advance();
                if !matches!(self.token, Token::Word(_) | Token::Quoted(_)) {
                    return None;
                }
                self.keep();
            }
            _ => return None,
        }
        self.advance();
        self.out.value();
        Some(())
    }

    /// A name, which is consumed and written.
    pub(super) fn name(&mut self) -> Option<Name<'t>> {
        let (text, name) = match self.token {
            Token::Word(word) if is_reserved(word) => return None,
            Token::Word(word) => (word, Name::Folded(word)),
            Token::Quoted(text) => (text, Name::Quoted(text)),
            _ => return None,
        };
        if text.len() > MAX_NAME_BYTES {
            return None;
        }
        self.keep();
        self.advance();
        self.out.name(name);
        self.names_written += 1;
        Some(name)
    }

    pub(super) fn at(&self, keyword: &str) -> bool {
        matches!(self.token, Token::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    /// Consumes `keyword`, and writes it as it is given here, if it is at hand.
    pub(super) fn accept(&mut self, keyword: &str) -> bool {
        let here = self.at(keyword);
        if here {
            self.keep();
            self.advance();
            self.out.piece(keyword);
        }
        here
    }

    pub(super) fn expect(&mut self, keyword: &str) -> Option<()> {
        self.accept(keyword).then_some(())
    }

    /// Accepts a character, as [`accept`](Self::accept) does a keyword.
    pub(super) fn accept_sign(&mut self, sign: u8) -> bool {
        let here = self.skips(Token::Sign(sign));
        if here {
            self.out.sign(sign);
        }
        here
    }

    pub(super) fn expect_sign(&mut self, sign: u8) -> Option<()> {
        self.accept_sign(sign).then_some(())
    }

    /// Consumes `token`, and writes nothing, if it is at hand.
    pub(super) fn skips(&mut self, token: Token<'_>) -> bool {
        let here = self.token == token;
        if here {
            self.advance();
        }
        here
    }

    /// Notes that the token at hand is no value. A word that nobody notes is one.
    pub(super) fn keep(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.push(self.tokens.left());
        }
    }

    pub(super) fn advance(&mut self) {
        self.token = self.tokens.next_token();
    }

    /// The token behind the one at hand.
    pub(super) fn peek(&self) -> Token<'t> {
        let mut ahead = self.tokens;
        ahead.next_token()
    }
}
