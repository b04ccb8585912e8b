//! `consistency`: forces, raises or caps consistency levels, of all statements or by kind and keyspace.

mod selection;

use std::sync::Arc;

use serde::Deserialize;

use crate::{Caller, Outcome, Request, Response, Transform, Unpaired};
use cql::Consistency;
use cql::Opcode;
use selection::Selection;

/// Forces, raises or lowers the consistency level of QUERY, EXECUTE and BATCH. Needs one of `exactly`, `at_least`,
/// `at_most`, `serial`. Reads of the server's own keyspaces are left alone unless `keyspaces` names them.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"at_most": "LOCAL_ONE", "kinds": ["reads"]}]))]
pub struct ConsistencySettings {
    /// Level of every request. Not together with `at_least` and `at_most`.
    #[schemars(extend("enum" = BY_STRENGTH))]
    pub exactly: Option<String>,
    /// Level to which weaker ones are raised. The values are sorted from weak to strong.
    #[schemars(extend("enum" = BY_STRENGTH))]
    pub at_least: Option<String>,
    /// Level to which stronger ones are lowered.
    #[schemars(extend("enum" = BY_STRENGTH))]
    pub at_most: Option<String>,
    /// Serial level in place of the one that a request names.
    #[schemars(extend("enum" = SERIAL))]
    pub serial: Option<String>,
    /// Kinds of statements that the step changes: `reads`, `writes`, `select`, `insert`, `update`, `delete`, `batch`.
    /// Without this key: all.
    #[schemars(length(min = 1), extend("items" = {"type": "string", "enum": selection::names()}))]
    pub kinds: Option<Vec<String>>,
    /// Keyspaces whose statements the step changes, as the database stores their names. Without this key: all,
    /// but for reads of the server's own.
    #[schemars(length(min = 1), extend("examples" = [["shop"]]))]
    pub keyspaces: Option<Vec<String>>,
}

/// Levels of the condition of a light-weight transaction.
const SERIAL: [&str; 2] = ["SERIAL", "LOCAL_SERIAL"];

/// Weakest first: how many replicas have to answer, of three and more, in how many datacentres.
const BY_STRENGTH: [&str; 9] = [
    "ANY",
    "LOCAL_ONE",
    "ONE",
    "TWO",
    "THREE",
    "LOCAL_QUORUM",
    "QUORUM",
    "EACH_QUORUM",
    "ALL",
];

#[derive(Debug)]
struct Levels {
    at_least: Option<Consistency>,
    at_most: Option<Consistency>,
    serial: Option<Consistency>,
    selection: Selection,
}

impl ConsistencySettings {
    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        let level = |key: &str, name: Option<String>| {
            let Some(name) = name else { return Ok(None) };
            match Consistency::by_name(&name) {
                Some(level) if !level.is_serial() => Ok(Some(level)),
                _ => Err(format!(
                    "{key}: expected one of {}, found \"{name}\"",
                    BY_STRENGTH.join(", ")
                )),
            }
        };
        let exactly = level("exactly", self.exactly)?;
        let (at_least, at_most) = (
            level("at_least", self.at_least)?,
            level("at_most", self.at_most)?,
        );
        if exactly.is_some() && (at_least.is_some() || at_most.is_some()) {
            return Err("exactly: expected without `at_least` and `at_most`".to_owned());
        }
        if let (Some(least), Some(most)) = (at_least, at_most)
            && strength(least) > strength(most)
        {
            return Err("at_least: expected a level that is not above `at_most`".to_owned());
        }
        let serial = match self.serial.as_deref() {
            None => None,
            Some(name) => match Consistency::by_name(name) {
                Some(level) if level.is_serial() => Some(level),
                _ => {
                    return Err(format!(
                        "serial: expected SERIAL or LOCAL_SERIAL, found \"{name}\""
                    ));
                }
            },
        };
        if exactly.or(at_least).or(at_most).or(serial).is_none() {
            return Err(
                "consistency: expected one of `exactly`, `at_least`, `at_most`, `serial`"
                    .to_owned(),
            );
        }
        Ok(Arc::new(Levels {
            at_least: at_least.or(exactly),
            at_most: at_most.or(exactly),
            serial,
            selection: Selection::new(self.kinds, self.keyspaces)?,
        }))
    }
}

/// None of a serial level, and of one that is not known.
fn strength(level: Consistency) -> Option<usize> {
    let known = |name: &&str| name.eq_ignore_ascii_case(level.as_str());
    BY_STRENGTH.iter().position(known)
}

impl Levels {
    fn of(&self, level: Consistency) -> Consistency {
        let Some(has) = strength(level) else {
            return level;
        };
        if let Some(least) = self.at_least
            && strength(least).is_some_and(|least| has < least)
        {
            return least;
        }
        match self.at_most {
            Some(most) if strength(most).is_some_and(|most| has > most) => most,
            _ => level,
        }
    }
}

impl Transform for Levels {
    fn name(&self) -> &'static str {
        "consistency"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    /// A level that has to hold is not given up because a request is odd.
    fn is_strict(&self) -> bool {
        true
    }

    /// A request's level does not depend on its response.
    fn unpaired(&self) -> Unpaired {
        Unpaired::Judged
    }

    fn response_unpaired(&self, number: u64) -> bool {
        self.selection.note_prepared(number, None);
        false
    }

    fn lacks(&self, id: &[u8], caller: &Caller) -> bool {
        self.selection.lacks(id, caller)
    }

    fn learns(&self, id: &[u8], keyspace: Option<&str>, text: &[u8], caller: &Caller) {
        self.selection.learns(id, keyspace, text, caller);
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        if request.opcode() == Opcode::Prepare {
            self.selection.prepares(request, caller);
            return Outcome::Pass;
        }
        let level = request.consistency().map(|asked| (asked, self.of(asked)));
        let level = level.filter(|(asked, level)| asked != level);
        let serial = self.serial.filter(|serial| {
            let asked = request.serial_consistency();
            asked.is_some_and(|asked| asked != *serial)
        });
        if level.is_none() && serial.is_none() {
            return Outcome::Pass;
        }
        match self.selection.takes(request, caller) {
            Ok(true) => {}
            Ok(false) => return Outcome::Pass,
            Err(again) => return again,
        }
        if let Some((_, level)) = level {
            request.set_consistency(level);
        }
        if let Some(serial) = serial {
            request.set_serial_consistency(serial);
        }
        Outcome::Changed
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        self.selection.note_prepared(number, response.prepared_id());
        false
    }
}
