//! Statements that change no data: definitions, permissions, USE, TRUNCATE. They have many forms,
//! and nobody asks for more than what they are about: their words are taken as they come.

use super::shape::Object;
use super::token::{Token, Tokens};
use super::walk::Walk;
use crate::text::lex::{MAX_NAME_BYTES, Name};

/// How such statements begin.
const VERBS: [&str; 10] = [
    "USE", "TRUNCATE", "CREATE", "ALTER", "DROP", "GRANT", "REVOKE", "LIST", "DESCRIBE", "DESC",
];

/// Words that are shown as keywords, and may follow a literal. In order.
const KEYWORDS: [&str; 59] = [
    "ACCESS", "ADD", "ALL", "ALTER", "AND", "AS", "ASC", "BY", "CALLED", "COMPACT", "CREATE",
    "CUSTOM", "DESC", "DROP", "EXISTS", "FROM", "FUNCTION", "GRANT", "IDENTITY", "IF", "INDEX",
    "INITCOND", "INPUT", "IS", "KEY", "KEYSPACE", "LANGUAGE", "LOGIN", "MASKED", "NOLOGIN", "NOT",
    "NULL", "OF", "ON", "OPTIONS", "OR", "ORDER", "PASSWORD", "PRIMARY", "RENAME", "REPLACE",
    "RETURNS", "REVOKE", "ROLE", "SCHEMA", "SELECT", "SFUNC", "STATIC", "STORAGE", "STYPE",
    "TABLE", "TO", "TRIGGER", "TYPE", "USER", "USING", "VIEW", "WHERE", "WITH",
];
const KEYWORDS_LONG: [&str; 8] = [
    "AGGREGATE",
    "CLUSTERING",
    "COLUMNFAMILY",
    "FINALFUNC",
    "MATERIALIZED",
    "NOSUPERUSER",
    "SUPERUSER",
    "TIMESTAMP",
];

/// Keywords that may stand behind a value. In order. Another one may be in the middle of a value, whose quotes are wrong.
const BEHIND_VALUES: [&str; 8] = [
    "AND",
    "FROM",
    "NOSUPERUSER",
    "OF",
    "PRIMARY",
    "SUPERUSER",
    "TO",
    "WITH",
];

/// Keywords that begin a property which goes on without `=`. In order.
const PROPERTIES: [&str; 4] = ["ACCESS", "CLUSTERING", "COMPACT", "PASSWORD"];

fn keyword(word: &str) -> Option<&'static str> {
    const LONGEST: usize = "MATERIALIZED".len();
    let mut upper = [0; LONGEST];
    let upper = upper.get_mut(..word.len())?;
    upper.copy_from_slice(word.as_bytes());
    upper.make_ascii_uppercase();
    let found = |keywords: &'static [&'static str]| {
        let at = keywords.binary_search_by(|keyword| keyword.as_bytes().cmp(upper));
        keywords.get(at.ok()?).copied()
    };
    found(&KEYWORDS).or_else(|| found(&KEYWORDS_LONG))
}

/// The object of a CREATE, ALTER or DROP.
pub(super) fn object(text: &[u8]) -> Option<Object> {
    let mut tokens = Tokens::new(text);
    let mut word = || match tokens.next_token() {
        Token::Word(word) => Some(word),
        _ => None,
    };
    let is = |word: &str, keyword: &str| word.eq_ignore_ascii_case(keyword);
    let verb = word()?;
    if !["create", "alter", "drop"].iter().any(|v| is(verb, v)) {
        return None;
    }
    let mut what = word()?;
    if is(what, "or") && is(word()?, "replace") || is(what, "custom") {
        what = word()?;
    }
    Some(match what {
        _ if is(what, "keyspace") || is(what, "schema") => Object::Keyspace,
        _ if is(what, "table") || is(what, "columnfamily") => Object::Table,
        _ if is(what, "type") => Object::Type,
        _ if is(what, "function") => Object::Function,
        _ if is(what, "aggregate") => Object::Aggregate,
        _ if is(what, "index") => Object::Index,
        _ if is(what, "materialized") && is(word()?, "view") => Object::MaterializedView,
        _ if is(what, "trigger") => Object::Trigger,
        _ if is(what, "role") => Object::Role,
        _ if is(what, "user") => Object::User,
        _ if is(what, "identity") => Object::Identity,
        _ => return None,
    })
}

/// The token that came last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Word,
    Literal,
    /// Behind it a word is a value.
    Assigns,
    /// AND behind a literal: a name and `=` follow, or a keyword.
    Property,
    /// MASKED, so that a function follows behind WITH.
    Masked,
    Sign,
}

impl Walk<'_> {
    pub(super) fn definition(&mut self) -> Option<()> {
        let verb = VERBS.iter().find(|verb| self.accept(verb))?;
        if *verb == "USE" {
            return self.name().map(drop);
        }
        if *verb == "TRUNCATE" {
            _ = self.accept("TABLE") || self.accept("COLUMNFAMILY");
            self.table()?;
            return self.using_timeout();
        }
        // The string that names an identity.
        if self.accept("IDENTITY") {
            if self.accept("IF") {
                self.accept("NOT");
                self.expect("EXISTS")?;
            }
            return self.value();
        }
        let mut last = Last::Word;
        let mut open = 0_u32;
        loop {
            last = match self.token {
                Token::End | Token::Sign(b';') => return (open == 0).then_some(()),
                Token::Bad => return None,
                Token::Literal | Token::Integer(_) | Token::Marker => {
                    self.advance();
                    self.out.value();
                    Last::Literal
                }
                Token::Sign(b'{' | b'[') => self.bracketed()?,
                Token::Sign(b'(') if last == Last::Assigns => self.bracketed()?,
                // Markers have no place here.
                Token::Sign(b':') => return None,
                Token::Sign(b'-') if last == Last::Assigns => {
                    self.advance();
                    if !matches!(self.token, Token::Literal | Token::Integer(_)) {
                        return None;
                    }
                    last
                }
                Token::Sign(sign) => {
                    match sign {
                        // Where a value has to come nothing else does; but PASSWORD may be a column's name.
                        _ if last == Last::Assigns
                            && sign != b'='
                            && !(open > 0 && b"),".contains(&sign)) =>
                        {
                            return None;
                        }
                        b'(' if last != Last::Literal => open += 1,
                        b')' => open = open.checked_sub(1)?,
                        b'}' | b']' | b'-' => return None,
                        // Behind a literal it may be in the middle of one, whose quotes are wrong.
                        b',' | b'>' if open > 0 => {}
                        _ if last == Last::Literal => return None,
                        _ => {}
                    }
                    self.advance();
                    self.out.sign(sign);
                    match sign {
                        b'=' => Last::Assigns,
                        _ => Last::Sign,
                    }
                }
                Token::Word(_) | Token::Quoted(_) if last == Last::Assigns => {
                    self.advance();
                    self.out.value();
                    Last::Literal
                }
                Token::Word(word) => self.word(word, last, open > 0)?,
                Token::Quoted(_) if last == Last::Literal => return None,
                Token::Quoted(_) => {
                    self.name()?;
                    Last::Word
                }
            };
        }
    }

    fn bracketed(&mut self) -> Option<Last> {
        self.skip_bracketed()?;
        self.out.value();
        Some(Last::Literal)
    }

    /// A word that is no value. `listed`: in a list of columns or parameters.
    fn word(&mut self, word: &str, last: Last, listed: bool) -> Option<Last> {
        let Some(keyword) = keyword(word) else {
            // Behind a literal it may be the rest of one, whose quotes are wrong.
            if last == Last::Literal || word.len() > MAX_NAME_BYTES {
                return None;
            }
            // A constraint compares with values, and has no end that could be seen.
            if word.eq_ignore_ascii_case("check") {
                return None;
            }
            if last == Last::Property && self.peek() != Token::Sign(b'=') {
                return None;
            }
            self.keep();
            self.advance();
            self.out.name(Name::Folded(word));
            let is_bean = ["mbean", "mbeans"]
                .iter()
                .any(|one| word.eq_ignore_ascii_case(one));
            return match is_bean && !listed {
                true => self.bean(),
                false => Some(Last::Word),
            };
        };
        let stands = match last {
            Last::Literal => BEHIND_VALUES.contains(&keyword),
            Last::Property => self.peek() == Token::Sign(b'=') || PROPERTIES.contains(&keyword),
            _ => true,
        };
        if !stands {
            return None;
        }
        self.accept(keyword);
        Some(match keyword {
            "TABLE" | "COLUMNFAMILY" | "KEYSPACE" | "SCHEMA" if self.token != Token::End => {
                if self.accept("IF") {
                    self.accept("NOT");
                    self.expect("EXISTS")?;
                }
                self.table()?;
                Last::Word
            }
            "AND" if last == Last::Literal => Last::Property,
            "PASSWORD" => Last::Assigns,
            // A function's body, unless it is a view's SELECT; a class.
            "AS" if !listed && !self.at("SELECT") => Last::Assigns,
            "USING" => {
                self.accept("TIMESTAMP");
                Last::Assigns
            }
            "ACCESS" if self.at("TO") || self.at("FROM") => self.access()?,
            "INITCOND" => {
                self.value()?;
                Last::Literal
            }
            "MASKED" => Last::Masked,
            "WITH" if last == Last::Masked => {
                if !self.accept("DEFAULT") {
                    self.value()?;
                }
                Last::Literal
            }
            // A materialized view's.
            "WHERE" => {
                self.relations(false)?;
                Last::Literal
            }
            _ => Last::Word,
        })
    }

    /// The string that names a JMX object, behind MBEAN or MBEANS; or none, for all of them.
    fn bean(&mut self) -> Option<Last> {
        match self.token {
            Token::Literal => {
                self.advance();
                self.out.value();
                Some(Last::Literal)
            }
            Token::End | Token::Sign(b';') => Some(Last::Word),
            _ if ["TO", "FROM", "OF"].iter().any(|word| self.at(word)) => Some(Last::Word),
            _ => None,
        }
    }

    /// `TO ALL DATACENTERS`, `FROM CIDRS {..}`, behind ACCESS.
    fn access(&mut self) -> Option<Last> {
        _ = self.accept("TO") || self.accept("FROM");
        let to_all = self.accept("ALL");
        if !self.at("DATACENTERS") && !self.at("CIDRS") {
            return Some(Last::Word);
        }
        self.name()?;
        match to_all {
            true => Some(Last::Word),
            false if self.token == Token::Sign(b'{') => self.bracketed(),
            false => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_keyword_is_found() {
        for word in KEYWORDS.iter().chain(&KEYWORDS_LONG) {
            assert_eq!(keyword(&word.to_ascii_lowercase()), Some(*word));
            assert_eq!(keyword(&format!("{word}x")), None);
        }
        assert!(KEYWORDS.is_sorted() && KEYWORDS_LONG.is_sorted());
        for word in BEHIND_VALUES.iter().chain(&PROPERTIES) {
            assert_eq!(keyword(word), Some(*word));
        }
    }
}
