//! Users in rules: by id, or by a name in `/etc/passwd`.
//!
//! The file is read, and no other source of names: one that waits for a server would hold up a reload.

use std::{fmt, fs};

use policy::did_you_mean;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use toml::Spanned;

use super::{error::Flaw, value::expected};

const PASSWD: &str = "/etc/passwd";

/// A user as the file has it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum RawUser {
    /// The user's id.
    Id(i64),
    /// The user's name.
    Name(String),
}

impl fmt::Debug for RawUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => fmt::Debug::fmt(name, f),
        }
    }
}

impl<'de> Deserialize<'de> for RawUser {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct IdOrName;

        impl Visitor<'_> for IdOrName {
            type Value = RawUser;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a user's id or name")
            }

            fn visit_i64<E: de::Error>(self, id: i64) -> Result<RawUser, E> {
                Ok(RawUser::Id(id))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RawUser, E> {
                Ok(RawUser::Name(name.to_owned()))
            }
        }

        from.deserialize_any(IdOrName)
    }
}

/// The id of a user.
pub(super) fn uid(user: &Spanned<RawUser>) -> Result<u32, Flaw> {
    const ID: &str = "a user id from 0 to 4294967295, or a user's name";
    match user.get_ref() {
        RawUser::Id(id) => u32::try_from(*id).or_else(|_| expected("rule.uid", user, ID)),
        RawUser::Name(name) => id_of(name).map_err(|why| {
            let message = format!("rule.uid: expected {ID}; found {name:?}, {why}");
            Flaw::new(user.span(), message)
        }),
    }
}

/// Finds the id of the user with this name.
///
/// # Errors
/// Says that there is none, and which was probably meant.
pub fn id_of(name: &str) -> Result<u32, String> {
    let users = fs::read_to_string(PASSWD).map_err(|e| format!("and cannot read {PASSWD}: {e}"))?;
    find(&users, name)
}

fn find(users: &str, name: &str) -> Result<u32, String> {
    let entries = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse().ok()?))
    });
    let entries: Vec<(&str, u32)> = entries.collect();
    let found = entries.iter().find(|(user, _)| *user == name);
    found.map(|(_, id)| *id).ok_or_else(|| {
        let meant = did_you_mean(name, entries.iter().map(|(user, _)| *user));
        format!("who is not in {PASSWD}{meant}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_or_the_nearest_is_named() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\ncassandra:x:115:121::/var/lib/cassandra:\nbroken\n";
        assert_eq!(find(users, "cassandra"), Ok(115));
        let said = find(users, "casandra").unwrap_err();
        assert_eq!(said, "who is not in /etc/passwd: did you mean `cassandra`?");
        assert!(find(users, "broken").is_err());
        assert_eq!(id_of("root"), Ok(0));
    }
}
