//! Names in statements that change no data: definitions, permissions, USE, TRUNCATE.

use super::naming::Naming;
use super::refusal::refused;
use crate::Refused;
use crate::sites::Spot;

/// Replaces the names in a definition. A definition of an unknown kind may not contain renamed ones.
pub(super) fn name(naming: &mut Naming<'_, '_>) -> Result<(), Refused> {
    let mut at = At {
        spots: naming.spots,
        at: 0,
    };
    if at.accepts("USE") {
        let keyspace = at.name()?;
        at.ends()?;
        return naming.keyspace(keyspace);
    }
    if at.accepts("TRUNCATE") {
        _ = at.accepts("TABLE") || at.accepts("COLUMNFAMILY");
        at.table(naming)?;
        return at.ends();
    }
    if at.accepts("CREATE") {
        let replaces = at.accepts("OR") && at.accepts("REPLACE");
        _ = !replaces && at.accepts("CUSTOM");
        return definition(naming, at, true);
    }
    if at.accepts("ALTER") || at.accepts("DROP") {
        return definition(naming, at, false);
    }
    if at.accepts("GRANT") || at.accepts("REVOKE") || at.accepts("LIST") {
        return permission(naming, at);
    }
    naming.has_no_name()
}

/// Replaces the names in a definition, from behind its verb.
fn definition(
    naming: &mut Naming<'_, '_>,
    mut at: At<'_, '_>,
    creates: bool,
) -> Result<(), Refused> {
    if at.accepts("KEYSPACE") || at.accepts("SCHEMA") {
        at.if_exists();
        let keyspace = at.name()?;
        return naming.keyspace(keyspace);
    }
    if at.accepts("TABLE") || at.accepts("COLUMNFAMILY") {
        at.if_exists();
        at.table(naming)?;
        // `CREATE TABLE a LIKE b`
        if at.accepts("LIKE") {
            at.table(naming)?;
        }
    } else if at.accepts("MATERIALIZED") {
        if !at.accepts("VIEW") {
            return Err(refused());
        }
        at.if_exists();
        at.table(naming)?;
        if at.goes_behind("FROM") {
            at.table(naming)?;
        } else if creates {
            return Err(refused());
        }
    } else if at.accepts("TYPE") || at.accepts("FUNCTION") || at.accepts("AGGREGATE") {
        // Of their own name, the keyspace counts; and so it does of the types behind it.
    } else if at.accepts("INDEX") {
        if creates {
            at.on(naming)?;
        }
    } else if at.accepts("TRIGGER") {
        at.on(naming)?;
    } else if at.accepts("ROLE") || at.accepts("USER") || at.accepts("IDENTITY") {
        return Ok(());
    } else {
        return naming.has_no_name();
    }
    naming.qualifiers(true)
}

/// `.. ON resource ..`
fn permission(naming: &mut Naming<'_, '_>, mut at: At<'_, '_>) -> Result<(), Refused> {
    if !at.goes_behind("ON") {
        // Roles.
        return Ok(());
    }
    if at.accepts("ALL") {
        if at.goes_behind("IN") {
            return match at.accepts("KEYSPACE") {
                true => {
                    let keyspace = at.name()?;
                    naming.keyspace(keyspace)
                }
                false => Err(refused()),
            };
        }
        return Ok(());
    }
    if at.accepts("KEYSPACE") {
        let keyspace = at.name()?;
        return naming.keyspace(keyspace);
    }
    if at.accepts("ROLE") || at.accepts("MBEAN") || at.accepts("MBEANS") {
        return Ok(());
    }
    if at.accepts("FUNCTION") {
        return naming.qualifiers(true);
    }
    at.accepts("TABLE");
    at.table(naming)
}

/// A place among tokens.
struct At<'n, 't> {
    spots: &'n [Spot<'t>],
    at: usize,
}

impl At<'_, '_> {
    fn accepts(&mut self, keyword: &str) -> bool {
        let here = self.spots.get(self.at);
        let here = here.is_some_and(|spot| spot.is_word(keyword));
        self.at += usize::from(here);
        here
    }

    /// `[IF [NOT] EXISTS]`
    fn if_exists(&mut self) {
        if self.accepts("IF") {
            self.accepts("NOT");
            self.accepts("EXISTS");
        }
    }

    /// A name's place.
    fn name(&mut self) -> Result<usize, Refused> {
        let here = self.spots.get(self.at).and_then(Spot::name);
        here.ok_or_else(refused)?;
        self.at += 1;
        Ok(self.at - 1)
    }

    /// `t` or `ks.t`
    fn table(&mut self, naming: &mut Naming<'_, '_>) -> Result<(), Refused> {
        let first = self.name()?;
        let is_qualified = self
            .spots
            .get(self.at)
            .is_some_and(|spot| spot.is_sign(b'.'));
        if !is_qualified {
            return naming.table(None, first);
        }
        self.at += 1;
        let table = self.name()?;
        naming.table(Some(first), table)
    }

    /// `.. ON t`
    fn on(&mut self, naming: &mut Naming<'_, '_>) -> Result<(), Refused> {
        match self.goes_behind("ON") {
            true => self.table(naming),
            false => Err(refused()),
        }
    }

    /// To the first of this keyword that stands in no brackets; false: there is none.
    fn goes_behind(&mut self, keyword: &str) -> bool {
        let mut open = 0_usize;
        let rest = self.spots.get(self.at..).unwrap_or_default();
        let found = rest.iter().position(|spot| {
            open += usize::from([b'(', b'[', b'{'].iter().any(|sign| spot.is_sign(*sign)));
            let closes = [b')', b']', b'}'].iter().any(|sign| spot.is_sign(*sign));
            open = open.saturating_sub(usize::from(closes));
            open == 0 && spot.is_word(keyword)
        });
        self.at += found.map_or(0, |found| found + 1);
        found.is_some()
    }

    fn ends(&self) -> Result<(), Refused> {
        let mut rest = self.spots.get(self.at..).unwrap_or_default().iter();
        match rest.all(|spot| spot.is_sign(b';')) {
            true => Ok(()),
            false => Err(refused()),
        }
    }
}
