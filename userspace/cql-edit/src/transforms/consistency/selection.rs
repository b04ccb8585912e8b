//! [`Selection`]: the statements that get another level: those of these kinds, in these keyspaces.
//!
//! What is not known of a statement does not keep it out: a level that has to hold is not given up because nobody can
//! tell what it is for. Reads of the server's own keyspaces are out unless `keyspaces` names them: drivers begin by them,
//! and each node answers them alone.

use crate::transforms::prepared::{Prepared, Preparing};
use crate::{Caller, Outcome, Request, Statement as Asked};
use cql::Opcode;
use cql::{Statement, StatementKind as Kind, is_system_keyspace};

/// Kinds that have a level.
const KINDS: [Kind; 5] = [
    Kind::Select,
    Kind::Insert,
    Kind::Update,
    Kind::Delete,
    Kind::Batch,
];

/// Every name that `kinds` may have in it.
pub(super) fn names() -> Vec<&'static str> {
    let kinds = KINDS.iter().map(|kind| kind.as_str());
    ["reads", "writes"].into_iter().chain(kinds).collect()
}

/// See the module.
#[derive(Debug)]
pub(super) struct Selection {
    /// The kinds of statements. None: any.
    kinds: Option<Vec<Kind>>,
    /// The keyspaces. None: any.
    keyspaces: Option<Vec<String>>,
    prepared: Prepared<Meant>,
}

/// The selection's decision on a statement.
#[derive(Clone, Copy, Debug)]
struct Meant {
    by_kind: bool,
    by_keyspace: bool,
}

impl Selection {
    /// # Errors
    /// A kind that is none, or a list of nothing.
    pub(super) fn new(
        names: Option<Vec<String>>,
        keyspaces: Option<Vec<String>>,
    ) -> Result<Self, String> {
        let mut kinds = None;
        for name in names.iter().flatten() {
            let of_name: &[Kind] = match name.as_str() {
                "reads" => &[Kind::Select],
                "writes" => &[Kind::Insert, Kind::Update, Kind::Delete, Kind::Batch],
                name => match KINDS.iter().find(|kind| kind.as_str() == name) {
                    Some(kind) => std::slice::from_ref(kind),
                    None => {
                        return Err(format!(
                            "kinds: expected any of {}; found {name:?}",
                            self::names().join(", ")
                        ));
                    }
                },
            };
            kinds.get_or_insert_with(Vec::new).extend(of_name);
        }
        let is_empty = |names: &Option<Vec<String>>| names.as_ref().is_some_and(Vec::is_empty);
        for (key, names) in [("kinds", &names), ("keyspaces", &keyspaces)] {
            if is_empty(names) {
                return Err(format!("{key}: expected one or more, found none"));
            }
        }
        Ok(Self {
            kinds,
            keyspaces,
            prepared: Prepared::default(),
        })
    }

    /// Whether it has to know what each statement is.
    fn is_limited(&self) -> bool {
        self.kinds.is_some() || self.keyspaces.is_some()
    }

    /// Whether a QUERY, EXECUTE or BATCH is meant.
    ///
    /// # Errors
    /// The statement is prepared and not known: the client has to prepare it again.
    pub(super) fn takes(&self, request: &Request<'_>, caller: &Caller) -> Result<bool, Outcome> {
        // Of a batch one statement in the keyspace is enough.
        let is_batch = request.opcode() == Opcode::Batch;
        if is_batch && !self.is_limited() {
            return Ok(true);
        }
        if is_batch && !self.takes_kind(Kind::Batch) {
            return Ok(false);
        }
        let keyspace = request.sure_keyspace(caller);
        for asked in request.statements() {
            let meant = match asked {
                Asked::Text(text) => self.meant(text, keyspace),
                Asked::Prepared(id) => match self.prepared.known(id, caller) {
                    Ok(meant) => meant,
                    Err(again) if self.is_limited() => return Err(again),
                    // All are meant but for those that are known.
                    Err(_) => return Ok(true),
                },
            };
            if meant.by_keyspace && (meant.by_kind || is_batch) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A PREPARE goes out, whose answer it has to see.
    pub(super) fn prepares(&self, request: &mut Request<'_>, caller: &Caller) {
        let Some(Asked::Text(text)) = request.statements().next() else {
            return;
        };
        let meant = self.meant(text, request.sure_keyspace(caller));
        if self.is_limited() || !meant.by_keyspace {
            let preparing = Preparing::of(request, request.sure_keyspace(caller), caller);
            request.await_response(self.prepared.goes_out(preparing, meant));
        }
    }

    /// A PREPARE is answered, by this id if the statement was prepared.
    pub(super) fn note_prepared(&self, number: u64, id: Option<&[u8]>) {
        self.prepared.came_back(number, id);
    }

    /// Whether it has to know which statement an id stands for, and does not.
    pub(super) fn lacks(&self, id: &[u8], caller: &Caller) -> bool {
        self.is_limited() && self.prepared.known(id, caller).is_err()
    }

    /// An id stands for this text.
    pub(super) fn learns(&self, id: &[u8], keyspace: Option<&str>, text: &[u8], caller: &Caller) {
        let meant = self.meant(text, keyspace);
        if self.is_limited() || !meant.by_keyspace {
            self.prepared.learn(id, caller, meant);
        }
    }

    fn takes_kind(&self, kind: Kind) -> bool {
        let is_known = !matches!(kind, Kind::Unknown | Kind::Query);
        let is_one = |kinds: &Vec<Kind>| !is_known || kinds.contains(&kind);
        self.kinds.as_ref().is_none_or(is_one)
    }

    /// Tells whether a text is meant. `keyspace`: that of the request or of its flow, if it is known.
    fn meant(&self, text: &[u8], keyspace: Option<&str>) -> Meant {
        let Statement {
            kind,
            keyspace: own,
            table,
        } = Statement::of(text);
        // Of `BEGIN BATCH` the names are those of its first statement.
        let own = own.filter(|_| kind != Kind::Batch);
        let table = table.filter(|_| kind != Kind::Batch);
        let known = own.as_deref().or(table.as_ref().and(keyspace));
        let by_keyspace = match &self.keyspaces {
            Some(keyspaces) => known.is_none_or(|known| keyspaces.iter().any(|one| one == known)),
            None => kind != Kind::Select || !known.is_some_and(is_system_keyspace),
        };
        Meant {
            by_kind: self.takes_kind(kind),
            by_keyspace,
        }
    }
}
