//! Values on their way to the client.

use std::borrow::Cow;
use std::sync::Arc;

use super::Failures;
use super::envelope::{self, Closed};
use super::keys::{Fate, KeySet, Vault};
use super::plan::{Column, Reads};
use super::ready::holds;
use crate::{Caller, Cell, Error, Response};

/// Decrypts what a result has of protected columns, or makes it an ERROR. True: it has changed.
pub(super) fn open(
    response: &mut Response<'_>,
    reads: &Reads,
    failures: Failures,
    vault: &dyn Vault,
    caller: &Caller,
) -> bool {
    if !response.has_rows() {
        return false;
    }
    let mut reader = Reader {
        reads,
        failures,
        vault,
        keys: vault.keys(),
        opened: 0,
        passed: 0,
        failed: None,
    };
    let mut columns: Option<Vec<Option<Arc<Column>>>> = None;
    let was_read = response.edit_rows(|found, cells| {
        let of = found.len();
        if columns.is_none() {
            let found = found.iter().enumerate();
            let found = found.map(|(place, column)| reader.column(place, of, column));
            columns = Some(found.collect());
        }
        for (column, cell) in columns.iter().flatten().zip(cells) {
            if let Some(column) = column {
                reader.cell(column, cell);
            }
        }
        true
    });
    if reader.opened > 0 {
        vault.count(Fate::Decrypted, reader.opened);
    }
    if reader.passed > 0 {
        vault.count(Fate::Unencrypted, reader.passed);
    }
    let message = match reader.failed {
        Some(message) => message,
        None if was_read => return reader.opened > 0,
        None => "the result cannot be read, and it may have encrypted columns".to_owned(),
    };
    response.fail(&Error::Invalid(message).by(&caller.rule));
    true
}

struct Reader<'r> {
    reads: &'r Reads,
    failures: Failures,
    vault: &'r dyn Vault,
    keys: Option<Arc<KeySet>>,
    opened: u64,
    /// Values that were stored as they are.
    passed: u64,
    /// Why the result is refused.
    failed: Option<String>,
}

impl Reader<'_> {
    /// The protected column at this place of a result.
    fn column(
        &mut self,
        place: usize,
        of: usize,
        found: &crate::Column<'_>,
    ) -> Option<Arc<Column>> {
        let Ok(column) = self.reads.at(place, of, found.name) else {
            self.fails(None, || {
                "the result has other columns than were asked for".to_owned()
            });
            return None;
        };
        let column = column?;
        if !holds(found.kind) {
            self.fails(Some(Fate::Type), || {
                format!("{} is neither text nor blob", column.label())
            });
        }
        Some(column.clone())
    }

    fn cell(&mut self, column: &Column, cell: &mut Cell<'_>) {
        let (Some(sealed), None) = (cell.as_deref(), &self.failed) else {
            return;
        };
        let Some(keys) = &self.keys else {
            if sealed.starts_with(envelope::PREFIX.as_bytes()) {
                self.keyless(Fate::NoKeys, || "there are no keys now".to_owned());
            } else {
                self.plain(column);
            }
            return;
        };
        match envelope::open(keys, &column.binding, sealed) {
            Ok(plain) => {
                self.opened += 1;
                *cell = Some(Cow::Owned(plain));
            }
            Err(Closed::Plain) => self.plain(column),
            Err(Closed::UnknownKey(id)) => {
                self.vault.misses(&id);
                self.keyless(Fate::UnknownKey, || {
                    format!(
                        "a value of {} has the key {id}, which is not there",
                        column.label()
                    )
                });
            }
            Err(Closed::Tampered) => self.fails(Some(Fate::Tampered), || {
                format!(
                    "a value of {} is not what was encrypted for it",
                    column.label()
                )
            }),
        }
    }

    /// A value that is no envelope.
    fn plain(&mut self, column: &Column) {
        match self.failures.unencrypted_passes {
            true => self.passed += 1,
            false => self.fails(Some(Fate::UnencryptedRefused), || {
                format!("a value of {} is not encrypted", column.label())
            }),
        }
    }

    fn keyless(&mut self, fate: Fate, message: impl FnOnce() -> String) {
        match self.failures.keyless_passes {
            true => self.vault.count(fate, 1),
            false => self.fails(Some(fate), message),
        }
    }

    fn fails(&mut self, fate: Option<Fate>, message: impl FnOnce() -> String) {
        if let Some(fate) = fate {
            self.vault.count(fate, 1);
        }
        self.failed.get_or_insert_with(message);
    }
}
