//! The step `protect`, with a key and nonces of its own: what it encrypts is the same in each run.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use cql_edit::{
    Transform,
    protect::{Columns, Failures, Fate, KEY_BYTES, KeySet, NONCE_BYTES, Protect, Vault},
};

/// Nonces that are counted.
#[derive(Debug, Default)]
struct Counted(Mutex<u64>);

impl Vault for Counted {
    fn keys(&self) -> Option<Arc<KeySet>> {
        let keys = [("k".to_owned(), [0x42; KEY_BYTES].into())];
        KeySet::new("k", keys).ok().map(Arc::new)
    }

    fn nonce(&self) -> Option<[u8; NONCE_BYTES]> {
        let mut count = self.0.lock().unwrap();
        *count += 1;
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&count.to_be_bytes());
        Some(nonce)
    }

    fn misses(&self, _: &str) {}

    fn count(&self, _: Fate, _: u64) {}
}

/// Encrypts these columns of these tables.
pub(crate) fn protect(tables: &[(&str, &[&str])]) -> Arc<dyn Transform> {
    let columns = tables.iter().map(|(table, columns)| {
        let columns = columns.iter().map(|column| (*column).to_owned());
        ((*table).to_owned(), columns.collect::<Vec<_>>())
    });
    let columns: HashMap<String, Vec<String>> = columns.collect();
    let columns = Columns::new(&columns).expect("columns of tables");
    let failures = Failures {
        unencrypted_passes: false,
        keyless_passes: false,
    };
    Arc::new(Protect::new(columns, failures, Arc::<Counted>::default()))
}
