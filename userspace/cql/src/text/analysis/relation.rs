//! Relations between columns and values, in WHERE and IF.

use super::shape::{By, MAX_RESTRICTIONS, Restriction};
use super::token::Token;
use super::walk::{MAX_DEPTH, Walk};
use crate::text::lex::Name;

/// The way in which a column is compared.
enum Compared {
    Equal,
    Range,
    In(Option<u32>),
    Other,
}

impl<'t> Walk<'t> {
    /// Relations with AND between. `kept`: they restrict what the statement is about.
    pub(super) fn relations(&mut self, kept: bool) -> Option<()> {
        loop {
            self.relation(kept)?;
            if !self.accept("AND") {
                return Some(());
            }
        }
    }

    fn relation(&mut self, kept: bool) -> Option<()> {
        if self.token == Token::Sign(b'(') {
            return match self.is_columns() {
                true => self.columns_relation(kept, false),
                false => self.nested(kept),
            };
        }
        if self.at("TOKEN") && self.peek() == Token::Sign(b'(') {
            self.accept("TOKEN");
            return self.columns_relation(kept, true);
        }
        let is_expr = matches!(self.token, Token::Word("expr"));
        let column = self.name()?;
        if is_expr && self.token == Token::Sign(b'(') {
            return self.index_expression();
        }
        let of_part = self.part()?;
        let by = match self.comparison()? {
            _ if of_part => By::Other,
            Compared::Equal => By::Equal,
            Compared::Range => By::Range,
            Compared::In(elements) => By::In(elements),
            Compared::Other => By::Other,
        };
        self.restrict(kept, column, by)
    }

    /// A parenthesis is at hand, and names with commas stand in it.
    fn is_columns(&self) -> bool {
        let mut ahead = self.tokens;
        let name = matches!(ahead.next_token(), Token::Word(_) | Token::Quoted(_));
        name && matches!(ahead.next_token(), Token::Sign(b',' | b')'))
    }

    /// `(relation)`
    fn nested(&mut self, kept: bool) -> Option<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        self.expect_sign(b'(')?;
        self.relation(kept)?;
        self.expect_sign(b')')?;
        self.depth -= 1;
        Some(())
    }

    /// `(a, b) = ..`; `token(a, b) > ..`, from its parenthesis on.
    fn columns_relation(&mut self, kept: bool, of_token: bool) -> Option<()> {
        if !self.skips(Token::Sign(b'(')) {
            return None;
        }
        match of_token {
            true => self.out.call(),
            false => self.out.sign(b'('),
        }
        let mut columns = Vec::new();
        loop {
            columns.push(self.name()?);
            if columns.len() > MAX_RESTRICTIONS {
                return None;
            }
            if !self.accept_sign(b',') {
                break;
            }
        }
        self.expect_sign(b')')?;
        let by = match self.comparison()? {
            Compared::Other => By::Other,
            _ if of_token => By::Token,
            Compared::Equal => By::Equal,
            Compared::Range => By::Range,
            Compared::In(elements) => By::In(elements),
        };
        for column in columns {
            self.restrict(kept, column, by)?;
        }
        Some(())
    }

    /// `expr(index, 'what')`, behind its name.
    fn index_expression(&mut self) -> Option<()> {
        self.skips(Token::Sign(b'('));
        self.out.call();
        self.name()?;
        if self.accept_sign(b'.') {
            self.name()?;
        }
        self.expect_sign(b',')?;
        self.value()?;
        self.expect_sign(b')')
    }

    /// An operator and what is behind it.
    fn comparison(&mut self) -> Option<Compared> {
        let negated = self.accept("NOT");
        if self.accept("IN") {
            let elements = self.list()?;
            return Some(match negated {
                true => Compared::Other,
                false => Compared::In(elements),
            });
        }
        if self.accept("CONTAINS") {
            self.accept("KEY");
            self.value()?;
            return Some(Compared::Other);
        }
        if negated {
            return None;
        }
        if self.accept("LIKE") {
            self.value()?;
            return Some(Compared::Other);
        }
        if self.accept("IS") {
            self.expect("NOT")?;
            self.expect("NULL")?;
            return Some(Compared::Other);
        }
        if self.accept("BETWEEN") {
            self.value()?;
            self.expect("AND")?;
            self.value()?;
            return Some(Compared::Range);
        }
        let compared = self.operator()?;
        self.value()?;
        Some(compared)
    }

    fn operator(&mut self) -> Option<Compared> {
        let Token::Sign(sign) = self.token else {
            return None;
        };
        self.advance();
        let and_equal = sign != b'=' && self.skips(Token::Sign(b'='));
        let (text, compared) = match (sign, and_equal) {
            (b'=', _) => ("=", Compared::Equal),
            (b'<', false) => ("<", Compared::Range),
            (b'<', true) => ("<=", Compared::Range),
            (b'>', false) => (">", Compared::Range),
            (b'>', true) => (">=", Compared::Range),
            (b'!', true) => ("!=", Compared::Other),
            _ => return None,
        };
        self.out.piece(text);
        Some(compared)
    }

    /// The list behind IN: how many elements, unless a marker stands for them all.
    fn list(&mut self) -> Option<Option<u32>> {
        if self.token != Token::Sign(b'(') {
            self.marker()?;
            self.shape.marked_in = true;
            return Some(None);
        }
        let elements = self.skip_bracketed()?;
        self.out.sign(b'(');
        self.out.value();
        self.out.sign(b')');
        self.shape.longest_in = self.shape.longest_in.max(Some(elements));
        Some(Some(elements))
    }

    fn restrict(&mut self, kept: bool, column: Name<'t>, by: By) -> Option<()> {
        if kept {
            if self.restrictions.len() >= MAX_RESTRICTIONS {
                return None;
            }
            let column = column.to_boxed();
            self.restrictions.push(Restriction { column, by });
        }
        Some(())
    }
}
