//! What files have made, and whether they still say the same. While they do, it stays the very one: so it keeps what hangs by
//! it, the tickets of clients and the connections that flows share.

use std::{fmt, sync::Arc};

use sha2::{Digest, Sha256};

/// A configuration.
#[derive(Clone, Debug)]
pub struct Made<C> {
    /// Shared by all who were made of the same.
    pub config: Arc<C>,
    said: Said,
}

/// What files said, to be told from what they say later: a key is not kept for that.
#[derive(Clone, PartialEq, Eq)]
struct Said([u8; 32]);

/// Listens to files as they are read.
pub(super) struct Hears(Sha256);

impl Hears {
    pub(super) fn new() -> Self {
        Self(Sha256::new())
    }

    /// All of the next file.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        // So that what is at the end of one is not taken for the beginning of the next.
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    /// What was made of them.
    pub(super) fn made<C>(self, config: C) -> Made<C> {
        Made {
            config: Arc::new(config),
            said: Said(self.0.finalize().into()),
        }
    }
}

impl<C> Made<C> {
    /// The other, if that was made of the same. `other`: by the same settings.
    pub(super) fn or(&mut self, other: &Self) {
        if self.said == other.said {
            self.config = other.config.clone();
        }
    }
}

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Said")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> Made<u8> {
        let mut hears = Hears::new();
        files.iter().for_each(|file| hears.hear(file.as_bytes()));
        hears.made(0)
    }

    #[test]
    fn it_is_the_same_of_the_same_files() {
        let first = of(&["ab", "c"]);
        for (other, is_same) in [
            (of(&["ab", "c"]), true),
            (of(&["a", "bc"]), false),
            (of(&["ab", "c", ""]), false),
            (of(&["c", "ab"]), false),
            (of(&[]), false),
        ] {
            let mut other = other;
            other.or(&first);
            assert_eq!(Arc::ptr_eq(&other.config, &first.config), is_same);
        }
    }
}
