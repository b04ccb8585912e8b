//! Terms: literals, markers, functions of them; and selectors.

use super::token::Token;
use super::walk::{MAX_DEPTH, Walk};
use crate::text::lex::Name;

/// The names that may stand where a value can.
#[derive(Clone, Copy)]
enum Names<'t> {
    /// Any: columns are selected.
    Any,
    /// The column that is assigned to.
    Only(Name<'t>),
    /// None. What looks like one is a string that somebody forgot to quote.
    None,
}

impl<'t> Walk<'t> {
    /// The selectors, with commas between, and perhaps aliases.
    pub(super) fn selectors(&mut self) -> Option<()> {
        loop {
            self.term(Names::Any)?;
            if self.accept("AS") {
                self.name()?;
            }
            if !self.accept_sign(b',') {
                return Some(());
            }
        }
    }

    /// Values with commas between.
    pub(super) fn values(&mut self) -> Option<()> {
        loop {
            self.value()?;
            if !self.accept_sign(b',') {
                return Some(());
            }
        }
    }

    pub(super) fn value(&mut self) -> Option<()> {
        self.term(Names::None)
    }

    /// `a = ..`, `a += ..`, `a[..] = ..`, `a.b = ..`
    pub(super) fn assignment(&mut self) -> Option<()> {
        let column = self.name()?;
        self.part()?;
        let Token::Sign(sign) = self.token else {
            return None;
        };
        self.advance();
        let text = match sign {
            b'=' => "=",
            b'+' if self.skips(Token::Sign(b'=')) => "+=",
            b'-' if self.skips(Token::Sign(b'=')) => "-=",
            _ => return None,
        };
        self.out.piece(text);
        self.term(Names::Only(column))
    }

    /// `[..]` or `.field` behind a column's name, if there is one.
    pub(super) fn part(&mut self) -> Option<bool> {
        if self.token == Token::Sign(b'[') {
            self.skip_bracketed()?;
            self.out.element();
            return Some(true);
        }
        let of_field = self.accept_sign(b'.');
        if of_field {
            self.name()?;
        }
        Some(of_field)
    }

    fn term(&mut self, names: Names<'t>) -> Option<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        loop {
            self.simple(names)?;
            let Token::Sign(sign @ (b'+' | b'-' | b'*' | b'/' | b'%')) = self.token else {
                break;
            };
            self.advance();
            self.out.sign(sign);
        }
        self.depth -= 1;
        Some(())
    }

    fn simple(&mut self, names: Names<'t>) -> Option<()> {
        // `-5` is a literal, too; what the sign is before does not matter.
        self.skips(Token::Sign(b'-'));
        match self.token {
            Token::Literal | Token::Integer(_) => {
                self.advance();
                self.out.value();
                Some(())
            }
            Token::Marker | Token::Sign(b':') => self.marker(),
            Token::Sign(b'[' | b'{') => {
                self.skip_bracketed()?;
                self.out.value();
                Some(())
            }
            Token::Sign(b'(') => self.parenthesised(names),
            Token::Word(_) if self.at("NULL") => {
                self.keep();
                self.advance();
                self.out.value();
                Some(())
            }
            Token::Word(_) if self.at("CAST") && self.peek() == Token::Sign(b'(') => {
                self.cast(names)
            }
            Token::Word(_) | Token::Quoted(_) => self.named(names),
            _ => None,
        }
    }

    /// `CAST(a AS type)`
    fn cast(&mut self, names: Names<'t>) -> Option<()> {
        self.accept("CAST");
        self.skips(Token::Sign(b'('));
        self.out.call();
        self.term(names)?;
        self.expect("AS")?;
        self.name()?;
        self.expect_sign(b')')
    }

    /// A column, its part, or a function, whose name may be qualified.
    fn named(&mut self, names: Names<'t>) -> Option<()> {
        let name = match self.token {
            Token::Word(word) if self.at("TOKEN") => {
                self.keep();
                self.advance();
                let name = Name::Folded(word);
                self.out.name(name);
                name
            }
            _ => self.name()?,
        };
        let (mut is_function, mut has_field) = (false, false);
        loop {
            match self.token {
                // What a function of a value gives has no fields that could be named.
                Token::Sign(b'.') if is_function && !matches!(names, Names::Any) => return None,
                Token::Sign(b'.') => {
                    self.accept_sign(b'.');
                    self.name()?;
                    has_field = true;
                }
                Token::Sign(b'[') => {
                    self.skip_bracketed()?;
                    self.out.element();
                }
                Token::Sign(b'(') if !is_function => {
                    is_function = true;
                    self.arguments(names)?;
                }
                _ => break,
            }
        }
        let may_stand = match names {
            Names::Any => true,
            Names::Only(column) => !has_field && name.bytes().eq(column.bytes()),
            Names::None => false,
        };
        (is_function || may_stand).then_some(())
    }

    fn arguments(&mut self, names: Names<'t>) -> Option<()> {
        self.skips(Token::Sign(b'('));
        self.out.call();
        if self.accept_sign(b')') {
            return Some(());
        }
        // `count(*)`
        if !self.accept_sign(b'*') {
            loop {
                self.term(names)?;
                if !self.accept_sign(b',') {
                    break;
                }
            }
        }
        self.expect_sign(b')')
    }

    /// A parenthesis: among selectors a group, elsewhere a tuple, or a type before a value.
    fn parenthesised(&mut self, names: Names<'t>) -> Option<()> {
        if let Names::Any = names {
            return self.group();
        }
        if !self.is_type() {
            self.skip_bracketed()?;
            self.out.value();
            return Some(());
        }
        self.type_hint()?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        self.simple(names)?;
        self.depth -= 1;
        Some(())
    }

    /// `(type)`, whose parenthesis is at hand. Nothing of it is written.
    fn type_hint(&mut self) -> Option<()> {
        self.skips(Token::Sign(b'('));
        let (mut open, mut is_behind_name) = (0_u32, false);
        loop {
            let is_name = matches!(self.token, Token::Word(_) | Token::Quoted(_));
            match self.token {
                Token::Word(_) | Token::Quoted(_) if !is_behind_name => self.keep(),
                Token::Sign(b'.') => {}
                Token::Sign(b'<') => open += 1,
                Token::Sign(b'>') => open = open.checked_sub(1)?,
                Token::Sign(b',') | Token::Integer(_) if open > 0 => {}
                Token::Sign(b')') if open == 0 => {
                    self.advance();
                    return Some(());
                }
                _ => return None,
            }
            is_behind_name = is_name;
            self.advance();
        }
    }

    /// `(a + b)`, `(a, 1)`, `(type) value`; a value if it holds nothing else.
    fn group(&mut self) -> Option<()> {
        let outer = std::mem::take(&mut self.out);
        let names_before = self.names_written;
        self.expect_sign(b'(')?;
        loop {
            self.term(Names::Any)?;
            if !self.accept_sign(b',') {
                break;
            }
        }
        self.expect_sign(b')')?;
        let group = std::mem::replace(&mut self.out, outer);
        if self.names_written == names_before {
            self.out.value();
            return Some(());
        }
        self.out.append(group);
        // `(type) value`
        match self.token {
            Token::Literal | Token::Integer(_) | Token::Marker => self.simple(Names::None),
            _ => Some(()),
        }
    }

    /// A parenthesis is at hand, and what stands in it begins like the name of a type.
    fn is_type(&self) -> bool {
        let mut ahead = self.tokens;
        let mut next = ahead.next_token();
        loop {
            match next {
                Token::Word(word) if word.eq_ignore_ascii_case("null") => return false,
                Token::Word(_) | Token::Quoted(_) => next = ahead.next_token(),
                _ => return false,
            }
            match next {
                Token::Sign(b'.') => next = ahead.next_token(),
                // A function, within a tuple.
                Token::Sign(b'(') => return false,
                _ => return true,
            }
        }
    }

    /// Steps over what stands in brackets, of whatever kind, whose first is at hand; gives how many
    /// elements there are. Nothing of it is written, and its words are values but for a few.
    pub(super) fn skip_bracketed(&mut self) -> Option<u32> {
        let mut closing = [0; MAX_DEPTH];
        let mut open = 0_usize;
        let mut commas = 0_u32;
        let mut is_empty = true;
        // The sign before what is at hand, or 0; and whether a colon there begins a marker.
        let (mut before, mut marks) = (0, false);
        loop {
            match self.token {
                Token::Sign(sign @ (b'(' | b'[' | b'{')) => {
                    is_empty &= open == 0;
                    *closing.get_mut(open)? = match sign {
                        b'(' => b')',
                        b'[' => b']',
                        _ => b'}',
                    };
                    open += 1;
                }
                Token::Sign(sign @ (b')' | b']' | b'}')) => {
                    open = open.checked_sub(1)?;
                    if closing.get(open) != Some(&sign) {
                        return None;
                    }
                    if open == 0 {
                        self.advance();
                        return Some(if is_empty {
                            0
                        } else {
                            commas.saturating_add(1)
                        });
                    }
                }
                Token::Sign(b',') if open == 1 => commas = commas.saturating_add(1),
                Token::End | Token::Bad | Token::Sign(b';') => return None,
                Token::Sign(b':') => {
                    is_empty = false;
                    marks = !matches!(before, 0 | b')' | b']' | b'}');
                }
                Token::Word(_) | Token::Quoted(_) => {
                    is_empty = false;
                    if self.kept.is_some() && (before == b':' && marks || self.is_no_value()) {
                        self.keep();
                    }
                }
                _ => is_empty = false,
            }
            before = match self.token {
                Token::Sign(sign) => sign,
                _ => 0,
            };
            self.advance();
        }
    }

    /// Whether the word at hand, in brackets among values, is none: NULL, or a function's name.
    fn is_no_value(&self) -> bool {
        self.at("NULL") || self.peek() == Token::Sign(b'(')
    }
}
