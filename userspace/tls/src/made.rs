//! TLS configurations made from files. While the files stay the same, so does the configuration,
//! and with it everything that depends on it: the tickets of clients, and shared connections.

use std::{fmt, sync::Arc};

use sha2::{Digest, Sha256};

/// A configuration, and a digest of the files that it was made from.
#[derive(Clone, Debug)]
pub struct Made<C> {
    /// The configuration, shared by all rules with the same settings and files.
    pub config: Arc<C>,
    said: Said,
}

/// The digest of files' contents, to be compared with what they contain later. With it, a key need
/// not be kept for that.
#[derive(Clone, PartialEq, Eq)]
struct Said([u8; 32]);

/// A digest of files as they are read.
pub(super) struct Hears(Sha256);

impl Hears {
    pub(super) fn new() -> Self {
        Self(Sha256::new())
    }

    /// Adds all of the next file.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        // With its length, so that the end of one file is not taken for the beginning of the next.
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    /// Attaches the digest to the configuration that was made of the files.
    pub(super) fn made<C>(self, config: C) -> Made<C> {
        Made {
            config: Arc::new(config),
            said: Said(self.0.finalize().into()),
        }
    }
}

impl<C> Made<C> {
    /// Takes over the other's configuration, if both were made from the same. `other`: made by the
    /// same settings.
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
