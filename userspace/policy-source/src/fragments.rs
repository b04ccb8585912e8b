//! The files of a policy.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// Files of a policy, at most. A push writes each, removes others, and writes the version, all in one transaction, for which
/// etcd takes 128 operations unless its `--max-txn-ops` says otherwise.
pub const MAX_FRAGMENTS: usize = 60;

/// Bytes of all files together. A push sends them twice (as files, and as a version) in one request, for which etcd takes
/// 1.5 MiB unless its `--max-request-bytes` says otherwise.
pub const MAX_FRAGMENT_BYTES: usize = 640 << 10;

/// Policies that are taken from a cluster. Further ones, in the order of their names, are refused; those of the cluster come first.
pub const MAX_OBJECTS: usize = 512;

/// Bytes of all of them together, as files.
pub const MAX_OBJECTS_BYTES: usize = 4 << 20;

/// Bytes of one of them: of its specification in JSON, and as a file.
pub const MAX_OBJECT_BYTES: usize = 128 << 10;

/// Policies of one namespace.
pub const MAX_NAMESPACE_OBJECTS: usize = 32;

/// Rules of all policies of one namespace.
pub const MAX_NAMESPACE_RULES: usize = 128;

/// Bytes of all policies of one namespace, as files.
pub const MAX_NAMESPACE_BYTES: usize = 256 << 10;

/// Names in `to` of all policies of one namespace.
pub const MAX_NAMESPACE_NAMES: usize = 16;

/// Destinations of all rules of one namespace, of which each port of a range is one: what one rule may have.
pub const MAX_NAMESPACE_DESTINATIONS: usize = 1024;

/// Ports of these: of each policy, different ones.
pub const MAX_NAMESPACE_PORTS: usize = 512;

/// Entries of `uid`, `gid` and `process` of all rules of one namespace.
pub const MAX_NAMESPACE_IDS: usize = 512;

/// Rules in shadow of one namespace.
pub const MAX_NAMESPACE_SHADOWS: usize = 8;

/// Rules of all namespaces: half of a policy's.
pub const MAX_NAMESPACES_RULES: usize = 512;

/// Names in `to` of all namespaces: half of a policy's.
pub const MAX_NAMESPACES_NAMES: usize = 64;

/// Destinations of all namespaces: half of the different ones that a policy has room for.
pub const MAX_NAMESPACES_DESTINATIONS: usize = 4096;

/// Ports of these: half of a policy's.
pub const MAX_NAMESPACES_PORTS: usize = 2048;

/// Entries of `uid`, `gid` and `process` of all namespaces: half of what a policy has room for of each.
pub const MAX_NAMESPACES_IDS: usize = 2048;

/// Rules in shadow of all namespaces: half of a policy's.
pub const MAX_NAMESPACES_SHADOWS: usize = 32;

/// Bytes of a file's name.
pub const MAX_NAME_BYTES: usize = 63;

/// The digits of a digest that are shown and compared: 64 bits, for at most some versions of one policy.
const DIGEST_DIGITS: usize = 16;

/// A file of a policy, of which rules are read as from a file of `conf.d`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fragment {
    /// The name, which ends in `.toml`.
    pub name: String,
    /// The text.
    pub text: String,
}

/// All files of a policy, in the order of their names' bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fragments {
    /// The revision of the store at which the last of them was changed.
    pub revision: i64,
    /// The number of the version that they are. None: nobody has pushed just these, or who reads them may not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The files.
    pub files: Vec<Fragment>,
    /// Objects that cannot be files, each with the reason. Only policies that are objects have such: they are refused one
    /// by one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unusable: BTreeMap<String, String>,
    /// Kinds, or namespaces of them, with objects that were not read, for want of room. An object of such that is not here may be there all
    /// the same.
    #[serde(default, skip)]
    pub cut: BTreeSet<String>,
}

/// Why what is in etcd is no policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unusable {
    /// There are too many files.
    #[error("there are more than {MAX_FRAGMENTS} files: put more rules into each")]
    TooMany,
    /// The files are too long.
    #[error("the files have more than {MAX_FRAGMENT_BYTES} bytes together")]
    TooLong,
    /// There are too many objects, or they are too long.
    #[error("all policies are at most {MAX_OBJECTS}, of {MAX_OBJECTS_BYTES} bytes together")]
    TooManyObjects,
    /// A name is none.
    #[error(
        "{0:?} is no name of a file: expected 1 to {MAX_NAME_BYTES} letters, digits, `-`, `_`, `.`, with `.toml` at its end"
    )]
    Name(String),
    /// A text is none.
    #[error("{0} is not UTF-8")]
    Text(String),
}

impl Fragments {
    /// Puts files together.
    ///
    /// # Errors
    /// The files exceed a bound, or a name is none.
    pub fn new(revision: i64, mut files: Vec<Fragment>) -> Result<Self, Unusable> {
        if files.len() > MAX_FRAGMENTS {
            return Err(Unusable::TooMany);
        }
        let bytes: usize = files.iter().map(|file| file.text.len()).sum();
        if bytes > MAX_FRAGMENT_BYTES {
            return Err(Unusable::TooLong);
        }
        if let Some(bad) = files.iter().find(|file| !is_name(&file.name)) {
            return Err(Unusable::Name(
                bad.name.chars().take(MAX_NAME_BYTES).collect(),
            ));
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self {
            revision,
            version: None,
            files,
            unusable: BTreeMap::new(),
            cut: BTreeSet::new(),
        })
    }

    /// Puts policies that are objects together again, as they were kept.
    ///
    /// # Errors
    /// The files exceed a bound, or a name is none.
    pub fn of_objects(revision: i64, mut files: Vec<Fragment>) -> Result<Self, Unusable> {
        if !are_kept(&files) {
            return Err(Unusable::TooManyObjects);
        }
        if let Some(bad) = files.iter().find(|file| !file.name.contains('/')) {
            return Err(Unusable::Name(bad.name.clone()));
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self {
            revision,
            version: None,
            files,
            unusable: BTreeMap::new(),
            cut: BTreeSet::new(),
        })
    }

    /// Reads files from pairs of names and values.
    ///
    /// # Errors
    /// As [`Self::new`]; or a text is not UTF-8.
    pub(crate) fn of_values<'v>(
        revision: i64,
        values: impl Iterator<Item = (&'v [u8], &'v [u8])>,
    ) -> Result<Self, Unusable> {
        let mut files = Vec::new();
        for (name, value) in values.take(MAX_FRAGMENTS + 1) {
            let name = String::from_utf8_lossy(name).into_owned();
            let text =
                String::from_utf8(value.to_vec()).map_err(|_| Unusable::Text(name.clone()))?;
            files.push(Fragment { name, text });
        }
        Self::new(revision, files)
    }

    /// Returns the beginning of the SHA-256 of names and texts: the same for the same policy, whatever the revision.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for file in &self.files {
            for part in [&file.name, &file.text] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part);
            }
        }
        for (name, why) in &self.unusable {
            hash.update(format!("\0{name}\0{why}"));
        }
        let mut digits = String::new();
        for byte in hash.finalize() {
            digits.push_str(&format!("{byte:02x}"));
        }
        digits.truncate(DIGEST_DIGITS);
        digits
    }

    /// Whether an object that is not here may be there all the same: it was not read, or is no file.
    pub fn may_have(&self, name: &str) -> bool {
        let mut slashes = name.match_indices('/').map(|(at, _)| at);
        let is_cut = slashes.any(|at| name.get(..at).is_some_and(|of| self.cut.contains(of)));
        is_cut || self.unusable.contains_key(name)
    }

    /// Returns a file's text.
    pub fn text(&self, name: &str) -> Option<&str> {
        let file = self.files.iter().find(|file| file.name == name);
        file.map(|file| file.text.as_str())
    }
}

/// Whether so many objects can be kept, and read again.
fn are_kept(files: &[Fragment]) -> bool {
    let bytes: usize = files.iter().map(|file| file.text.len()).sum();
    files.len() <= MAX_OBJECTS && bytes <= MAX_OBJECTS_BYTES
}

fn is_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let stem = name.strip_suffix(".toml").unwrap_or_default();
    !stem.is_empty()
        && !stem.starts_with('.')
        && name.len() <= MAX_NAME_BYTES
        && name.chars().all(legal)
}
