//! A file with keys, which only its owner may read.

use std::{
    fs::{File, Metadata},
    io::Read,
    os::unix::fs::MetadataExt,
    path::Path,
};

use cql_edit::protect::KeySet;
use trusted::Untrusted;
use zeroize::Zeroizing;

use super::document::{MAX_BYTES, of_toml};

/// Reads the keys in a file.
///
/// # Errors
/// The file cannot be read, others may read or write it, or it is not a document of keys. The error
/// contains nothing of the file's contents.
pub(super) fn read(path: &Path) -> Result<KeySet, String> {
    let said = |what: String| format!("{}: {what}", path.display());
    let file = trusted::open(path).map_err(|error| match error {
        Untrusted::Io { source, .. } => said(format!("it cannot be read: {source}")),
        other => other.to_string(),
    })?;
    // The metadata of the opened file, whatever the path names by now.
    let metadata = file.metadata().map_err(|e| said(e.to_string()))?;
    is_closed_to_others(&metadata).map_err(said)?;
    let bytes = whole(file).map_err(said)?;
    of_toml(&bytes).map_err(said)
}

fn is_closed_to_others(file: &Metadata) -> Result<(), String> {
    match file.mode() & 0o077 {
        0 => Ok(()),
        _ => Err(format!(
            "others than its owner may use it (mode {:o}), and it has keys in it: chmod 600",
            file.mode() & 0o7777
        )),
    }
}

fn whole(file: File) -> Result<Zeroizing<Vec<u8>>, String> {
    // The buffer has its final size, so that no part of it is left behind when it grows.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES + 1));
    let read = file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|e| format!("it cannot be read: {e}"))?;
    match bytes.len() > MAX_BYTES {
        true => Err(format!("expected at most {MAX_BYTES} bytes")),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let key = "11".repeat(32);
        fs::write(&path, format!("active = \"a\"\n[keys]\na = \"{key}\"\n")).unwrap();
        for (mode, is_good) in [
            (0o600, true),
            (0o400, true),
            (0o640, false),
            (0o604, false),
            (0o620, false),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match read(&path) {
                Ok(_) => assert!(is_good, "{mode:o}"),
                Err(error) => {
                    assert!(!is_good, "{error}");
                    assert!(
                        error.contains("chmod 600") && !error.contains(&key),
                        "{error}"
                    );
                }
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            assert!(read(&path).unwrap_err().contains("uid 12345"));
        }
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(read(&pipe).unwrap_err().contains("expected a file"));
        assert!(read(folder.path()).unwrap_err().contains("expected a file"));
        let absent = folder.path().join("absent");
        assert!(read(&absent).unwrap_err().contains("cannot be read"));
        let large = folder.path().join("large");
        fs::write(&large, vec![b'#'; MAX_BYTES + 1]).unwrap();
        fs::set_permissions(&large, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(read(&large).unwrap_err().contains("at most"));
    }
}
