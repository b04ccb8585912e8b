//! [`Text`]: tokens, and what may stand between them.

use crate::random::Random;

/// A statement's text so far.
#[derive(Debug)]
pub(crate) struct Text {
    text: String,
    /// Tokens that may touch do.
    dense: bool,
    /// Comments stand between some.
    comments: bool,
}

const BLANKS: [&str; 6] = [" ", " ", " ", "\n", "\t", "  "];
const COMMENTS: [&str; 6] = [
    "/* c */",
    " -- FROM x.y WHERE\n",
    " // '\n",
    "/**/",
    " /* \"; ? :a */ ",
    "--\n",
];

impl Text {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self {
            text: String::new(),
            dense: random.one_in(2),
            comments: random.one_in(4),
        }
    }

    /// A token, as it stands.
    pub(crate) fn token(&mut self, random: &mut Random, token: &str) {
        let (last, first) = (self.text.chars().next_back(), token.chars().next());
        if let (Some(last), Some(first)) = (last, first) {
            let gap = self.gap(random, last, first);
            self.text.push_str(gap);
        }
        self.text.push_str(token);
    }

    fn gap(&self, random: &mut Random, last: char, first: char) -> &'static str {
        let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let needed = in_word(last) && in_word(first)
            || last == first && matches!(last, '\'' | '"' | '$' | '-' | '/')
            || last == ':' && in_word(first)
            || last == '.' && first.is_ascii_digit()
            || in_word(last) && matches!(first, '$' | '.')
            || matches!(last, '+' | '-') && (in_word(first) || matches!(first, '-' | '.'));
        // A comment must not begin with this one's last letter.
        if self.comments && !matches!(last, '-' | '/') && random.one_in(4) {
            return random.word(&COMMENTS);
        }
        match needed {
            true => random.word(&BLANKS),
            false if self.dense || random.one_in(3) => "",
            false => random.word(&BLANKS),
        }
    }

    /// Keywords, each in any case.
    pub(crate) fn words(&mut self, random: &mut Random, words: &str) {
        for word in words.split(' ') {
            let word = match random.below(4) {
                0 => word.to_ascii_lowercase(),
                1 => cased(random, word),
                _ => word.to_owned(),
            };
            self.token(random, &word);
        }
    }

    /// A name that this is without quotes: in quotes, if it needs them or by chance.
    pub(crate) fn name(&mut self, random: &mut Random, name: &str) {
        let name = named(random, name);
        self.token(random, &name);
    }

    /// A name behind another one and a point, which touch both or not.
    pub(crate) fn qualified(&mut self, random: &mut Random, before: &str, name: &str) {
        let before = named(random, before);
        let name = named(random, name);
        match random.below(6) {
            0 => {
                self.token(random, &before);
                self.text.push_str(random.word(&BLANKS));
                self.text.push('.');
                self.text.push_str(random.word(&BLANKS));
                self.text.push_str(&name);
            }
            _ => self.token(random, &format!("{before}.{name}")),
        }
    }

    pub(crate) fn finish(mut self, random: &mut Random) -> String {
        match random.below(8) {
            0 => self.text.push(';'),
            1 => self.text.push_str(" ; "),
            2 => self.text.push_str(" -- end\n"),
            3 => self
                .text
                .insert_str(0, random.word(&["\n ", "/* first */", "-- first\n"])),
            _ => {}
        }
        self.text
    }
}

/// Words that cannot be names without quotes.
const RESERVED: [&str; 2] = ["from", "select"];

fn named(random: &mut Random, name: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_plain = name.chars().all(plain) && !RESERVED.contains(&name);
    match is_plain && !random.one_in(4) {
        true if random.one_in(6) => cased(random, name),
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

fn cased(random: &mut Random, word: &str) -> String {
    let one = |c: char| match random.one_in(2) {
        true => c.to_ascii_uppercase(),
        false => c.to_ascii_lowercase(),
    };
    word.chars().map(one).collect()
}
