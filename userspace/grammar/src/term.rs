//! Constants, functions and bound values of a type.

use crate::schema::Type;
use crate::statement::{Binds, Value, Writer};

/// Keys are few, so that statements meet each other's rows.
const KEYS: u64 = 6;

const TEXTS: [&str; 8] = ["a", "b", "", "it's", "FROM x", "d\"q", "-- no", "$"];

/// Bytes with their number in front.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as i32).to_be_bytes()[..], bytes].concat()
}

/// Bytes of a collection with these elements.
fn collection(count: usize, elements: &[Vec<u8>]) -> Vec<u8> {
    let elements = elements.iter().flat_map(|one| counted(one));
    (count as i32)
        .to_be_bytes()
        .into_iter()
        .chain(elements)
        .collect()
}

/// A value of a type, for use in keys or anywhere.
#[derive(Clone, Debug)]
struct Constant {
    /// Spelled as tokens.
    tokens: Vec<String>,
    bytes: Vec<u8>,
}

impl Constant {
    fn of(token: String, bytes: Vec<u8>) -> Self {
        Self {
            tokens: vec![token],
            bytes,
        }
    }
}

impl Writer<'_> {
    /// A value of this type.
    pub(crate) fn term(&mut self, kind: Type) {
        if self.binds_next() {
            let bytes = match self.one_in(20) {
                true => None,
                false => Some(self.constant(kind).bytes),
            };
            return self.bound(bytes);
        }
        match self.one_in(12) {
            true if kind == Type::Counter => self.plain(kind),
            true => self.words("NULL"),
            false if self.one_in(4) => self.function(kind),
            false => self.plain(kind),
        }
    }

    /// A value of this type that is not null.
    pub(crate) fn key(&mut self, kind: Type) {
        match self.binds_next() {
            true => {
                let bytes = self.constant(kind).bytes;
                self.bound(Some(bytes));
            }
            false => self.plain(kind),
        }
    }

    /// Decides whether the next value is bound.
    fn binds_next(&mut self) -> bool {
        self.binds != Binds::Nothing && self.one_in(2)
    }

    /// A marker for a value of these bytes.
    pub(crate) fn bound(&mut self, bytes: Option<Vec<u8>>) {
        let name = match self.binds {
            Binds::Names => Some(format!("n{}", self.values.len())),
            Binds::Positions | Binds::Nothing => None,
        };
        match &name {
            Some(name) => self.token(&format!(":{name}")),
            None => self.token("?"),
        }
        self.values.push(Value { name, bytes });
    }

    /// `IN ?` or `IN (…)`, with keys of this type.
    pub(crate) fn in_keys(&mut self, kind: Type) {
        self.words("IN");
        let n = self.random.below(4) as usize;
        if self.binds_next() {
            let keys: Vec<Vec<u8>> = (0..n).map(|_| self.constant(kind).bytes).collect();
            return self.bound(Some(collection(n, &keys)));
        }
        self.token("(");
        self.each(0..n, ",", |writer, _| writer.key(kind));
        self.token(")");
    }

    /// A constant.
    fn plain(&mut self, kind: Type) {
        for token in self.constant(kind).tokens {
            self.token(&token);
        }
    }

    /// A call that gives this type, or a constant with its type in front.
    fn function(&mut self, kind: Type) {
        match kind {
            Type::Int if self.one_in(2) => {
                self.token("(");
                self.words("int");
                self.token(")");
                self.plain(kind);
            }
            Type::Blob => {
                self.words("intAsBlob");
                self.token("(");
                self.plain(Type::Int);
                self.token(")");
            }
            Type::Timestamp => {
                self.words("toTimestamp");
                self.token("(");
                self.words("minTimeuuid");
                self.token("(");
                self.plain(Type::Timestamp);
                self.token(")");
                self.token(")");
            }
            _ => self.plain(kind),
        }
    }

    /// A text in quotes or between dollars.
    fn quoted(&mut self, text: &str) -> String {
        match !text.contains('$') && self.one_in(4) {
            true => format!("$${text}$$"),
            false => format!("'{}'", text.replace('\'', "''")),
        }
    }

    pub(crate) fn any_text(&mut self) -> &'static str {
        self.random.word(&TEXTS)
    }

    fn constant(&mut self, kind: Type) -> Constant {
        match kind {
            Type::Int => {
                let n = match self.one_in(10) {
                    true => -(self.random.below(1000) as i32),
                    false => self.random.below(KEYS) as i32,
                };
                Constant::of(n.to_string(), n.to_be_bytes().to_vec())
            }
            Type::Counter => {
                let n = self.random.below(9) as i64 + 1;
                Constant::of(n.to_string(), n.to_be_bytes().to_vec())
            }
            Type::Text => {
                let text = self.any_text();
                let token = self.quoted(text);
                Constant::of(token, text.as_bytes().to_vec())
            }
            Type::Double => {
                let (token, n) = *self.random.of(&[
                    ("1.5", 1.5),
                    ("-2.25", -2.25),
                    ("1e3", 1e3),
                    ("2.5E-1", 0.25),
                    ("NaN", f64::NAN),
                    ("-Infinity", f64::NEG_INFINITY),
                ]);
                Constant::of(token.to_owned(), n.to_be_bytes().to_vec())
            }
            Type::Blob => {
                let bytes = [self.random.below(256) as u8, 0xAB];
                let token = format!("0x{:02x}AB", bytes[0]);
                Constant::of(token, bytes.to_vec())
            }
            Type::Uuid => {
                let last = self.random.below(KEYS) as u8;
                let token = format!("00000000-0000-4000-8000-0000000000{last:02x}");
                let mut bytes = [0; 16];
                (bytes[6], bytes[8], bytes[15]) = (0x40, 0x80, last);
                Constant::of(token, bytes.to_vec())
            }
            Type::Timestamp => {
                let day = self.random.below(9) as i64;
                let ms = (19_723 + day) * 86_400_000;
                let token = match self.one_in(2) {
                    true => ms.to_string(),
                    false => format!("'2024-01-0{}T00:00:00Z'", day + 1),
                };
                Constant::of(token, ms.to_be_bytes().to_vec())
            }
            Type::Map => self.group("{", "}", |writer| {
                let (key, value) = (writer.constant(Type::Text), writer.constant(Type::Int));
                vec![(key, ":"), (value, "")]
            }),
            Type::List => self.group("[", "]", |writer| vec![(writer.constant(Type::Int), "")]),
            Type::Set => self.group("{", "}", |writer| vec![(writer.constant(Type::Text), "")]),
            Type::Place => self.place(),
            Type::Tuple => {
                let (one, two) = (self.constant(Type::Int), self.constant(Type::Text));
                let bytes = [counted(&one.bytes), counted(&two.bytes)].concat();
                let mut tokens = vec!["(".to_owned()];
                tokens.extend(one.tokens);
                tokens.push(",".to_owned());
                tokens.extend(two.tokens);
                tokens.push(")".to_owned());
                Constant { tokens, bytes }
            }
            Type::Vector => {
                let all: Vec<f32> = (0..3)
                    .map(|_| self.random.below(8) as f32 / 4.0 + 0.25)
                    .collect();
                let bytes = all.iter().flat_map(|n| n.to_be_bytes()).collect();
                let mut tokens = vec!["[".to_owned()];
                for (nth, n) in all.iter().enumerate() {
                    if nth > 0 {
                        tokens.push(",".to_owned());
                    }
                    tokens.push(format!("{n:.2}"));
                }
                tokens.push("]".to_owned());
                Constant { tokens, bytes }
            }
        }
    }

    /// A collection with one or two elements: the parts of each, and the tokens behind them.
    fn group(
        &mut self,
        open: &str,
        close: &str,
        element: impl Fn(&mut Self) -> Vec<(Constant, &'static str)>,
    ) -> Constant {
        let most = 1 + self.random.below(2);
        let mut tokens = vec![open.to_owned()];
        let (mut n, mut parts) = (0, Vec::new());
        for _ in 0..most {
            let element = element(self);
            // Of two values for one key the server takes either.
            let key = element.first().filter(|(_, behind)| *behind == ":");
            if key.is_some_and(|(key, _)| parts.first() == Some(&key.bytes)) {
                continue;
            }
            if n > 0 {
                tokens.push(",".to_owned());
            }
            n += 1;
            for (constant, behind) in element {
                tokens.extend(constant.tokens);
                parts.push(constant.bytes);
                if !behind.is_empty() {
                    tokens.push(behind.to_owned());
                }
            }
        }
        tokens.push(close.to_owned());
        Constant {
            tokens,
            bytes: collection(n, &parts),
        }
    }

    /// A value of the user type.
    fn place(&mut self) -> Constant {
        let (street, zip) = (self.constant(Type::Text), self.constant(Type::Int));
        let tags = self.constant(Type::Set);
        let bytes = [&street.bytes, &zip.bytes, &tags.bytes].map(|bytes| counted(bytes));
        let mut tokens = vec!["{".to_owned(), "street".to_owned(), ":".to_owned()];
        tokens.extend(street.tokens);
        tokens.extend([",", "zip", ":"].map(str::to_owned));
        tokens.extend(zip.tokens);
        tokens.extend([",", "\"Tags\"", ":"].map(str::to_owned));
        tokens.extend(tags.tokens);
        tokens.push("}".to_owned());
        Constant {
            tokens,
            bytes: bytes.concat(),
        }
    }
}
