//! Users and groups in rules: by id, or by a name in `/etc/passwd` or `/etc/group`.
//!
//! These files are read, and no other source of names: one that waits for a server would hold up a reload.

use std::{fmt, fs};

use policy::did_you_mean;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use toml::Spanned;

use super::{error::Flaw, value::expected};

/// A user or a group as the file has it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum RawId {
    /// The id.
    Id(i64),
    /// The name.
    Name(String),
}

impl RawId {
    /// Reads what a command line has.
    pub(super) fn of(text: &str) -> Self {
        text.parse()
            .map_or_else(|_| Self::Name(text.to_owned()), Self::Id)
    }
}

impl fmt::Debug for RawId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => fmt::Debug::fmt(name, f),
        }
    }
}

impl<'de> Deserialize<'de> for RawId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct IdOrName;

        impl Visitor<'_> for IdOrName {
            type Value = RawId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id or a name")
            }

            fn visit_i64<E: de::Error>(self, id: i64) -> Result<RawId, E> {
                Ok(RawId::Id(id))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RawId, E> {
                Ok(RawId::Name(name.to_owned()))
            }
        }

        from.deserialize_any(IdOrName)
    }
}

/// A kind of ids, and the file that has their names: `name:password:id` and more in each line.
pub struct Ids {
    key: &'static str,
    expected: &'static str,
    file: &'static str,
}

/// Users.
pub const USERS: Ids = Ids {
    key: "rule.uid",
    expected: "a user id from 0 to 4294967295, or a user's name",
    file: "/etc/passwd",
};

/// Groups.
pub const GROUPS: Ids = Ids {
    key: "rule.gid",
    expected: "a group id from 0 to 4294967295, or a group's name",
    file: "/etc/group",
};

impl Ids {
    /// The ids of a rule's list.
    pub(super) fn ids(&self, list: &[Spanned<RawId>]) -> Result<Vec<u32>, Flaw> {
        list.iter().map(|one| self.id(one)).collect()
    }

    fn id(&self, one: &Spanned<RawId>) -> Result<u32, Flaw> {
        let Self {
            key,
            expected: what,
            ..
        } = self;
        match one.get_ref() {
            RawId::Id(id) => u32::try_from(*id).or_else(|_| expected(key, one, what)),
            RawId::Name(name) => self.named(name).map_err(|why| {
                let message = format!("{key}: expected {what}; found {name:?}, {why}");
                Flaw::new(one.span(), message)
            }),
        }
    }

    /// Reads an id, or finds the one with this name.
    ///
    /// # Errors
    /// Says that there is none, and which was probably meant.
    pub fn parse(&self, text: &str) -> Result<u32, String> {
        text.parse().or_else(|_| self.named(text))
    }

    fn named(&self, name: &str) -> Result<u32, String> {
        let file = self.file;
        let entries =
            fs::read_to_string(file).map_err(|e| format!("and cannot read {file}: {e}"))?;
        find(&entries, name).map_err(|meant| format!("which is not in {file}{meant}"))
    }
}

/// The id with a name; or the name that was probably meant.
fn find(entries: &str, name: &str) -> Result<u32, String> {
    let entries = entries.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse().ok()?))
    });
    let entries: Vec<(&str, u32)> = entries.collect();
    let found = entries.iter().find(|(entry, _)| *entry == name);
    found
        .map(|(_, id)| *id)
        .ok_or_else(|| did_you_mean(name, entries.iter().map(|(entry, _)| *entry)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{parse, refusal};

    #[test]
    fn a_name_is_found_or_the_nearest_is_named() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\ncassandra:x:115:121::/var/lib/cassandra:\nbroken\n";
        assert_eq!(find(users, "cassandra"), Ok(115));
        assert_eq!(find("apps:x:50:ann,bob\n", "apps"), Ok(50));
        let said = find(users, "casandra").unwrap_err();
        assert_eq!(said, ": did you mean `cassandra`?");
        assert!(find(users, "broken").is_err());
        assert_eq!((USERS.parse("root"), GROUPS.parse("root")), (Ok(0), Ok(0)));
        assert_eq!(USERS.parse("7"), Ok(7));
    }

    #[test]
    fn rules_name_users_and_groups() {
        let rule = |keys: &str| format!("[[rule]]\nname = \"r\"\naction = \"bypass\"\n{keys}\n");
        let config = parse(&rule("uid = [7, \"root\"]\ngid = [50, \"root\"]")).unwrap();
        let rule_read = &config.policy.rules[0];
        assert_eq!(
            (&*rule_read.uids, &*rule_read.gids),
            (&[7, 0][..], &[50, 0][..])
        );
        for (key, kind, file) in [("uid", "user", "passwd"), ("gid", "group", "group")] {
            let said = refusal(&rule(&format!("{key} = [\"rooot\"]")));
            let expected = format!(
                "policy.toml:4:8: rule.{key}: expected a {kind} id from 0 to 4294967295, or a {kind}'s name; found \
                 \"rooot\", which is not in /etc/{file}: did you mean `root`?"
            );
            assert_eq!(said, expected);
            assert!(refusal(&rule(&format!("{key} = [-1]"))).contains("from 0 to 4294967295"));
        }
    }
}
