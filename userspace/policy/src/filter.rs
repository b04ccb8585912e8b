//! Filters: which entries of a list an operator wants to see. One language for flows, statements and denials.
//!
//! `process=web*,process=batch,not user=etl` takes what a process `batch`, or one whose name begins with `web`, has
//! asked, unless its user is `etl`. As in a rule, of several values of one key one has to hold, and of several keys
//! each. A fact that is not known meets no condition, so it meets `not`.

use std::{borrow::Cow, fmt, net::IpAddr};

use crate::{Glob, Target, did_you_mean};

/// Bytes of a filter: many times a terminal's line.
pub const MAX_FILTER_BYTES: usize = 1024;

/// Conditions in a filter. Each is held against every entry.
pub const MAX_FILTER_CONDITIONS: usize = 32;

/// The word before a condition that must not hold.
const NOT: &str = "not ";

/// A key of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterKey {
    /// The client's process, by name.
    Process,
    /// The client's process, by id.
    Pid,
    /// The client's user id.
    Uid,
    /// The client's address.
    Client,
    /// The address that was dialled.
    To,
    /// The rule.
    Rule,
    /// The user who has logged in.
    User,
    /// The keyspace.
    Keyspace,
    /// The table; or keyspace and table, with a dot in between.
    Table,
    /// The kind of statement.
    Kind,
    /// The rule's action.
    Action,
    /// The path of the bytes.
    Path,
    /// The driver's name.
    Driver,
    /// The application's name.
    Application,
    /// The client's network namespace.
    Netns,
}

impl FilterKey {
    /// Every key.
    pub const ALL: [Self; 15] = [
        Self::Process,
        Self::Pid,
        Self::Uid,
        Self::Client,
        Self::To,
        Self::Rule,
        Self::User,
        Self::Keyspace,
        Self::Table,
        Self::Kind,
        Self::Action,
        Self::Path,
        Self::Driver,
        Self::Application,
        Self::Netns,
    ];

    /// The key as an operator writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Pid => "pid",
            Self::Uid => "uid",
            Self::Client => "client",
            Self::To => "to",
            Self::Rule => "rule",
            Self::User => "user",
            Self::Keyspace => "keyspace",
            Self::Table => "table",
            Self::Kind => "kind",
            Self::Action => "action",
            Self::Path => "path",
            Self::Driver => "driver",
            Self::Application => "application",
            Self::Netns => "netns",
        }
    }
}

/// A fact of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterFact<'a> {
    /// A name.
    Text(Cow<'a, str>),
    /// A process or user id.
    Number(u32),
    /// An address, and its port where that is known.
    Address(IpAddr, Option<u16>),
}

impl<'a> From<&'a str> for FilterFact<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

/// An entry of a list that a filter is held against.
pub trait Filtered {
    /// The fact under this key. None: it is not known, or there is none.
    fn fact(&self, key: FilterKey) -> Option<FilterFact<'_>>;
}

/// Conditions on the entries of a list. Without any, it takes every entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(Vec<Condition>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    is_not: bool,
    key: FilterKey,
    pattern: Pattern,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Text(Glob),
    /// The keyspace and the table.
    Qualified(Glob, Glob),
    Number(u32),
    /// The text is kept as it was written.
    Address(Target, Box<str>),
}

impl Filter {
    /// Reads `key=value,not key=value`. `keys`: those that the list's entries have.
    ///
    /// # Errors
    /// Says what was expected, what was found, and what was probably meant.
    pub fn parse(text: &str, keys: &[FilterKey]) -> Result<Self, String> {
        if text.len() > MAX_FILTER_BYTES {
            return Err(format!(
                "expected a filter of at most {MAX_FILTER_BYTES} bytes; found {}",
                text.len()
            ));
        }
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let conditions = text.split(',').map(|one| Condition::parse(one, keys));
        let conditions: Vec<Condition> = conditions.collect::<Result<_, _>>()?;
        match conditions.len() <= MAX_FILTER_CONDITIONS {
            true => Ok(Self(conditions)),
            false => Err(format!(
                "expected at most {MAX_FILTER_CONDITIONS} conditions; found {}",
                conditions.len()
            )),
        }
    }

    /// Whether it has no condition, and takes every entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it takes this entry.
    pub fn takes(&self, entry: &impl Filtered) -> bool {
        self.0.iter().all(|condition| match condition.is_not {
            true => !condition.holds(entry),
            // One of the key's values is enough.
            false => {
                let mut same = self.0.iter();
                same.any(|one| !one.is_not && one.key == condition.key && one.holds(entry))
            }
        })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, condition) in self.0.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let not = if condition.is_not { NOT } else { "" };
            let (key, pattern) = (condition.key.as_str(), &condition.pattern);
            write!(f, "{comma}{not}{key}={pattern}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(glob) => glob.fmt(f),
            Self::Qualified(keyspace, table) => write!(f, "{keyspace}.{table}"),
            Self::Number(number) => number.fmt(f),
            Self::Address(_, text) => f.write_str(text),
        }
    }
}

impl Condition {
    fn parse(text: &str, keys: &[FilterKey]) -> Result<Self, String> {
        let text = text.trim();
        let (is_not, positive) = match text.strip_prefix(NOT) {
            Some(rest) => (true, rest.trim_start()),
            None => (false, text),
        };
        let Some((name, value)) = positive.split_once('=') else {
            return Err(format!(
                "expected `key=value` or `not key=value`, with commas in between; found {text:?}"
            ));
        };
        let (name, value) = (name.trim(), value.trim());
        let key = key(name, keys)?;
        let pattern = Pattern::parse(key, value)
            .map_err(|expected| format!("{name}: expected {expected}; found {value:?}"))?;
        Ok(Self {
            is_not,
            key,
            pattern,
        })
    }

    fn holds(&self, entry: &impl Filtered) -> bool {
        let is_text = |key, glob: &Glob| match entry.fact(key) {
            Some(FilterFact::Text(text)) => glob.holds(&text),
            _ => false,
        };
        match &self.pattern {
            Pattern::Text(glob) => is_text(self.key, glob),
            Pattern::Qualified(keyspace, table) => {
                is_text(FilterKey::Keyspace, keyspace) && is_text(FilterKey::Table, table)
            }
            Pattern::Number(number) => entry.fact(self.key) == Some(FilterFact::Number(*number)),
            Pattern::Address(target, _) => match entry.fact(self.key) {
                Some(FilterFact::Address(ip, port)) => target.holds_at(ip, port),
                _ => false,
            },
        }
    }
}

/// The key with this name, if the list's entries have it.
fn key(name: &str, keys: &[FilterKey]) -> Result<FilterKey, String> {
    let named = |key: &&FilterKey| key.as_str() == name;
    if let Some(key) = keys.iter().find(named) {
        return Ok(*key);
    }
    let names: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
    let all = names.join(", ");
    Err(
        match FilterKey::ALL.iter().any(|key| key.as_str() == name) {
            true => format!("{name}: nothing in this list has it; keys here: {all}"),
            false => {
                let meant = did_you_mean(name, names);
                format!("there is no key {name:?}; keys here: {all}{meant}")
            }
        },
    )
}

impl Pattern {
    /// Reads the value of a key. The error says what was expected.
    fn parse(key: FilterKey, value: &str) -> Result<Self, String> {
        const TEXT: &str = "a name, or a pattern such as `spark*`";
        let glob = |text: &str| Glob::parse(text).ok_or_else(|| TEXT.to_owned());
        match key {
            FilterKey::Pid | FilterKey::Uid => {
                let number = value.parse().map(Self::Number);
                number.map_err(|_| "a number from 0 to 4294967295".to_owned())
            }
            FilterKey::Client | FilterKey::To => {
                Ok(Self::Address(Target::parse(value)?, value.into()))
            }
            FilterKey::Table => match value.split_once('.') {
                Some((keyspace, table)) => Ok(Self::Qualified(glob(keyspace)?, glob(table)?)),
                None => Ok(Self::Text(glob(value)?)),
            },
            _ => Ok(Self::Text(glob(value)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::{prelude::*, sample::select};

    use super::*;

    #[derive(Debug, Default)]
    struct Entry(HashMap<&'static str, FilterFact<'static>>);

    impl Filtered for Entry {
        fn fact(&self, key: FilterKey) -> Option<FilterFact<'_>> {
            self.0.get(key.as_str()).cloned()
        }
    }

    fn entry() -> Entry {
        let text = |text: &'static str| FilterFact::from(text);
        Entry(HashMap::from([
            ("process", text("spark-shell")),
            ("uid", FilterFact::Number(1000)),
            ("to", FilterFact::Address([10, 1, 2, 3].into(), Some(9042))),
            ("client", FilterFact::Address([10, 9, 0, 7].into(), None)),
            ("keyspace", text("shop")),
            ("table", text("carts")),
        ]))
    }

    fn takes(filter: &str) -> bool {
        Filter::parse(filter, &FilterKey::ALL)
            .unwrap()
            .takes(&entry())
    }

    #[test]
    fn of_a_key_one_value_holds_and_of_several_keys_each() {
        for filter in [
            "",
            " ",
            "process=spark*",
            "process=web,process=spark-shell",
            "process=spark*,uid=1000",
            "to=:9042",
            "to=10.0.0.0/8",
            "to=10.1.2.3:9042",
            "client=10.9.0.7",
            "table=carts",
            "table=shop.car*",
            "table=*.carts",
            "not process=web",
            " not  process = web , uid = 1000 ",
            // It is not known, so it is not `etl` either.
            "not user=etl",
        ] {
            assert!(takes(filter), "{filter}");
        }
        for filter in [
            "process=spark",
            "process=spark*,uid=0",
            "to=:9043",
            "to=10.0.0.0/16",
            // Its port is not known.
            "client=10.9.0.7:4000",
            "table=other.carts",
            "table=shop",
            "not process=spark*",
            "process=spark*,not process=*shell",
            "user=*",
        ] {
            assert!(!takes(filter), "{filter}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let keys = [
            FilterKey::Process,
            FilterKey::User,
            FilterKey::To,
            FilterKey::Uid,
        ];
        for (filter, said) in [
            (
                "proces=web",
                "there is no key \"proces\"; keys here: process, user, to, uid: did you mean `process`?",
            ),
            ("USER=web", "did you mean `user`?"),
            (
                "xyzzy=1",
                "there is no key \"xyzzy\"; keys here: process, user, to, uid",
            ),
            (
                "table=t",
                "table: nothing in this list has it; keys here: process, user",
            ),
            ("process", "expected `key=value` or `not key=value`"),
            ("process=web,", "found \"\""),
            ("process=", "process: expected a name, or a pattern"),
            (
                "uid=root",
                "uid: expected a number from 0 to 4294967295; found \"root\"",
            ),
            ("to=9042", "to: expected network and port"),
            (
                "to=10.1.2.3/8",
                "to: expected a network's first address: `10.0.0.0/8`",
            ),
        ] {
            let error = Filter::parse(filter, &keys).unwrap_err();
            assert!(error.contains(said), "{filter}: {error}");
        }
        let long = vec!["uid=1"; MAX_FILTER_CONDITIONS + 1].join(",");
        assert!(
            Filter::parse(&long, &keys)
                .unwrap_err()
                .contains("at most 32")
        );
        let long = format!("process={}", "x".repeat(MAX_FILTER_BYTES));
        assert!(
            Filter::parse(&long, &keys)
                .unwrap_err()
                .contains("1024 bytes")
        );
    }

    fn condition() -> impl Strategy<Value = (bool, &'static str, &'static str)> {
        let keys = select(vec!["process", "keyspace", "table", "user"]);
        let values = select(vec![
            "web",
            "spark-shell",
            "spark*",
            "*shell",
            "shop",
            "carts",
            "*",
        ]);
        (any::<bool>(), keys, values)
    }

    proptest! {
        /// A filter says what its conditions say one by one, and is read as it was written.
        #[test]
        fn a_filter_is_its_conditions(conditions in prop::collection::vec(condition(), 0..8)) {
            let written = conditions.iter().map(|(is_not, key, value)| {
                format!("{}{key}={value}", if *is_not { "not " } else { "" })
            });
            let text = written.collect::<Vec<_>>().join(",");
            let filter = Filter::parse(&text, &FilterKey::ALL).unwrap();
            prop_assert_eq!(filter.to_string(), text);
            let alone = |key: &str, value: &str| takes(&format!("{key}={value}"));
            let all = conditions.iter().all(|(is_not, key, value)| match is_not {
                true => !alone(key, value),
                false => conditions
                    .iter()
                    .any(|(is_not, other, value)| !is_not && other == key && alone(key, value)),
            });
            prop_assert_eq!(filter.takes(&entry()), all);
        }

        /// Whatever is written is read or refused, and what is read means the same when it is read again.
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z =,.*:/0-9not\\[\\]\u{e9}]{0,40}") {
            if let Ok(filter) = Filter::parse(&text, &FilterKey::ALL) {
                prop_assert_eq!(&Filter::parse(&filter.to_string(), &FilterKey::ALL), &Ok(filter));
            }
        }

        /// `not` is the opposite.
        #[test]
        fn not_is_the_opposite((_, key, value) in condition()) {
            prop_assert_ne!(takes(&format!("{key}={value}")), takes(&format!("not {key}={value}")));
        }
    }
}
