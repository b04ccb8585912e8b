//! The database's names in place of the client's, in the text of a statement.
//!
//! A text in which none of them stands goes on as it is. One that is followed to its end has each name
//! that is a table's or a keyspace's replaced; `definitions` are those that change no data. Whatever else
//! has one of them in it may mean something that is called otherwise, and is refused: it is never sent
//! to what the database has under that name.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use super::definitions;
use super::lookups::{self, Lookups};
use super::refusal::{refusal, refused};
use super::renames::Renames;
use super::text::{Edits, Text};
use crate::Refused;
use crate::sites::{Part, Sites, Spot};
use cql::StatementKind;
use cql::is_system_keyspace;
use cql::text::Name;
use cql::text::parse;

/// The outcome for a text.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// The response may have names in it.
    pub(super) answers_names: bool,
    /// The statement reads a table of the server's that tells of others.
    pub(super) lookups: Option<Lookups>,
}

/// Replaces names. `keyspace`: that of tables without one, by the client's name.
pub(super) fn rename(
    renames: &Renames,
    text: &Text<'_>,
    keyspace: Option<&str>,
    edits: &mut Edits,
) -> Result<Named, Refused> {
    let bytes = text.bytes;
    let statement = parse(bytes, bytes.len()).statement;
    let stored = statement.keyspace.map(Name::to_boxed);
    let of = stored.as_deref().or(keyspace);
    let is_lookup = statement.kind == StatementKind::Select && of.is_some_and(is_system_keyspace);
    let changes_no_data = !matches!(
        statement.kind,
        StatementKind::Select
            | StatementKind::Insert
            | StatementKind::Update
            | StatementKind::Delete
            | StatementKind::Batch
    );
    let mut named = Named {
        answers_names: changes_no_data
            || stored.is_none() && keyspace.is_none_or(|keyspace| renames.concerns(keyspace)),
        lookups: None,
    };
    // By its beginning; what it is for sure is said by its sites.
    let is_named = renames.may_be_in(bytes);
    if !is_named && !is_lookup {
        return Ok(named);
    }
    named.answers_names = true;
    let Some((spots, sites)) = text.sites() else {
        if is_lookup {
            // Without names, and without markers for them, only its rows matter.
            let may_pass = !is_named && !bytes.iter().any(|byte| b"?:".contains(byte));
            named.lookups = may_pass.then(Lookups::default);
            return named.lookups.is_some().then_some(named).ok_or_else(refused);
        }
        let spots = text.spots().ok_or_else(refused)?;
        let mut naming = Naming::new(renames, keyspace, spots, edits);
        definitions::name(&mut naming)?;
        return Ok(named);
    };
    if is_of_the_server(sites, spots, keyspace) {
        named.lookups = Some(lookups::find(renames, bytes, spots, sites, edits)?);
        Naming::new(renames, keyspace, spots, edits).qualifiers(false)?;
    } else {
        Naming::new(renames, keyspace, spots, edits).data(sites)?;
    }
    Ok(named)
}

/// Whether it is a SELECT from one of the server's own tables.
fn is_of_the_server(sites: &Sites<'_>, spots: &[Spot<'_>], keyspace: Option<&str>) -> bool {
    let [part] = &*sites.parts else {
        return false;
    };
    let own = part.keyspace.and_then(|at| spots.get(at)?.name());
    let own = own.map(Name::to_boxed);
    part.kind == StatementKind::Select
        && own.as_deref().or(keyspace).is_some_and(is_system_keyspace)
}

/// A text that is given other names.
pub(super) struct Naming<'n, 't> {
    pub(super) renames: &'n Renames,
    /// The keyspace of names without one.
    pub(super) keyspace: Option<&'n str>,
    pub(super) spots: &'n [Spot<'t>],
    edits: &'n mut Edits,
    /// Tokens that are known to be names of keyspaces or tables.
    done: HashSet<usize>,
}

impl<'n, 't> Naming<'n, 't> {
    fn new(
        renames: &'n Renames,
        keyspace: Option<&'n str>,
        spots: &'n [Spot<'t>],
        edits: &'n mut Edits,
    ) -> Self {
        Self {
            renames,
            keyspace,
            spots,
            edits,
            done: HashSet::new(),
        }
    }

    fn data(&mut self, sites: &Sites<'t>) -> Result<(), Refused> {
        for Part {
            keyspace, table, ..
        } in &sites.parts
        {
            self.table(*keyspace, *table)?;
        }
        self.qualifiers(false)
    }

    /// A table's name, and that of its keyspace if there is one; by the places of their tokens.
    pub(super) fn table(&mut self, keyspace: Option<usize>, table: usize) -> Result<(), Refused> {
        let table_name = self.name(table)?.to_boxed();
        let of = match keyspace {
            Some(at) => {
                let of = self.name(at)?.to_boxed();
                self.keyspace(at)?;
                Some(of)
            }
            None => self.keyspace.map(Box::from),
        };
        self.done.insert(table);
        match of {
            Some(of) => {
                let renames = self.renames;
                if let Some(called) = renames.database_table(&of, &table_name) {
                    self.write(table, called);
                }
                Ok(())
            }
            None if self.renames.renames_some_table(&table_name) => Err(refusal(
                "keyspace",
                "the proxy's policy calls a table of that name otherwise, and does not know in which \
                 keyspace the connection is; name the keyspace",
            )),
            None => Ok(()),
        }
    }

    /// A keyspace's name.
    pub(super) fn keyspace(&mut self, at: usize) -> Result<(), Refused> {
        let name = self.name(at)?.to_boxed();
        let renames = self.renames;
        self.done.insert(at);
        if renames.renames_keyspace(&name) {
            self.write(at, renames.database_keyspace(&name));
        }
        Ok(())
    }

    /// Renames other names that a keyspace qualifies: functions, and `types` where such may stand.
    pub(super) fn qualifiers(&mut self, types: bool) -> Result<(), Refused> {
        for (at, spot) in self.spots.iter().enumerate() {
            let is_sign =
                |at: usize, sign| self.spots.get(at).is_some_and(|spot| spot.is_sign(sign));
            let Some(name) = spot.name() else {
                continue;
            };
            let is_keyspace = self.renames.renames_keyspace(&name.to_boxed());
            if !is_keyspace || !is_sign(at + 1, b'.') || self.done.contains(&at) {
                continue;
            }
            let is_part = at
                .checked_sub(1)
                .is_some_and(|before| is_sign(before, b'.'));
            // What is called is a function, whatever stands before the dot.
            if is_part || !(types || is_sign(at + 3, b'(')) {
                return Err(refused());
            }
            self.keyspace(at)?;
        }
        Ok(())
    }

    /// Nothing of it is a name that could mean something else.
    pub(super) fn has_no_name(&self) -> Result<(), Refused> {
        let mut names = self.spots.iter().filter_map(Spot::name);
        match names.any(|name| self.renames.has_name(name)) {
            true => Err(refused()),
            false => Ok(()),
        }
    }

    fn name(&self, at: usize) -> Result<Name<'t>, Refused> {
        let spot = self.spots.get(at);
        spot.and_then(Spot::name).ok_or_else(refused)
    }

    fn write(&mut self, at: usize, name: &str) {
        let Some(spot) = self.spots.get(at) else {
            return;
        };
        let is_quoted = matches!(spot.name(), Some(Name::Quoted(_)));
        let first = name.bytes().next().unwrap_or_default();
        let needs_quotes = !first.is_ascii_lowercase()
            || name.bytes().any(|byte| byte.is_ascii_uppercase())
            || cql::text::is_reserved(name);
        let written = match is_quoted || needs_quotes {
            true => format!("\"{name}\""),
            false => name.to_owned(),
        };
        self.edits.push((spot.at.clone(), written));
    }
}
